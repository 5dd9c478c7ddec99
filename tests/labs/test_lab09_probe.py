"""lab09's probe: inputs tell every known mistake, misleading text changes nothing, the reference names every kernel."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from grader.course import Course
from grader.judge import guard
from grader.judge.hopper import probing, schedule, zoo
from grader.judge.hopper.probing import ANSWERED, MISTAKES
from grader.kernels.zoo.counts import ptx_counts
from grader.modules import load_module

COURSE = Course.find(Path(__file__))
LAB = "lab09_fa3_probe"
FOLDER = COURSE.assignment_dir(LAB)
KERNELS, STORED = FOLDER / "test_hidden_kernels.py", FOLDER / "test_hidden_zoo.json.gz"


REFERENCE = load_module(COURSE.solution_dir(LAB) / "reference" / "probe.py", "lab09_reference_probe")
HIDDEN = load_module(FOLDER / "test_hidden.py", "lab09_hidden_checks")


def wrong(listings: list[zoo.Listing]) -> list[str]:
    """Fields of the reference's answers that aren't the truth."""
    return [
        f"{listing.name}.{listing.language}: {name} {answer[name]!r}, not {listing.truth[name]!r}"
        for listing in listings
        for answer in [REFERENCE.probe(listing.text)]
        for name in ANSWERED
        if answer[name] != listing.truth[name]
    ]


def test_reference_names_every_stored_kernel() -> None:
    assert wrong(zoo.stored(STORED)) == []


def test_reference_names_every_stored_kernel_in_misleading_text() -> None:
    rng = np.random.default_rng(9)
    assert wrong([zoo.misleading(listing, rng) for listing in zoo.stored(STORED)]) == []


@pytest.mark.slow
def test_reference_names_every_kernel_that_is_compiled_here() -> None:
    pytest.importorskip("triton", reason="triton isn't installed")
    assert wrong([*zoo.compiled(zoo.PUBLIC), *zoo.compiled(KERNELS)]) == []


def test_reference_of_no_code_is_nothing() -> None:
    for text in ("", "\n\n", "// wgmma.mma_async;\n", ".version 8.0\n.target sm_90\n", "no code at all"):
        answer = REFERENCE.probe(text)
        assert answer == {
            **dict.fromkeys(REFERENCE.COUNTED, 0),
            "register_limits": [],
            "specialised": False,
            "generation": "none",
        }


def test_misleading_text_holds_the_same_instructions_and_other_words() -> None:
    rng = np.random.default_rng(4)
    for listing in zoo.stored(STORED):
        changed = zoo.misleading(listing, rng)
        assert changed.text != listing.text
        assert not re.search(rf"\b{listing.symbol}(\b|_param)", changed.text)
        if listing.language == "ptx":
            assert ptx_counts(changed.text) == ptx_counts(listing.text)
        mentioned = sum(part in changed.text for parts in zoo.REMARKS.values() for part in parts)
        assert mentioned >= 4


def test_renamed_listing_keeps_its_code() -> None:
    listing = zoo.chosen(zoo.stored(STORED), ["copied"])[1]
    renamed = zoo.renamed(listing, "kernel_1")
    assert listing.symbol == "product_copied" not in renamed.text
    assert renamed.text.replace("kernel_1", "product_copied") == listing.text


SHOWN_BY = {
    "lookalikes": ("names_of_hopper", "local_declared", "prefetched", "tma_mma", "copied_tiles", "single_role"),
    "roles": HIDDEN.ROLES,
    "all": (),
}


def inputs(check: str) -> list[zoo.Listing]:
    listings = zoo.stored(STORED)
    if check == "lookalikes":
        rng = np.random.default_rng(2)
        return [zoo.misleading(listing, rng) for listing in zoo.chosen(listings, SHOWN_BY[check])]
    return zoo.chosen(listings, SHOWN_BY[check]) if SHOWN_BY[check] else listings


def shows(mistake: probing.Mistake, name: str, listings: list[zoo.Listing]) -> bool:
    """Whether some listing's true answer isn't all that the mistake could give."""
    return any(mistake.answer(listing, name) != listing.truth[name] for listing in listings)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.id}-{mistake.fields[0]}")
def test_inputs_show_every_mistake(mistake: probing.Mistake) -> None:
    check = "lookalikes" if mistake.id == "text-not-instructions" else "roles" if "roles" in mistake.id else "all"
    if mistake.fields == ("generation",):
        check = "all"
    listings = inputs(check)
    unseen = [name for name in mistake.fields if not shows(mistake, name, listings)]
    # What no kernel has: predicates on most instructions, and spills in PTX.
    allowed = {
        "guarded-missed": {"fp8", "wgmma", "mma", "cp_async", "spills", "setmaxnreg", "tcgen05", "tma_stores"},
        "ptx-unread": {"spills"},
    }
    assert set(unseen) <= allowed.get(mistake.id, set())
    assert set(unseen) != set(mistake.fields)


def test_zeros_are_wrong_in_every_check() -> None:
    for check in SHOWN_BY:
        assert any(listing.truth["mma"] or listing.truth["wgmma"] for listing in inputs(check))
    fresh = set(HIDDEN.FRESH)
    generations = {listing.truth["generation"] for listing in zoo.stored(STORED) if listing.name in fresh}
    assert generations == {"ampere", "hopper", "hopper-tma", "hopper-specialised", "blackwell"}


def test_explain_needs_every_answer_of_a_mistake() -> None:
    listings = zoo.chosen(zoo.stored(STORED), HIDDEN.ROLES)
    answers = [bool(listing.truth["setmaxnreg"]) for listing in listings]
    found = probing.explain(listings, answers, "specialised")
    assert found is not None
    assert found.id == "roles-by-setmaxnreg"
    assert probing.explain(listings, [not answers[0], *answers[1:]], "specialised") is None


# Plans


def test_register_split_gives_the_numbers_that_kernels_use() -> None:
    """(consumers, producer) to consumers' registers: FA4's flash_fwd_sm90.py, FA3's flash_fwd_kernel_sm90.h."""
    published = {(1, 56): 256, (2, 24): 240, (3, 32): 160, (2, 40): 232}
    assert {key: schedule.consumer_registers(schedule.Split(*key)) for key in published} == published


@pytest.mark.parametrize("consumers", [1, 2, 3, 4])
def test_register_split_fits_what_was_launched_and_uses_it(consumers: int) -> None:
    for producer in range(24, 128, 8):
        split = schedule.Split(consumers, producer)
        registers = schedule.consumer_registers(split)
        pool = (consumers + 1) * schedule.launched(split)
        assert producer + consumers * registers <= pool <= 65536 // 128
        assert registers == 256 or producer + consumers * (registers + 8) > pool


def test_stages_fit_and_one_more_does_not() -> None:
    for block_n in (64, 80, 128, 176):
        tiles = schedule.Tiles(128, block_n, 128, 2, 227 * 1024)
        count = schedule.stages(tiles)

        def taken(stages: int, block_n: int = block_n) -> int:
            return 128 * 128 * 2 + 8 + stages * (2 * block_n * 128 * 2 + 32)

        assert taken(count) <= tiles.shared < taken(count + 1)


def test_widest_tile_has_its_stages_and_the_next_has_not() -> None:
    for stages in (1, 2, 3):
        tiles = schedule.Tiles(128, 0, 128, 2, 227 * 1024, stages)
        keys = schedule.widest(tiles)
        assert schedule.stages(schedule.Tiles(128, keys, 128, 2, tiles.shared)) >= stages
        assert schedule.stages(schedule.Tiles(128, keys + 16, 128, 2, tiles.shared)) < stages


def played_out(race: schedule.Race) -> float:
    """The turns of `makespan`, event by event."""
    ready, cores, units = [0.0] * race.warpgroups, 0.0, 0.0
    for _ in range(race.steps):
        for group in range(race.warpgroups):
            cores = max(cores, ready[group]) + race.gemm
            units = max(units, cores) + race.exp
            ready[group] = units
    return units


@pytest.mark.parametrize("warpgroups", [1, 2, 3, 4])
def test_makespan_is_that_of_the_turns_played_out(warpgroups: int) -> None:
    for gemm, exp in ((2048.0, 1024.0), (512.0, 1024.0), (700.0, 700.0)):
        for steps in (0, 1, 2, 17):
            race = schedule.Race(steps, gemm, exp, warpgroups)
            assert schedule.makespan(race) == pytest.approx(played_out(race), rel=1e-12)


def test_plans_tell_every_mistake() -> None:
    """On the cases of the checks: lab09's test files."""
    splits = [schedule.Split(c, p, f) for c in (1, 2, 3, 4) for p in (24, 32, 40, 56) for f in (65536, 49152)]
    races = schedule.some_races(np.random.default_rng(1))
    steps = [schedule.Step(128, 128, d, rate) for d in (64, 128) for rate in (4096, 8192)]
    for mistake in schedule.SPLIT_MISTAKES:
        assert any(mistake.answer(split) != schedule.consumer_registers(split) for split in splits), mistake.id
    for mistake in schedule.RACE_MISTAKES:
        assert any(mistake.answer(race) != schedule.makespan(race) for race in races), mistake.id
    for mistake in schedule.CYCLE_MISTAKES:
        assert any(mistake.answer(step) != schedule.cycles(step) for step in steps), mistake.id


def test_probe_that_hangs_is_stopped_after_a_call_not_after_a_compilation() -> None:
    lab = COURSE.lab(LAB)
    probes = [spec for name, spec in lab.checks.items() if name.startswith("probe-")]
    assert len(probes) == 7
    for spec in probes:
        assert (spec.timeout_s or lab.limits.call_s) <= 20
        # The first run on a machine compiles the kernels meanwhile.
        assert guard.budget_s(spec, lab.limits) >= 400
