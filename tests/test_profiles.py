"""Hardware profiles: the files of the course, the model's refusals, detection without a GPU."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from grader.errors import CourseError, UsageError
from grader.profiles import GpuInfo, HardwareProfile, detect, list_profiles, load_profile, match_profile

COURSE = Path(__file__).parent.parent
NAMES = (
    "cpu",
    "a10",
    "a100-40gb",
    "a100-80gb",
    "b200",
    "h100-pcie",
    "h100-sxm",
    "h200",
    "l4",
    "rtx3090",
    "rtx4090",
    "t4",
)
H200 = GpuInfo(0, "NVIDIA H200", "GPU-aaaa", 143771, "580.95.05", "9.0")

PER_CAPABILITY = {  # shared KiB a block and an SM, threads and blocks an SM
    "7.5": (64, 64, 1024, 16),
    "8.0": (163, 164, 2048, 32),
    "8.6": (99, 100, 1536, 16),
    "8.9": (99, 100, 1536, 24),
    "9.0": (227, 228, 2048, 32),
    "10.0": (227, 228, 2048, 32),
}


def test_list_profiles_holds_the_courses_cards() -> None:
    assert tuple(list_profiles(COURSE)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_profile_figures_are_sourced_and_plausible(name: str) -> None:
    profile = load_profile(COURSE, name)
    assert all(len(source) >= 7 for source in profile.sources.values())
    if profile.vendor == "cpu":
        assert profile.sm is None
        return
    limits = (
        profile.shared_kib_per_block,
        profile.shared_kib_per_sm,
        profile.max_threads_per_sm,
        profile.max_blocks_per_sm,
    )
    assert profile.compute_capability is not None
    assert limits == PER_CAPABILITY[profile.compute_capability]
    assert profile.registers_per_sm == 65536
    # Dense rates halve with every step up in width, so a sparse or float16-accumulate figure that slipped in shows.
    peaks = profile.peak_tflops
    if "tf32" in peaks:
        assert peaks["float16"] / peaks["tf32"] == pytest.approx(2.0, rel=0.02)
        assert peaks["float16"] == peaks["bfloat16"]
    if "float8" in peaks:
        assert peaks["float8"] / peaks["float16"] == pytest.approx(2.0, rel=0.01)
    assert 0 < profile.ridge_point("float16") < 500


@pytest.mark.parametrize(
    ("name", "flops_a_clock_a_sm", "boost_mhz"),
    [("l4", 1024, 2040), ("a10", 1024, 1695), ("rtx3090", 512, 1695), ("rtx4090", 512, 2520), ("a100-80gb", 2048, 1410),
     ("t4", 1024, 1590), ("h100-sxm", 4096, 1830), ("h100-pcie", 4096, 1620), ("h200", 4096, 1830)],
)  # fmt: skip
def test_profile_float16_peak_is_sms_times_rate_times_boost(name, flops_a_clock_a_sm, boost_mhz) -> None:
    profile = load_profile(COURSE, name)
    computed = profile.sms * flops_a_clock_a_sm * boost_mhz * 1e6 / 1e12
    assert profile.peak("float16") == pytest.approx(computed, rel=0.01)


def test_profile_measured_stays_below_the_datasheet() -> None:
    profile = load_profile(COURSE, "h200")
    assert profile.measured is not None
    assert profile.measured.copy_gbs < profile.bandwidth_gbs
    assert all(rate < profile.peak(dtype) for dtype, rate in profile.measured.gemm_tflops.items())


def test_profile_t4_is_graded_as_a_cpu_and_says_so() -> None:
    profile = load_profile(COURSE, "t4")
    assert not profile.runs_triton
    assert "Graded as a CPU" in profile.notes[0]
    assert load_profile(COURSE, "a10").runs_triton
    assert not load_profile(COURSE, "cpu").runs_triton


def test_roofline_arithmetic() -> None:
    profile = load_profile(COURSE, "a100-80gb")
    ridge = profile.ridge_point("float16")
    assert ridge == pytest.approx(312e12 / 2039e9)
    assert profile.attainable_tflops(ridge / 2, "float16") == pytest.approx(156.0)
    assert profile.attainable_tflops(ridge * 10, "float16") == 312.0
    assert profile.attainable_tflops(0.0, "float16") == 0.0


def test_roofline_unknown_dtype_and_bad_intensity_are_refused() -> None:
    profile = load_profile(COURSE, "t4")
    with pytest.raises(UsageError, match=r"t4 has no peak for 'bfloat16'\. Known: float16, float32"):
        profile.ridge_point("bfloat16")
    for bad in (-1.0, float("nan")):
        with pytest.raises(UsageError, match="at least 0"):
            profile.attainable_tflops(bad, "float16")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h20", "Did you mean h200?"),
        ("a100", "Did you mean a100-40gb or a100-80gb?"),
        ("RTX490", "Did you mean rtx4090?"),
        ("mi300x", "See `grade profile list`."),
        ("", "See `grade profile list`."),
    ],
)
def test_load_profile_unknown_name_suggests(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"Unknown hardware profile '{name}'. Available: cpu, a10") as caught:
        load_profile(COURSE, name)
    assert caught.value.hint == hint


def test_load_profile_name_that_climbs_out_is_unknown() -> None:
    with pytest.raises(UsageError, match="Unknown hardware profile"):
        load_profile(COURSE, "../assignments/course")


def edited(tmp_path: Path, before: str, after: str) -> Path:
    folder = tmp_path / "hardware_profiles"
    folder.mkdir()
    text = (COURSE / "hardware_profiles" / "h200.toml").read_text()
    assert before in text
    (folder / "h200.toml").write_text(text.replace(before, after, 1))
    return tmp_path


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("sms = 132", "sms = 132\ncores = 1", "`cores` is not a key that is known here"),
        ("sms = 132\n", "", "`sms` is missing"),
        ("sms = 132", 'sms = "132"', "`sms`: input should be a valid integer, found '132'"),
        ("bandwidth_gbs = 4800", "bandwidth_gbs = -1", "`bandwidth_gbs`: input should be greater than 0"),
        ("bandwidth_gbs = 4800", "bandwidth_gbs = inf", "`bandwidth_gbs`: input should be a finite number"),
        ("[sources]", "[thresholds.lab07.x]\ny = nan\n[sources]", "input should be a finite number, found nan"),
        ("float16 = 989.0", "fp16 = 989.0", "`peak_tflops.fp16"),
        ("memory_gib = \"NVIDIA", "memory_gb = \"NVIDIA", "`memory_gib` has no source"),
        ("[sources]", '[sources]\nspeed = "x"', "`speed` is not a figure of a profile"),
        ('compute_capability = "9.0"\n', "", "an NVIDIA card has one"),
        ("shared_kib_per_block = 227", "shared_kib_per_block = 229", "a block cannot have more than its SM"),
        ("max_blocks_per_sm = 32", "max_blocks_per_sm = 0", "max_blocks_per_sm: must be positive"),
        ('name = "h200"', 'name = "h20"', "expected the file's name 'h200'"),
        ("format_version = 1", "format_version = 2", "`format_version`"),
    ],
)  # fmt: skip
def test_load_profile_broken_file_names_the_key(tmp_path, before, after, message) -> None:
    root = edited(tmp_path, before, after)
    with pytest.raises(CourseError, match=re.escape(message)) as caught:
        load_profile(root, "h200")
    assert "h200.toml" in caught.value.message


def test_profile_hash_follows_every_figure(tmp_path: Path) -> None:
    original = load_profile(COURSE, "h200")
    changed = load_profile(edited(tmp_path, "bandwidth_gbs = 4800", "bandwidth_gbs = 4801"), "h200")
    assert original.sha256 == load_profile(COURSE, "h200").sha256 != changed.sha256


def test_profile_threshold_is_found_or_none(tmp_path: Path) -> None:
    more = "[thresholds.lab06_fa2_forward.speed-sdpa]\nratio = 1.1\n\n[sources]"
    profile = load_profile(edited(tmp_path, "[sources]", more), "h200")
    assert profile.threshold("lab06_fa2_forward", "speed-sdpa", "ratio") == 1.1
    assert profile.threshold("lab06_fa2_forward", "speed-sdpa", "other") is None
    assert profile.threshold("lab02", "speed-sdpa", "ratio") is None


@pytest.mark.parametrize(
    ("name", "memory_mib", "capability", "profile"),
    [
        ("NVIDIA H200", 143771, "9.0", "h200"),
        ("NVIDIA H100 80GB HBM3", 81559, "9.0", "h100-sxm"),
        ("NVIDIA H100 PCIe", 81559, "9.0", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", 40960, "8.0", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 81920, "8.0", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", 81920, "8.0", "a100-80gb"),
        ("Tesla T4", 15360, "7.5", "t4"),
        ("NVIDIA L4", 23034, "8.9", "l4"),
        ("NVIDIA A10", 23028, "8.6", "a10"),
        ("nvidia geforce rtx 4090", 24564, "8.9", "rtx4090"),
        ("NVIDIA GeForce RTX 3090", 24576, "8.6", "rtx3090"),
        ("NVIDIA B200", 183359, "10.0", "b200"),
        ("NVIDIA A10G", 23028, "8.6", None),
        ("NVIDIA GeForce RTX 3090 Ti", 24564, "8.6", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, "8.9", None),
        ("NVIDIA H200", 71885, "9.0", None),
        ("NVIDIA H200", 143771, "8.0", None),
        ("NVIDIA H200 NVL", 143771, "9.0", None),
        ("NVIDIA GB10", 0, "12.1", None),
    ],
)
def test_match_profile_by_name_memory_and_capability(name, memory_mib, capability, profile) -> None:
    found = match_profile(COURSE, GpuInfo(0, name, "GPU-1", memory_mib, "580", capability))
    assert (found.name if found else None) == profile


def test_match_profile_partitioned_card_has_none() -> None:
    assert match_profile(COURSE, H200) is not None
    assert match_profile(COURSE, GpuInfo(0, "NVIDIA H200", "GPU-1", 143771, "580", "9.0", mig=True)) is None


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a stand-in for nvidia-smi first on the PATH."""

    def install(script: str) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return install


TWO = (
    "cat <<'EOF'\n"
    "0, NVIDIA H200, GPU-aaaa-1, 143771, 580.95.05, 9.0, Disabled\n"
    "1, NVIDIA GB10, GPU-bbbb-2, [N/A], 580.95.05, 12.1, [N/A]\n"
    "EOF"
)


def test_detect_reads_every_gpu(smi) -> None:
    smi(TWO)
    found = detect()
    assert found.gpu == GpuInfo(0, "NVIDIA H200", "GPU-aaaa-1", 143771, "580.95.05", "9.0")
    assert found.gpus[1] == GpuInfo(1, "NVIDIA GB10", "GPU-bbbb-2", 0, "580.95.05", "12.1")


@pytest.mark.parametrize(
    ("visible", "indices"),
    [("1", [1]), ("1,0", [1, 0]), ("GPU-bbbb", [1]), ("0,9,1", [0]), ("", []), ("-1", []), ("NoDevFiles", [])],
)
def test_detect_honours_cuda_visible_devices(smi, monkeypatch, visible, indices) -> None:
    smi(TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = detect()
    assert [gpu.index for gpu in found.gpus] == indices
    assert (found.reason == "CUDA_VISIBLE_DEVICES hides every GPU") is (not indices)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'No devices were found' >&2; exit 6", "nvidia-smi failed: No devices were found"),
        ("exit 9", "nvidia-smi failed: exit code 9"),
        ("echo nonsense", "nvidia-smi lists no GPU"),
        ("sleep 20", "gave no answer within 0.2 s: the driver hangs"),
        ("printf 'bad \\377 bytes, x\\n'", "nvidia-smi lists no GPU"),
    ],
)
def test_detect_without_a_usable_answer_gives_a_reason(smi, script, reason) -> None:
    smi(script)
    found = detect(timeout_s=0.2 if "sleep" in script else 300.0)
    assert found.gpu is None
    assert reason in found.reason


def test_detect_without_the_tool_gives_a_reason(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert detect().reason == "nvidia-smi is not installed"


def test_profile_model_is_frozen() -> None:
    profile = load_profile(COURSE, "cpu")
    assert isinstance(profile, HardwareProfile)
    with pytest.raises(ValueError, match="frozen"):
        profile.sms = 1  # type: ignore[misc]
