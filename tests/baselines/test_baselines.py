"""Baselines: which can run here and why not, and that those that run are right."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from small_submission import isolation

from grader import baselines
from grader.baselines import NAMES, Absent, Baseline, catalog, find, open_baseline
from grader.baselines.opening import STAGED, OpenBaseline
from grader.errors import CourseError
from grader.judge import attention, gradients
from grader.judge.gradients import gradient_bounds
from grader.judge.oracle import AttentionCase
from grader.judge.precision import numpy_dtype
from grader.profiles import detect
from grader.sandbox.wire import Tensor

ON_CPU = ("sdpa_flash", "sdpa_math", "flex_attention")


class Recorder:
    """The part of a judge that `judge_forward` uses."""

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(1)

    def measure(self, name: str, value: object) -> None:
        pass

    def fail(self, message: str, **_: object) -> None:
        pytest.fail(message)


@pytest.fixture(scope="module", params=ON_CPU)
def opened(request: pytest.FixtureRequest) -> Iterator[OpenBaseline]:
    found = find(request.param, "forward", "cpu", dtype="float32")
    assert isinstance(found, Baseline)
    with open_baseline(found, isolation(), "cpu") as baseline:
        yield baseline


def case(seed: int = 3, **shape: object) -> AttentionCase:
    return attention.case(np.random.default_rng(seed), **{"q_len": 40, "head_dim": 32, "dtype": "float32"} | shape)  # type: ignore[arg-type]


def run(baseline: OpenBaseline, call: AttentionCase) -> np.ndarray:
    module = baseline.baseline.module
    value = baseline.call("forward", *attention.to_tensors(call, baseline.device), causal=call.causal, module=module)
    assert isinstance(value, Tensor)
    assert (value.dtype, value.shape) == (call.dtype, call.q.shape)
    return value.data


@pytest.mark.parametrize(
    "shape",
    [
        {"dtype": "float32"},
        {"dtype": "float32", "causal": True, "k_len": 40},
        {"dtype": "bfloat16", "q_heads": 4, "kv_heads": 2, "k_len": 72},
    ],
)
def test_forward_is_right_where_it_runs(opened: OpenBaseline, shape: dict[str, object]) -> None:
    call = case(**shape)
    attention.judge_forward(Recorder(), call, run(opened, call), None)  # type: ignore[arg-type]


def test_forward_is_differentiable(opened: OpenBaseline) -> None:
    if isinstance(find(opened.baseline.name, "backward", "cpu", dtype="float32"), Absent):
        pytest.skip("no backward pass on a CPU")
    call = case(q_len=24, causal=True)
    grad_o = np.random.default_rng(4).normal(size=call.q.shape).astype(np.float32).astype(np.float64)
    tensors = [
        Tensor(tensor.data, device="cpu", requires_grad=True) for tensor in attention.to_tensors(call, opened.device)
    ]
    cotangent = Tensor(grad_o.astype(numpy_dtype(call.dtype)), device="cpu")
    done = opened.gradient_call("forward", *tensors, cotangents=[cotangent], causal=True, module=opened.baseline.module)
    found = gradients.Gradients(*(np.asarray(done.gradients[name].data, np.float64) for name in "qkv"))
    assert not gradient_bounds(call, grad_o).breaches(found)


def decode_tensors(call: AttentionCase, page_size: int, table: np.ndarray) -> list[Tensor]:
    """q, both caches, block table and lengths of a decode step; the pages of sequence b are table[b], the rest NaN."""
    q, k, v = attention.to_tensors(call, "cpu")
    pages = table.shape[1]
    caches = []
    for tensor in (k, v):
        rows = tensor.data.transpose(0, 2, 1, 3)  # (batch, length, kv_heads, head_dim)
        padded = np.full((call.batch, pages * page_size, *rows.shape[2:]), np.nan, rows.dtype)
        padded[:, : call.k_len] = rows
        cache = np.full((table.max() + 2, page_size, *rows.shape[2:]), np.nan, rows.dtype)
        cache[table.reshape(-1)] = padded.reshape(-1, page_size, *rows.shape[2:])
        caches.append(cache)
    lengths = np.full(call.batch, call.k_len, np.int32)
    arrays = [q.data[:, :, 0], *caches, table.astype(np.int32), lengths]
    return [Tensor(np.ascontiguousarray(array), device="cpu") for array in arrays]


def test_decode_is_right_where_it_runs(opened: OpenBaseline) -> None:
    call = case(batch=2, q_heads=4, kv_heads=2, q_len=1, k_len=48)
    tensors = decode_tensors(call, 16, np.arange(6).reshape(2, 3))
    tensors[1:3] = [Tensor(np.ascontiguousarray(cache.data[:6]), device="cpu") for cache in tensors[1:3]]
    o = opened.call("decode", *tensors, module=opened.baseline.module)
    assert o.shape == (2, 4, 32)
    attention.judge_forward(Recorder(), call, o.data[:, :, None], None)  # type: ignore[arg-type]


def test_paged_decode_follows_the_table_and_the_lengths() -> None:
    found = find("sdpa_math", "paged_decode", "cpu", dtype="float32")
    assert isinstance(found, Baseline)
    call = case(batch=2, q_heads=4, kv_heads=2, q_len=1, k_len=41)
    tensors = decode_tensors(call, 16, np.array([[5, 0, 3], [1, 4, 2]]))
    caches = [Tensor(np.nan_to_num(cache.data, nan=9.0), device="cpu") for cache in tensors[1:3]]
    with open_baseline(found, isolation(), "cpu") as baseline:
        o = baseline.call("paged_decode", tensors[0], *caches, *tensors[3:], module=found.module)
    attention.judge_forward(Recorder(), call, o.data[:, :, None], None)  # type: ignore[arg-type]


def test_math_aligns_a_causal_mask_bottom_right_and_gives_zero_to_blind_rows() -> None:
    found = find("sdpa_math", "forward", "cpu", dtype="float32")
    assert isinstance(found, Baseline)
    with open_baseline(found, isolation(), "cpu") as baseline:
        for shape in ({"q_len": 20, "k_len": 50}, {"q_len": 50, "k_len": 20}):
            call = case(causal=True, **shape)
            attention.judge_forward(Recorder(), call, run(baseline, call), None)  # type: ignore[arg-type]


def test_judge_of_baselines_sees_a_wrong_one(opened: OpenBaseline) -> None:
    call = case()
    with pytest.raises(pytest.fail.Exception, match="O"):
        attention.judge_forward(Recorder(), call, run(opened, call) * 1.01, None)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_forward_on_a_gpu_is_right_or_absent_with_a_reason(name: str) -> None:
    gpu = detect().gpu
    if gpu is None:
        pytest.skip(f"needs an NVIDIA GPU ({detect().reason})")
    found = find(name, "forward", "cuda", dtype="bfloat16")
    if isinstance(found, Absent):
        pytest.skip(found.reason)
    with open_baseline(found, isolation(), "cuda") as baseline:
        for causal in (False, True):
            call = case(q_len=256, head_dim=128, dtype="bfloat16", causal=causal)
            attention.judge_forward(Recorder(), call, run(baseline, call), None)  # type: ignore[arg-type]


def test_find_names_every_baseline_as_there_or_absent_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalog._INSTALLED, "flash_attn", lambda: False)
    monkeypatch.setitem(catalog._INSTALLED, "flash_attn.cute", lambda: False)
    on_cpu = {name: find(name, "forward", "cpu") for name in NAMES}
    assert find("sdpa_flash", "paged_decode", "cuda", sm=90) == Absent("sdpa_flash", "reads no block table")
    assert find("flex_attention", "backward", "cpu") == Absent("flex_attention", "does no backward on a CPU")
    assert [name for name, found in on_cpu.items() if isinstance(found, Baseline)] == list(ON_CPU)
    assert {name: found.reason for name, found in on_cpu.items() if isinstance(found, Absent)} == {
        "sdpa_cudnn": "needs an NVIDIA GPU",
        "flash_attn": "flash_attn isn't installed",
        "flash_attn_cute": "flash_attn.cute isn't installed",
    }


@pytest.mark.parametrize(
    ("name", "device", "dtype", "sm", "reason"),
    [
        ("sdpa_flash", "cuda", "bfloat16", 90, ""),
        ("sdpa_flash", "cuda", "float32", 90, "takes bfloat16 and float16, not float32"),
        ("sdpa_flash", "cuda", "float16", 75, "has no kernels for sm_75, only for sm_80 and later"),
        ("sdpa_math", "cuda", "float32", 75, ""),
        ("sdpa_math", "cpu", "float8", None, "has no float8 code for a CPU"),
        ("flash_attn", "cuda", "float16", 89, ""),
        ("flash_attn", "cpu", "float16", None, "needs an NVIDIA GPU"),
        ("flex_attention", "cuda", "float16", 90, ""),
    ],
)
def test_find_says_why(
    monkeypatch: pytest.MonkeyPatch, name: str, device: str, dtype: str, sm: int | None, reason: str
) -> None:
    monkeypatch.setitem(catalog._INSTALLED, "flash_attn", lambda: True)
    found = find(name, "forward", device, dtype=dtype, sm=sm)
    assert (found.reason if isinstance(found, Absent) else "") == reason


def test_find_without_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert find("sdpa_math", "forward", "cpu") == Absent("sdpa_math", "torch isn't installed")


def test_find_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(CourseError, match="Did you mean sdpa_flash"):
        find("spda_flash", "forward", "cpu")
    with pytest.raises(CourseError, match="forward, backward, decode"):
        find("sdpa_flash", "sideways", "cpu")  # type: ignore[arg-type]


def test_installed_tells_the_two_flash_attn_packages_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "cute" / "interface.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert not catalog._has_flash_attn()
    assert not catalog._has_flash_attn_cute()
    (tmp_path / "cutlass.py").write_text("")
    importlib.invalidate_caches()
    assert catalog._has_flash_attn_cute()
    (tmp_path / "flash_attn" / "flash_attn_interface.py").write_text("")
    assert catalog._has_flash_attn()


def test_find_sees_that_a_package_is_where_no_worker_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "flash_attn_interface.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    found = find("flash_attn", "forward", "cuda", sm=90)
    assert isinstance(found, Absent)
    assert found.reason.startswith(f"flash_attn lies in {tmp_path}")


def test_every_baseline_has_its_staged_functions() -> None:
    for name in NAMES:
        baseline = catalog._BY_NAME[name]
        text = (STAGED / f"{baseline.module.replace('.', '/')}.py").read_text()
        for operation in baselines.OPERATIONS:
            there = f"def {baseline.function(operation)}(" in text
            assert there is (operation in baseline.operations), (name, operation)


def test_open_baseline_outlives_its_workers_and_removes_its_copy_at_the_end() -> None:
    found = find("sdpa_math", "forward", "cpu")
    assert isinstance(found, Baseline)
    with open_baseline(found, isolation(), "cpu") as baseline:
        copy = baseline._copy.path
        baseline.close()
        assert (copy / "peers" / "sdpa_math.py").is_file()
    assert not copy.exists()
    forgotten = open_baseline(found, isolation(), "cpu")
    copy = forgotten._copy.path
    del forgotten
    assert not copy.exists()


def test_a_baseline_names_the_library_that_its_kernels_are_of(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"nvidia-cudnn-cu12": "9.9", "flash-attn-4": "4.0.0b36"}
    monkeypatch.setattr(catalog, "installed_version", lambda name: installed.get(name, ""))
    releases = {name: catalog._BY_NAME[name].release() for name in NAMES}
    assert {name: release for name, release in releases.items() if release} == {
        "sdpa_cudnn": "nvidia-cudnn-cu12 9.9",
        "flash_attn_cute": "flash-attn-4 4.0.0b36",
    }
