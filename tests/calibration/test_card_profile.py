"""From measurements to a profile: simulated cards, no GPU."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from toy_course import write_course

from grader.calibration import calibrate, files
from grader.calibration.card_profile import (
    bandwidth,
    l2_estimate_mib,
    measured_table,
    new_profile,
    peaks,
    profile_name,
)
from grader.calibration.measure import Measurements
from grader.cli.main import invoke
from grader.course import Course
from grader.errors import ExitCode, InfrastructureError, UsageError
from grader.profiles import GpuInfo, HardwareProfile, load_profile, match_profile

MIB = 1 << 20
H200 = Measurements(
    gpu=GpuInfo(0, "NVIDIA H200", "GPU-aaaa", 143771, "580.95", "9.0"),
    attributes={
        "clock_khz": 1_980_000,
        "sms": 132,
        "memory_clock_khz": 3_201_000,
        "memory_bus_bits": 6144,
        "l2_bytes": 60 * MIB,
        "max_threads_per_sm": 2048,
        "capability_major": 9,
        "capability_minor": 0,
        "shared_bytes_per_sm": 228 * 1024,
        "registers_per_sm": 65536,
        "shared_bytes_per_block": 227 * 1024,
        "max_blocks_per_sm": 32,
    },
    copy_gbs=4271.3,
    gemm_tflops={"bfloat16": 788.4, "float16": 760.0, "tf32": 390.0, "float32": 51.0, "float8": 1402.0},
    cached=((8.0, 9100.0), (16.0, 9600.0), (32.0, 9000.0), (48.0, 7000.0), (64.0, 5200.0), (256.0, 4300.0)),
    versions={"torch": "2.11.0+cu130", "cuda": "13.0"},
    day=date(2026, 11, 29),
)
"""An H200 with the rates that were seen on one, and the attributes that its driver gives."""

GEFORCE = replace(
    H200,
    gpu=GpuInfo(0, "NVIDIA GeForce RTX 4070", "GPU-bbbb", 12282, "580.95", "8.9"),
    attributes=H200.attributes
    | {
        "clock_khz": 2_475_000,
        "sms": 46,
        "memory_clock_khz": 10_501_000,
        "memory_bus_bits": 192,
        "l2_bytes": 36 * MIB,
        "max_threads_per_sm": 1536,
        "max_blocks_per_sm": 24,
        "capability_major": 8,
        "capability_minor": 9,
        "shared_bytes_per_sm": 100 * 1024,
        "shared_bytes_per_block": 99 * 1024,
    },
    copy_gbs=455.0,
    gemm_tflops={"bfloat16": 54.0, "float16": 54.5, "tf32": 27.0, "float32": 25.0},
)


def test_peaks_of_a_known_architecture_are_roofs_over_what_was_measured() -> None:
    table, source = peaks(H200)
    assert table["bfloat16"] == pytest.approx(4096 * 132 * 1.98e9 / 1e12, rel=1e-3)
    assert table["float8"] == pytest.approx(2 * table["float16"], rel=1e-3)
    assert table["tf32"] == pytest.approx(table["float16"] / 2, rel=1e-3)
    assert table["float32"] == pytest.approx(256 * 132 * 1.98e9 / 1e12, rel=1e-3)
    assert all(table[name] > rate for name, rate in H200.gemm_tflops.items())
    assert "measured by grade profile calibrate on 2026-11-29" in source


def test_peaks_geforce_takes_the_half_rate_until_a_gemm_beats_it() -> None:
    assert peaks(GEFORCE)[0]["float16"] == pytest.approx(512 * 46 * 2.475e9 / 1e12, rel=1e-3)
    faster = replace(GEFORCE, gemm_tflops={"float16": 95.0})
    assert peaks(faster)[0] == {"float16": pytest.approx(1024 * 46 * 2.475e9 / 1e12, rel=1e-3)}


@pytest.mark.parametrize(
    "odd",
    [
        {"attributes": H200.attributes | {"capability_major": 14}},
        {"attributes": H200.attributes | {"clock_khz": 0}},
        {"gemm_tflops": {"bfloat16": 5000.0}},
    ],
)
def test_peaks_without_a_roof_that_fits_stand_above_the_measured_rates(odd: dict[str, object]) -> None:
    found = replace(H200, **odd)  # type: ignore[arg-type]
    table, source = peaks(found)
    assert table == {name: pytest.approx(1.3 * rate, rel=1e-3) for name, rate in found.gemm_tflops.items()}
    assert source.startswith("1.3 times the GEMM rate")


def test_bandwidth_comes_from_bus_and_clock_where_the_copy_agrees() -> None:
    assert bandwidth(H200)[0] == pytest.approx(2 * 6144 / 8 * 3.201, rel=1e-3)
    absurd = replace(H200, attributes=H200.attributes | {"memory_clock_khz": 100_000})
    assert bandwidth(absurd)[0] == pytest.approx(1.3 * 4271.3, rel=1e-3)
    untold = replace(H200, attributes=H200.attributes | {"memory_bus_bits": 0})
    assert bandwidth(untold)[0] == pytest.approx(1.3 * 4271.3, rel=1e-3)


def test_l2_estimate_is_the_largest_copy_that_is_clearly_faster_than_memory() -> None:
    assert l2_estimate_mib(H200.cached) == 48
    with pytest.raises(InfrastructureError, match="no cache was seen"):
        l2_estimate_mib(((8.0, 4400.0), (64.0, 4300.0), (256.0, 4300.0)))
    with pytest.raises(InfrastructureError, match="expected at least 3"):
        l2_estimate_mib(((8.0, 9000.0),))


def test_new_profile_without_the_drivers_l2_takes_the_estimate() -> None:
    table = new_profile(replace(H200, attributes=H200.attributes | {"l2_bytes": 0}), "card")
    assert (table["l2_mib"], "largest copy" in table["sources"]["l2_mib"]) == (48, True)
    nothing = replace(H200, attributes=H200.attributes | {"l2_bytes": 0}, cached=((1.0, 1.0), (2.0, 1.0), (4.0, 1.0)))
    with pytest.raises(InfrastructureError, match="L2 size"):
        new_profile(nothing, "card")


def test_new_profile_without_a_needed_attribute_says_which() -> None:
    with pytest.raises(InfrastructureError, match="registers_per_sm"):
        new_profile(replace(H200, attributes=H200.attributes | {"registers_per_sm": 0}), "card")


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada-generation"),
        ("NVIDIA GeForce RTX 4070", "rtx-4070"),
        ("Tesla V100-SXM2-16GB", "tesla-v100-sxm2-16gb"),
    ],
)
def test_profile_name_from_the_drivers(driver: str, name: str) -> None:
    assert profile_name(driver) == name


def test_created_profile_is_read_back_and_matches_its_card(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    files.create_profile(course.root, new_profile(GEFORCE, "rtx-4070"))
    profile = load_profile(course.root, "rtx-4070")
    assert match_profile(course.root, GEFORCE.gpu) == profile
    assert (profile.sms, profile.shared_kib_per_block, profile.l2_mib) == (46, 99, 36)
    assert profile.measured is not None
    assert profile.measured.copy_gbs == 455
    assert "2026-11-29" in profile.measured.source
    with pytest.raises(UsageError, match="there already"):
        files.create_profile(course.root, new_profile(GEFORCE, "rtx-4070"))


def test_update_measured_changes_the_rates_and_keeps_the_rest(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    path = course.root / "hardware_profiles" / "h200.toml"
    before, lines = load_profile(course.root, "h200"), path.read_text().splitlines()
    files.update_measured(course.root, "h200", measured_table(H200))
    after = load_profile(course.root, "h200")
    assert after.measured is not None
    assert after.measured.gemm_tflops["float8"] == 1402
    assert after.model_copy(update={"measured": before.measured}) == before
    kept = [line for line in lines if line not in path.read_text().splitlines()]
    assert all(line.startswith(("copy_gbs", "source", "bfloat16 = 685")) for line in kept), kept


def test_update_measured_adds_the_table_where_there_was_none(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    files.update_measured(course.root, "l4", measured_table(H200))
    measured = load_profile(course.root, "l4").measured
    assert measured is not None
    assert measured.copy_gbs == 4271


def test_broken_table_leaves_the_file_alone(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    path = course.root / "hardware_profiles" / "h200.toml"
    before = path.read_text()
    with pytest.raises(InfrastructureError, match="isn't a profile"):
        files.update_measured(course.root, "h200", measured_table(H200) | {"copy_gbs": -1.0})
    assert path.read_text() == before


def test_choose_name_knows_this_card_and_refuses_another_cards(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    assert calibrate.choose_name(course, H200.gpu, None) == ("h200", False)
    assert calibrate.choose_name(course, GEFORCE.gpu, None) == ("rtx-4070", True)
    assert calibrate.choose_name(course, GEFORCE.gpu, "My-Card") == ("my-card", True)
    for asked, told in (("l4", "another card"), ("a/b", "can't name a profile")):
        with pytest.raises(UsageError, match=told):
            calibrate.choose_name(course, GEFORCE.gpu, asked)
    with pytest.raises(UsageError, match="a profile already: h200"):
        calibrate.choose_name(course, H200.gpu, "mine")


@pytest.fixture
def course_with_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    """A course on a machine with the GeForce card, whose measuring is simulated."""
    course = write_course(tmp_path)
    monkeypatch.setenv("GRADE_COURSE", str(course.root))
    monkeypatch.setattr(calibrate, "card_here", lambda: GEFORCE.gpu)
    monkeypatch.setattr(calibrate, "measure", lambda gpu, isolation, step: GEFORCE)
    monkeypatch.setattr(calibrate, "choose_isolation", lambda level: None)
    return course


def test_calibrate_command_writes_an_unknown_cards_profile(
    course_with_card: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["profile", "calibrate", "--dry-run"]) == ExitCode.OK
    assert match_profile(course_with_card.root, GEFORCE.gpu) is None
    assert invoke(["profile", "calibrate"]) == ExitCode.OK
    assert isinstance(match_profile(course_with_card.root, GEFORCE.gpu), HardwareProfile)
    assert "54.0 TFLOP/s" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["profile", "calibrate"], ["profile", "thresholds", "lab06"]])
def test_command_without_a_gpu_says_so_and_what_to_do(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    from grader.profiles import Detection

    none = Detection((), "nvidia-smi is not installed")
    monkeypatch.setattr("grader.calibration.calibrate.detect", lambda: none)
    with pytest.raises(UsageError, match="No GPU to measure: nvidia-smi is not installed") as caught:
        invoke(command)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint
