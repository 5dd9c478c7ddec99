"""Which device and profile a run gets, for machines that aren't this one."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_course import LAB_ID, LAB_TOML, write_course

from grader.course import Course
from grader.errors import UsageError
from grader.judge.requirements import Machine
from grader.profiles import Detection, GpuInfo
from grader.report.model import Kind
from grader.target import Target, choose_target


def gpu(name: str, capability: str, memory_mib: int) -> Detection:
    return Detection((GpuInfo(0, name, "GPU-0", memory_mib, "570.0", capability),))


H200 = gpu("NVIDIA H200", "9.0", 143771)
T4 = gpu("Tesla T4", "7.5", 15360)
UNKNOWN = gpu("NVIDIA Future", "12.0", 64000)
NONE = Detection((), "nvidia-smi is not installed")


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return write_course(tmp_path)


def choose(
    course: Course,
    monkeypatch: pytest.MonkeyPatch,
    found: Detection,
    device: str = "auto",
    profile: str | None = None,
) -> Target:
    monkeypatch.setattr("grader.target.detect", lambda: found)
    return choose_target(course, course.lab(LAB_ID), device, profile)


def test_choose_target_without_gpu_is_cpu_with_the_courses_profile(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = choose(course, monkeypatch, NONE)
    assert (target.device, target.profile.name, target.chosen_by) == ("cpu", "cpu", "course")
    assert target.device_name == "cpu (nvidia-smi is not installed)"


def test_choose_target_known_gpu_is_detected_with_its_profile(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    target = choose(course, monkeypatch, H200)
    assert (target.device, target.profile.name, target.chosen_by) == ("cuda", "h200", "detected")
    assert (target.device_name, target.gpu_sm, target.speed) == ("NVIDIA H200", 90, "")


def test_choose_target_unknown_gpu_is_used_but_its_speed_is_not_judged(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = choose(course, monkeypatch, UNKNOWN)
    assert (target.device, target.profile.name, target.chosen_by) == ("cuda", "cpu", "course")
    assert "grade profile calibrate" in target.speed


def test_choose_target_profile_of_another_gpu_judges_no_speed(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    target = choose(course, monkeypatch, H200, profile="a100-80gb")
    assert (target.device, target.profile.name, target.chosen_by) == ("cuda", "a100-80gb", "option")
    assert "isn't of this GPU (NVIDIA H200)" in target.speed


def test_choose_target_profile_on_a_laptop_is_held_to_it(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    target = choose(course, monkeypatch, NONE, profile="h100-sxm")
    assert (target.device, target.profile.sm, target.chosen_by) == ("cpu", 90, "option")


@pytest.mark.parametrize(("found", "profile"), [(T4, None), (NONE, "t4"), (T4, "t4")])
def test_choose_target_t4_grades_as_a_cpu_and_says_why(
    course: Course, monkeypatch: pytest.MonkeyPatch, found: Detection, profile: str | None
) -> None:
    target = choose(course, monkeypatch, found, profile=profile)
    assert (target.device, target.profile.name) == ("cpu", "cpu")
    assert "sm_75, and Triton compiles for sm_80 and later" in target.device_name


def test_choose_target_cpu_asked_for_ignores_the_gpu(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    target = choose(course, monkeypatch, H200, device="cpu")
    assert (target.device, target.gpu) == ("cpu", None)


@pytest.mark.parametrize(
    ("device", "profile", "message"),
    [
        ("cuda", None, "--device cuda: no GPU can be used here: nvidia-smi is not installed"),
        ("tpu", None, "Unknown device 'tpu'"),
        ("auto", "h20", "Unknown hardware profile 'h20'"),
    ],
)
def test_choose_target_impossible_wish_is_usage_error(
    course: Course, monkeypatch: pytest.MonkeyPatch, device: str, profile: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        choose(course, monkeypatch, NONE, device, profile)


@pytest.mark.parametrize(("version", "reason"), [("2.13.0+cpu", "built without CUDA"), ("2.13.0", "")])
def test_choose_target_torch_without_cuda_uses_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, reason: str
) -> None:
    course = write_course(tmp_path, lab_toml=LAB_TOML.replace('runtime = "numpy"', 'runtime = "torch"'))
    monkeypatch.setattr("grader.target.installed_version", lambda package: version)
    target = choose(course, monkeypatch, H200)
    assert reason in target.reason
    assert (target.device == "cpu") is bool(reason)


def machine(target: Target) -> Machine:
    return Machine.look(device=target.device, device_reason=target.reason, gpu_sm=target.gpu_sm, speed=target.speed)


def test_machine_unmet_names_what_is_missing(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = course.lab(LAB_ID).checks["small"].model_copy(update={"requires": ("gpu",)})
    cpu = machine(choose(course, monkeypatch, NONE))
    assert cpu.unmet(spec) == "needs an NVIDIA GPU (nvidia-smi is not installed)"
    assert machine(choose(course, monkeypatch, H200)).unmet(spec) == ""
    hopper = spec.model_copy(update={"requires": ("sm_90",)})
    assert machine(choose(course, monkeypatch, H200)).unmet(hopper) == ""
    assert machine(choose(course, monkeypatch, UNKNOWN)).unmet(hopper) == (
        "needs a Hopper GPU, sm_90; this one is sm_120"
    )


def test_machine_unmet_skips_speed_without_a_fitting_profile(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = course.lab(LAB_ID).checks["small"]
    unknown = machine(choose(course, monkeypatch, UNKNOWN))
    assert unknown.unmet(spec) == ""
    assert "calibrate" in unknown.unmet(spec.model_copy(update={"kind": Kind.SPEED}))


def test_machine_offline_skips_what_needs_the_network(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = course.lab(LAB_ID).checks["small"].model_copy(update={"requires": ("network",)})
    assert machine(choose(course, monkeypatch, NONE)).unmet(spec) == ""
    monkeypatch.setenv("GRADE_OFFLINE", "1")
    assert "GRADE_OFFLINE is set" in machine(choose(course, monkeypatch, NONE)).unmet(spec)
