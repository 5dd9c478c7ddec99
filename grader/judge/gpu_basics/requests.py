"""Sectors, lines and bank passes of one warp's request: truth, known mistakes, address patterns that tell them apart.

Sources: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory" (32-byte transactions); CUDA C++ Programming
Guide, "Shared Memory" of compute capability 5.x and later (32 banks of 4 bytes, broadcast within a word).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grader.judge.answers import Mistake, judge_answers, real_number, whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

Array = NDArray[Any]
LANES = 32
SECTOR, LINE, BANKS, WORD = 32, 128, 32, 4
MODULE = "coalescing"


@dataclass(frozen=True)
class Request:
    """One warp's request: (32,) int64 byte addresses, multiples of `width`; (32,) bool, None where all lanes ask."""

    addresses: Array
    width: int = 4
    active: Array | None = None

    @property
    def asking(self) -> Array:
        return np.ones(LANES, dtype=bool) if self.active is None else self.active


def granules(request: Request, size: int) -> set[int]:
    """Numbers of the `size`-byte pieces of memory that hold a byte of an active lane."""
    return {(int(first) + byte) // size for first in request.addresses[request.asking] for byte in range(request.width)}


def sectors(request: Request) -> int:
    return len(granules(request, SECTOR))


def lines(request: Request) -> int:
    return len(granules(request, LINE))


def efficiency(request: Request) -> float:
    """Distinct bytes asked for over bytes moved."""
    moved = SECTOR * sectors(request)
    return len(granules(request, 1)) / moved if moved else 0.0


def group_lanes(width: int) -> int:
    """Lanes that go to the banks together."""
    return LANES * WORD // max(width, WORD)


def wavefronts(request: Request, lanes: int | None = None) -> int:
    """Passes over the banks, `lanes` lanes at a time."""
    lanes = lanes or group_lanes(request.width)
    passes = 0
    for first in range(0, LANES, lanes):
        part = request.asking & (np.arange(LANES) // lanes == first // lanes)
        words = granules(replace(request, active=part), WORD)
        if words:
            passes += max(np.bincount([word % BANKS for word in words]).tolist())
    return passes


@dataclass(frozen=True)
class Copy:
    """The loads of ``dst[i] = src[i * stride]``, one element a thread."""

    n: int
    stride: int
    width: int = 4
    base: int = 0

    def requests(self, *, width: int | None = None, base: int | None = None, masked: bool = True) -> list[Request]:
        i = np.arange(-(-self.n // LANES) * LANES, dtype=np.int64).reshape(-1, LANES)
        address = (self.base if base is None else base) + i * self.stride * (width or self.width)
        return [Request(a, self.width, (row < self.n) if masked else None) for a, row in zip(address, i, strict=True)]


def copy_traffic(copy: Copy) -> tuple[int, int]:
    """(requests, sectors)."""
    requests = copy.requests()
    return len(requests), sum(map(sectors, requests))


# Known mistakes


def _span(request: Request, size: int) -> int:
    """Pieces between the lowest and the highest address, as if everything between them moved."""
    asked = request.addresses[request.asking]
    return int(asked.max() // size - asked.min() // size) + 1 if len(asked) else 0


def _aligned(request: Request) -> Request:
    """The same with its lowest address moved down to the start of a line."""
    asked = request.addresses[request.asking]
    return replace(request, addresses=request.addresses - (asked.min() % LINE if len(asked) else 0))


SECTOR_TEXTS = {
    "sectors-of-128-bytes": "Your count is that of 128-byte lines; memory moves in sectors of 32 bytes.",
    "misalignment-ignored": "Your count is that of the same pattern begun at the start of a line.",
    "lanes-counted": "Each lane is counted as a sector of its own; lanes that share one cost it once.",
    "inactive-lanes-counted": "Inactive lanes are counted.",
    "range-counted": "You count every sector between the lowest and the highest address; only touched ones move.",
    "bytes-divided": "Your count is the bytes asked for over 32: a sector moves whole, however little of it is used.",
}


def _sector_mistakes(size: int) -> list[Mistake[Request]]:
    def count(request: Request) -> int:
        return len(granules(request, size))

    answers: dict[str, Callable[[Request], object]] = {
        "sectors-of-128-bytes": lines,
        "misalignment-ignored": lambda request: count(_aligned(request)),
        "inactive-lanes-counted": lambda request: count(replace(request, active=None)),
        "lanes-counted": lambda request: int(request.asking.sum()),
        "range-counted": lambda request: _span(request, size),
        "bytes-divided": lambda request: -(-int(request.asking.sum()) * request.width // size),
    }
    return [
        Mistake(name, SECTOR_TEXTS[name], answer)
        for name, answer in answers.items()
        if size < LINE or "128" not in name
    ]


SECTOR_MISTAKES = _sector_mistakes(SECTOR)
LINE_MISTAKES = _sector_mistakes(LINE)

EFFICIENCY_MISTAKES: list[Mistake[Request]] = [
    Mistake(
        "broadcast-counted-twice",
        "Lanes that ask for the same bytes are counted more than once: the efficiency passes 1.",
        lambda r: int(r.asking.sum()) * r.width / (SECTOR * sectors(r)) if sectors(r) else 0.0,
    ),
    Mistake(
        "inactive-lanes-counted",
        SECTOR_TEXTS["inactive-lanes-counted"],
        lambda r: LANES * r.width / (SECTOR * sectors(r)) if sectors(r) else 0.0,
    ),
    Mistake(
        "width-ignored",
        "Every access is taken to be 4 bytes wide.",
        lambda r: efficiency(replace(r, width=4)),
    ),
]

COPY_MISTAKES: list[Mistake[Copy]] = [
    Mistake(
        "width-ignored",
        "Elements are taken to be 4 bytes wide, whatever their width is.",
        lambda c: (len(c.requests()), sum(map(sectors, c.requests(width=4)))),
    ),
    Mistake(
        "misalignment-ignored",
        "The array is taken to begin at the start of a line.",
        lambda c: (len(c.requests()), sum(map(sectors, c.requests(base=0)))),
    ),
    Mistake(
        "tail-counted-full",
        "The last warp is counted as if all its lanes had an element.",
        lambda c: (len(c.requests()), sum(map(sectors, c.requests(masked=False)))),
    ),
    Mistake(
        "tail-left-out",
        "The last, partial warp isn't counted.",
        lambda c: (c.n // LANES, sum(map(sectors, c.requests()[: c.n // LANES]))),
    ),
    Mistake(
        "threads-counted",
        "Threads are counted as requests: a request is one instruction of a whole warp.",
        lambda c: (c.n, sum(map(sectors, c.requests()))),
    ),
    Mistake(
        "sectors-of-128-bytes",
        SECTOR_TEXTS["sectors-of-128-bytes"],
        lambda c: (len(c.requests()), sum(map(lines, c.requests()))),
    ),
]


def _per_bank(request: Request, bank_of: Callable[[int], int], *, distinct: bool = True) -> int:
    """Most entries that one bank has to serve: distinct addresses, or lanes."""
    asked = request.addresses[request.asking].tolist()
    served: dict[int, list[int]] = {}
    for address in asked:
        served.setdefault(bank_of(address), []).append(address)
    return max((len(set(each)) if distinct else len(each) for each in served.values()), default=0)


BANK_MISTAKES: list[Mistake[Request]] = [
    Mistake(
        "bank-without-word",
        "The bank is taken to be address mod 32: a bank is 4 bytes wide, so it is (address / 4) mod 32.",
        lambda r: _per_bank(r, lambda address: address % BANKS),
    ),
    Mistake(
        "broadcast-counted",
        "Lanes that read the same word are counted as a conflict; a bank serves them in one pass.",
        lambda r: _per_bank(r, lambda address: address // WORD % BANKS, distinct=False),
    ),
    Mistake(
        "inactive-lanes-counted",
        "Inactive lanes are counted.",
        lambda r: wavefronts(replace(r, active=None)),
    ),
    # Counting only each lane's first word gives the same numbers: a bank has as many first words as second ones.
    Mistake(
        "lane-groups-ignored",
        "All 32 lanes are sent to the banks together; 8 and 16 bytes a lane go in two and four groups.",
        lambda r: wavefronts(r, LANES),
    ),
    Mistake(
        "conflicts-not-passes",
        "You count what conflicts add; asked for are the passes, of which there is at least one.",
        lambda r: max(wavefronts(r) - LANES // group_lanes(r.width), 0),
    ),
    Mistake(
        "sixteen-banks",
        "The words are spread over 16 banks; there are 32.",
        lambda r: _per_bank(r, lambda address: address // WORD % 16),
    ),
]


# Patterns


def strided(stride: int, width: int = 4, base: int = 0) -> Request:
    """Lane l asks for element l · stride of an array that begins at `base`."""
    return Request(base + np.arange(LANES, dtype=np.int64) * stride * width, width)


def masked(request: Request, active: Array, rng: np.random.Generator) -> Request:
    """The request with only `active` lanes; the others' addresses hold what was left in the register."""
    garbage = rng.integers(-(1 << 40), 1 << 40, LANES) // request.width * request.width
    return replace(request, addresses=np.where(active, request.addresses, garbage), active=active)


def scattered(rng: np.random.Generator, width: int = 4, pool: int = 40) -> Request:
    """Each lane asks for one of `pool` elements, so that some share."""
    return Request(rng.integers(0, pool, LANES).astype(np.int64) * width + (1 << 20), width)


FUNCTIONS: dict[str, tuple[Callable[[Request], object], list[Mistake[Request]]]] = {
    "sectors_per_request": (sectors, SECTOR_MISTAKES),
    "lines_per_request": (lines, LINE_MISTAKES),
    "efficiency": (efficiency, EFFICIENCY_MISTAKES),
    "bank_wavefronts": (wavefronts, BANK_MISTAKES),
}


def judge_requests(submission: Submission, judge: Judge, function: str, requests: Sequence[Request]) -> None:
    """Ask the submission about each request and hold the answers to the model."""
    truth, mistakes = FUNCTIONS[function]
    number = real_number if function == "efficiency" else whole_number
    got = [
        number(judge, submission.call(function, r.addresses, r.width, r.active, module=MODULE), function)
        for r in requests
    ]
    judge_answers(judge, function, requests, got, [truth(request) for request in requests], mistakes)


def judge_copies(submission: Submission, judge: Judge, copies: Sequence[Copy]) -> None:
    """The same for whole copies."""
    got = []
    for copy in copies:
        answer = submission.call("copy_traffic", copy.n, copy.stride, copy.width, copy.base, module=MODULE)
        if not isinstance(answer, tuple) or len(answer) != 2:
            judge.contract("copy_traffic: expected a tuple (requests, sectors).")
        got.append(tuple(whole_number(judge, part, "copy_traffic") for part in answer))
    judge_answers(judge, "copy_traffic", copies, got, [copy_traffic(copy) for copy in copies], COPY_MISTAKES)
