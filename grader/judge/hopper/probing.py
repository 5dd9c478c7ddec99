"""Asks a submission's probe about listings and holds its answers to the truth; known mistakes explain wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grader.judge.hopper.zoo import Listing
from grader.kernels.zoo.counts import COUNTED
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

MODULE = "probe"
COUNTS = (*COUNTED, "register_limits")
ANSWERED = (*COUNTS, "specialised", "generation")
Answer = dict[str, Any]


@dataclass(frozen=True)
class Mistake:
    """A known mistake in some fields: what it would have answered for a listing, or a frozenset of what it could."""

    id: str
    text: str
    fields: tuple[str, ...]
    answer: Callable[[Listing, str], Any]


SUBSTRINGS = {
    "ptx": {
        "wgmma": ("wgmma.mma_async",),
        "mma": ("mma.sync",),
        "tcgen05": ("tcgen05.mma",),
        "tma_loads": ("cp.async.bulk.tensor",),
        "cp_async": ("cp.async.ca", "cp.async.cg"),
        "mbarriers": ("mbarrier.",),
        "setmaxnreg": ("setmaxnreg",),
        "spills": ("ld.local", "st.local"),
    },
    "sass": {
        "wgmma": ("HGMMA", "QGMMA"),
        "mma": ("HMMA", "QMMA"),
        "tcgen05": ("UTCHMMA", "UTCQMMA"),
        "tma_loads": ("UTMALDG",),
        "cp_async": ("LDGSTS",),
        "mbarriers": ("SYNCS",),
        "setmaxnreg": ("USETMAXREG",),
        "spills": ("STL", "LDL"),
    },
}


def _substring(listing: Listing, name: str) -> int:
    return sum(listing.text.count(part) for part in SUBSTRINGS[listing.language][name])


def _only(language: str) -> Callable[[Listing, str], Any]:
    return lambda listing, name: listing.truth[name] if listing.language == language else 0


def _with(name: str, *parts: str) -> Callable[[Listing, str], int]:
    """The true count and every mention of `parts`."""
    return lambda listing, _: listing.truth[name] + sum(listing.text.count(part) for part in parts)


def _by_target(listing: Listing, _: str) -> str:
    return {8: "ampere", 9: "hopper", 10: "blackwell"}[listing.capability // 10]


def _eight_bits_mean_hopper(listing: Listing, _: str) -> str:
    found = str(listing.truth["generation"])
    return "hopper" if found == "ampere" and listing.truth["fp8"] else found


def _tma_means_hopper(listing: Listing, _: str) -> str:
    found = str(listing.truth["generation"])
    return "hopper-tma" if found in ("ampere", "none") and listing.truth["tma_loads"] else found


def _tma_and_wgmma_mean_roles(listing: Listing, _: str) -> bool:
    return bool(listing.truth["tma_loads"] and (listing.truth["wgmma"] or listing.truth["tcgen05"]))


def _roles_by_features(listing: Listing, name: str) -> str:
    found = str(listing.truth["generation"])
    if not found.startswith("hopper"):
        return found
    return "hopper-specialised" if listing.truth["tma_loads"] else "hopper"


def _paths_joined(listing: Listing) -> Any:
    """Which paths are joined depends on the order of blocks: some producers are lost, in PTX alone."""
    found = bool(listing.truth["specialised"])
    return frozenset((False, True)) if found and listing.language == "ptx" else found


MISTAKES = (
    Mistake(
        "text-not-instructions",
        "Every mention is counted, in remarks, names, directives and strings too; count instructions.",
        tuple(SUBSTRINGS["ptx"]),
        _substring,
    ),
    Mistake("sass-unread", "Nothing is found in SASS; only PTX is read.", COUNTED, _only("ptx")),
    Mistake("ptx-unread", "Nothing is found in PTX; only SASS is read.", COUNTED, _only("sass")),
    Mistake(
        "guarded-missed",
        "Instructions with a predicate before them (@%p1, @!P0) are passed over.",
        COUNTED,
        lambda listing, name: listing.unguarded[name],
    ),
    Mistake(
        "prefetch-counted",
        "A prefetch through a tensor map moves a tile into L2 only; it's no load of the kernel's.",
        ("tma_loads",),
        _with("tma_loads", "cp.async.bulk.prefetch.tensor", "UTMAPF"),
    ),
    Mistake(
        "stores-counted-as-loads",
        "TMA's stores are counted as loads: of cp.async.bulk.tensor's two places the first is the destination.",
        ("tma_loads",),
        lambda listing, _: listing.truth["tma_loads"] + listing.truth["tma_stores"],
    ),
    Mistake(
        "waits-counted",
        "wgmma's fences, commits and waits are counted; they multiply nothing.",
        ("wgmma",),
        _with("wgmma", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group", "WARPGROUP."),
    ),
    Mistake(
        "bulk-copies-counted",
        "TMA's bulk copies, commits and waits are counted as Ampere's cp.async.",
        ("cp_async",),
        lambda listing, _: listing.text.count("cp.async.") if listing.language == "ptx" else listing.truth["cp_async"],
    ),
    Mistake(
        "eight-bit-products-missed",
        "Products of 8-bit floats aren't among the products: in SASS they have opcodes of their own, with a Q.",
        ("wgmma", "mma", "tcgen05"),
        lambda listing, name: (
            listing.truth[name] - (listing.truth["fp8"] if listing.language == "sass" and listing.truth[name] else 0)
        ),
    ),
    Mistake(
        "declared-not-touched",
        "Local memory is counted where it's declared; spilling is loading and storing there.",
        ("spills",),
        lambda listing, _: listing.text.count(".local ") if listing.language == "ptx" else listing.truth["spills"],
    ),
    Mistake(
        "generation-by-target",
        "The generation is read off the target; a kernel for sm_90 may multiply as on Ampere.",
        ("generation",),
        _by_target,
    ),
    Mistake(
        "eight-bits-mean-hopper",
        "Products of 8-bit floats are taken for Hopper's; Ada (sm_89) has them as mma.sync.",
        ("generation",),
        _eight_bits_mean_hopper,
    ),
    Mistake(
        "tma-means-hopper",
        "TMA alone is taken for Hopper's mainloop; what multiplies decides.",
        ("generation",),
        _tma_means_hopper,
    ),
    Mistake(
        "roles-by-features",
        "TMA and wgmma in one kernel are taken for producer and consumers; one role can use both.",
        ("generation",),
        _roles_by_features,
    ),
    Mistake(
        "roles-by-features",
        "TMA and wgmma in one kernel are taken for producer and consumers; one role can use both.",
        ("specialised",),
        _tma_and_wgmma_mean_roles,
    ),
    Mistake(
        "roles-by-setmaxnreg",
        "setmaxnreg is taken for a producer and consumers; follow who loads and who multiplies.",
        ("specialised",),
        lambda listing, _: bool(listing.truth["setmaxnreg"]),
    ),
    Mistake(
        "labels-without-scopes",
        "In PTX a label belongs to the braces around it, and inline code repeats its names: paths are joined that "
        "aren't.",
        ("specialised",),
        lambda listing, _: _paths_joined(listing),
    ),
)


def ask(judge: Judge, submission: Submission, listing: Listing) -> Answer:
    """The probe's answer, of the fields and types that the handout names; ends the check with `contract` otherwise."""
    answer = submission.call("probe", listing.text, module=MODULE)
    if not isinstance(answer, dict):
        judge.contract(f"probe returned a {type(answer).__name__}, expected a dict.")
    missing = [name for name in ANSWERED if name not in answer]
    if missing:
        judge.contract(f"probe's answer has no {missing[0]!r}.")
    for name in COUNTED:
        if isinstance(answer[name], bool) or not isinstance(answer[name], int):
            judge.contract(f"probe: {name} is a {type(answer[name]).__name__}, expected an int.")
    limits = answer["register_limits"]
    if not isinstance(limits, list) or not all(type(limit) is int for limit in limits):
        judge.contract("probe: register_limits must be a list of int.")
    if not isinstance(answer["specialised"], bool) or not isinstance(answer["generation"], str):
        judge.contract("probe: specialised must be a bool and generation a str.")
    return {name: answer[name] for name in ANSWERED}


def judge_probe(judge: Judge, submission: Submission, listings: Sequence[Listing], fields: Sequence[str]) -> None:
    """Hold the named fields of every listing's answer to the truth."""
    answers = [ask(judge, submission, listing) for listing in listings]
    judge.measure("listings", len(listings))
    judge.measure("compilers", sorted({f"triton {listing.triton}" for listing in listings}))
    wrong = {
        name: [at for at, listing in enumerate(listings) if answers[at][name] != listing.truth[name]] for name in fields
    }
    wrong = {name: places for name, places in wrong.items() if places}
    if not wrong:
        return
    named = {name: explain(listings, [answer[name] for answer in answers], name) for name in wrong}
    name = next((name for name in wrong if named[name]), next(iter(wrong)))
    at = wrong[name][0]
    message = f"{name} is wrong for {len(wrong[name])} of {len(listings)} listings"
    if not judge.hidden:
        first = listings[at]
        message += f"; {first.name} in {first.language.upper()}: {answers[at][name]!r}, expected {first.truth[name]!r}"
    others = [other for other in wrong if other != name]
    also = f" Also wrong: {', '.join(others)}." if others else ""
    judge.fail(f"{message}.{also}", diagnosis=named[name])


def explain(listings: Sequence[Listing], answers: Sequence[Any], name: str) -> Diagnosis | None:
    """The first mistake that would have answered all of this, of which something is wrong."""
    for mistake in MISTAKES:
        if name not in mistake.fields:
            continue
        if all(fits(mistake.answer(listing, name), answer) for listing, answer in zip(listings, answers, strict=True)):
            return Diagnosis(id=mistake.id, text=mistake.text)
    return None


def fits(predicted: Any, answer: Any) -> bool:
    """Whether an answer is what a mistake predicts, or among what it could be."""
    return answer in predicted if isinstance(predicted, frozenset) else bool(predicted == answer)
