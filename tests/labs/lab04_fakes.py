"""lab04's checks run in this process: on the models' own answers, on a mistake's, or on kernels written in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grader.course import Course
from grader.judge.gpu_basics import occupancy, requests, warps
from grader.judge.recorder import Judge, Verdict
from grader.judge.seeds import Seeds
from grader.kernels.cuda import CudaLaunch, CudaResult
from grader.modules import load_module
from grader.profiles import load_profile

ROOT = Path(__file__).resolve().parents[2]
LAB_ID = "lab04_gpu_basics"
COURSE = Course(ROOT)
LAB = COURSE.lab(LAB_ID)
SECRETS = (b"lab04", b"another", b"third")


def new_judge(check_id: str, secret: bytes = SECRETS[0], test: str = "test") -> Judge:
    return Judge(
        check_id=check_id,
        lab=LAB,
        profile=load_profile(ROOT, "h200"),
        device="cpu",
        thresholds=LAB.checks[check_id].thresholds,
        seeds=Seeds(secret, "secret"),
        test=test,
    )


@dataclass
class Answers:
    """Stands for a submission: each function is one of ours."""

    functions: dict[str, Callable[..., Any]]
    device: str = "cpu"

    def call(self, function: str, /, *args: Any, module: str = "", **kwargs: Any) -> Any:
        return self.functions[function](*args, **kwargs)

    def host(self, target: object, methods: tuple[str, ...]) -> object:
        return target


def _request(model: Callable[[requests.Request], object]) -> Callable[..., object]:
    return lambda addresses, width, active: model(requests.Request(addresses, width, active))


def _occupancy(model: Callable[[occupancy.Kernel], object]) -> Callable[..., object]:
    cards = {card.name: card for card in GPU_CARDS}

    def answer(limits: dict[str, Any], threads: int, registers: int, shared: int) -> tuple[Any, ...]:
        card = next(card for card in cards.values() if occupancy.limits_of(card) == limits)
        kernel = occupancy.Kernel(card, threads, registers, shared)
        blocks = model(kernel)
        assert isinstance(blocks, int)
        count = blocks * -(-threads // 32)
        return blocks, count, 32 * count / card.max_threads_per_sm, occupancy.limiters(kernel)

    return answer


def _cards() -> list[Any]:
    from grader.profiles import list_profiles

    cards = [load_profile(ROOT, name) for name in list_profiles(ROOT)]
    return [card for card in cards if card.vendor == "nvidia"]


GPU_CARDS = _cards()


def butterfly(warp: Any, values: np.ndarray, op: str, count: int = 32, width: int = 32) -> np.ndarray:
    case = warps.Reduction(values, op, count, width)
    result = np.where(np.arange(32) < count, values, case.identity)
    offset = width // 2
    while offset:
        other = warp.shfl_xor(warps.FULL, result, offset)
        result = result + other if op == "sum" else np.maximum(result, other)
        offset //= 2
    return result


def right() -> dict[str, Callable[..., Any]]:
    """Every function that the checks of the models call, answered by the judge's own models."""
    functions: dict[str, Callable[..., Any]] = {
        name: _request(truth) for name, (truth, _) in requests.FUNCTIONS.items()
    }
    functions["copy_traffic"] = lambda *args: requests.copy_traffic(requests.Copy(*args))
    functions["occupancy"] = _occupancy(occupancy.blocks)
    functions["warp_reduce"] = butterfly
    return functions


def request_mistake(function: str, mistake: Any) -> Answers:
    return Answers({**right(), function: _request(mistake.answer)})


def copy_mistake(mistake: Any) -> Answers:
    return Answers({**right(), "copy_traffic": lambda *args: mistake.answer(requests.Copy(*args))})


def occupancy_mistake(mistake: Any) -> Answers:
    return Answers({**right(), "occupancy": _occupancy(mistake.answer)})


def _module(file: str) -> ModuleType:
    path = COURSE.assignment_dir(LAB_ID) / f"{file}.py"
    return load_module(path, f"lab04_{file}")


def tests_of(check_id: str) -> Iterator[tuple[str, Callable[..., None], dict[str, Any]]]:
    """(name, test, its parameters) of every test bound to a check."""
    for file in ("test_public", "test_hidden"):
        for name, test in vars(_module(file)).items():
            marks = getattr(test, "pytestmark", [])
            bound = next((mark.args[0] for mark in marks if mark.name == "check"), "")
            if bound == check_id:
                for case in _cases(marks):
                    yield name, test, case


def _cases(marks: list[pytest.Mark]) -> list[dict[str, Any]]:
    axes = [[{mark.args[0]: value} for value in mark.args[1]] for mark in marks if mark.name == "parametrize"]
    return [dict(pair for part in parts for pair in part.items()) for parts in itertools.product(*axes)]


def outcome(check_id: str, submission: Any, secret: bytes = SECRETS[0]) -> str:
    """``pass``, or the diagnosis (or message) of the first test of a check that fails."""
    for name, test, case in tests_of(check_id):
        try:
            test(submission=submission, judge=new_judge(check_id, secret, f"{name}{case}"), **case)
        except Verdict as verdict:
            return verdict.diagnosis.id if verdict.diagnosis else verdict.message
    return "pass"


# Kernels in NumPy


def coalesced(grid: int, block: int, src: np.ndarray, dst: np.ndarray, n: int) -> None:
    dst[:n] = src[:n]


def strided(grid: int, block: int, src: np.ndarray, dst: np.ndarray, n: int, stride: int) -> None:
    dst[:n] = src[::stride][:n]


def reduction(op: str, identity: float) -> Callable[..., None]:
    def kernel(grid: int, block: int, src: np.ndarray, dst: np.ndarray, n: int, rounds: int = 1) -> None:
        padded = np.full(-(-n // 32) * 32, identity)
        padded[:n] = src
        groups = padded.reshape(-1, 32)
        results = groups.sum(axis=1) if op == "sum" else groups.max(axis=1)
        dst[:n] = np.repeat(results, 32)[:n]

    return kernel


def right_kernels() -> dict[str, Callable[..., None]]:
    return {
        "copy_coalesced": coalesced,
        "copy_strided": strided,
        "warp_sum_shuffle": reduction("sum", 0.0),
        "warp_sum_shared": reduction("sum", 0.0),
        "warp_max_shuffle": reduction("max", -np.inf),
    }


@dataclass
class FakeWorker:
    """Runs `kernels` in place of a GPU's; times come from `ms`, by kernel and last argument, or by ``memcpy``."""

    kernels: dict[str, Callable[..., None]]
    ms: Callable[[dict[str, Any]], float] = lambda case: 1.0
    guards_intact: bool = True
    error: str | None = None
    cases: list[dict[str, Any]] = field(default_factory=list)

    def run(self, cubin: bytes, launches: list[CudaLaunch]) -> list[CudaResult]:
        results = []
        for launch in launches:
            arrays = [item.copy() for item in launch.arguments if isinstance(item, np.ndarray)]
            numbers = [item[1] for item in launch.arguments if not isinstance(item, np.ndarray)]
            self.kernels[launch.kernel](launch.grid, launch.block, *arrays, *numbers)
            results.append(CudaResult(tuple(arrays), self.guards_intact, self.error))
        return results

    def time(self, cubin: bytes, cases: list[dict[str, Any]], **options: Any) -> np.ndarray:
        self.cases = cases
        return np.array([[self.ms(case)] * options["repeats"] for case in cases])
