"""Hidden checks of lab05."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from grader.judge import Judge, Submission, check
from grader.judge.anatomy import (
    boundary,
    callpath,
    calls,
    course_call,
    kernel_choice,
    predictions,
    recipe,
    trace,
)
from grader.judge.anatomy.calls import Call, dense, flash_call, permuted
from grader.sandbox.failures import SubmissionRaised


@pytest.fixture(scope="module")
def recorder(submission: Submission) -> Iterator[boundary.Recorder]:
    """The real package in a worker of its own; loading torch takes seconds, so the checks of this file share it."""
    with boundary.recorder(submission) as opened:
        yield opened


def predict(submission: Submission, judge: Judge, recorder: boundary.Recorder, call: Call, what: str) -> None:
    """One call: what the submission predicts against what the real package sends."""
    predictions.judge_prediction(judge, call, submission.call("predict_boundary", call), recorder.record(call), what)


def sizes(rng: np.random.Generator) -> tuple[int, int, int]:
    """Batch and two lengths, different from each other and from any head dimension used here."""
    seqlen_q = int(rng.integers(33, 60)) * 2 + 1
    return int(rng.integers(2, 5)), seqlen_q, seqlen_q + 2 * int(rng.integers(20, 60))


# The trace


def hops_of(submission: Submission, judge: Judge) -> list[trace.Hop]:
    raw = submission.read_file(trace.FILE_NAME)
    if raw is None:
        judge.fail("trace.toml is missing.")
    try:
        return trace.read_trace(raw)
    except trace.TraceError as error:
        judge.fail(f"trace.toml: {error}.")


@check("trace-chain")
def test_trace_reaches_the_kernel(submission: Submission, judge: Judge) -> None:
    """Every role, in the real source, and on the path of the call in the handout rather than of another."""
    source = boundary.require_source()
    hops = hops_of(submission, judge)
    trace.judge_chain(judge, source, hops, tuple(trace.ROLES))
    trace.judge_path(judge, hops)


EVIDENCE = {
    "default-scale": r"softmax_scale is None",
    "pad-head-dim": r"functional\.pad\(",
    "slice-output": r"\[\.\.\., :head_size_og\]",
    "copy-strided-rows": r"maybe_contiguous\(",
    "check-dtype": r"kFloat16 \|\| q_dtype == torch::kBFloat16",
    "check-head-groups": r"num_heads % num_heads_k == 0",
    "causal-becomes-window": r"if \(is_causal\) \{ window_size_right = 0; \}",
    "split-or-not": r"run_mha_fwd_splitkv_dispatch",
    "element-type": r"FP16_SWITCH\(",
    "round-up-head-dim": r"HEADDIM_SWITCH\(",
    "tile-sizes": r"Flash_fwd_kernel_traits<Headdim, *\d+, *\d+",
    "grid": r"dim3 grid",
    "local-mask": r"LOCAL_SWITCH\(",
    "shared-memory-limit": r"cudaFuncAttributeMaxDynamicSharedMemorySize",
}


@check("trace-decisions")
def test_decisions_stand_where_they_are_made(submission: Submission, judge: Judge) -> None:
    """The code that makes each decision is looked for in the definition of the hop that claims it."""
    source = boundary.require_source()
    hops = hops_of(submission, judge)
    defined = trace.judge_chain(judge, source, hops, tuple(trace.ROLES))
    trace.judge_decisions(judge, hops[: len(defined)], defined, EVIDENCE)


# The boundary


@check("boundary-scale")
@pytest.mark.parametrize("scale", [None, 0.0, 0.3125, -0.5, 1])
@pytest.mark.parametrize("head_dim", [59, 72])
def test_scale_is_predicted(
    submission: Submission, judge: Judge, recorder: boundary.Recorder, head_dim: int, scale: float | None
) -> None:
    """0.0 is a scale; without one it's that of the caller's head dimension."""
    batch, seqlen_q, seqlen_k = sizes(judge.rng())
    k = dense(batch, seqlen_k, 4, head_dim)
    call = flash_call(dense(batch, seqlen_q, 4, head_dim), k, dict(k), softmax_scale=scale)
    predict(submission, judge, recorder, call, "a scale")


@check("boundary-padding")
@pytest.mark.parametrize("head_dim", [59, 65, 73, 100, 127, 200])
def test_padding_is_predicted(submission: Submission, judge: Judge, recorder: boundary.Recorder, head_dim: int) -> None:
    """Odd, even and large head dimensions; some next multiples of 8 are neither powers of two nor multiples of 16."""
    batch, seqlen_q, seqlen_k = sizes(judge.rng())
    k = dense(batch, seqlen_k, 4, head_dim, dtype="bfloat16")
    call = flash_call(dense(batch, seqlen_q, 4, head_dim, dtype="bfloat16"), k, dict(k), causal=True)
    predict(submission, judge, recorder, call, "a padded head dimension")


def layout_call(rng: np.random.Generator, layout: str) -> Call:
    """A call whose tensors lie in memory in an unusual way; 4 query heads."""
    batch, seqlen_q, seqlen_k = sizes(rng)
    q, k = dense(batch, seqlen_q, 4, 72), dense(batch, seqlen_k, 2, 72)
    if layout == "transposed":
        q, k = (permuted((batch, h, s, 72), (0, 2, 1, 3)) for h, s in ((4, seqlen_q), (2, seqlen_k)))
    elif layout == "strided-rows":
        q = permuted((batch, 4, 72, seqlen_q), (0, 3, 1, 2))
    elif layout == "strided-and-padded":
        q, k = permuted((batch, 4, 59, seqlen_q), (0, 3, 1, 2)), permuted((batch, 2, seqlen_k, 59), (0, 2, 1, 3))
    elif layout == "shared-keys":  # stride 0: one sequence of keys for the whole batch
        k = {**k, "strides": [0, *k["strides"][1:]]}
    elif layout == "every-second-token":
        k = {**k, "strides": [2 * k["strides"][0], 2 * k["strides"][1], *k["strides"][2:]]}
    elif layout == "qkv-packed":
        return {
            "function": "flash_attn_qkvpacked_func",
            "tensors": {"qkv": dense(batch, seqlen_q, 3, 4, 72)},
            "arguments": {},
        }
    elif layout == "kv-packed":
        tensors = {"q": q, "kv": dense(batch, seqlen_k, 2, 2, 72)}
        return {"function": "flash_attn_kvpacked_func", "tensors": tensors, "arguments": {}}
    return flash_call(q, k, dict(k))


LAYOUTS = (
    "grouped", "transposed", "strided-rows", "strided-and-padded", "shared-keys", "every-second-token", "qkv-packed",
    "kv-packed",
)  # fmt: skip


@check("boundary-layout")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_is_predicted(submission: Submission, judge: Judge, recorder: boundary.Recorder, layout: str) -> None:
    """Strides at the boundary, and which tensors were copied on the way."""
    predict(submission, judge, recorder, layout_call(judge.rng(), layout), "an unusual layout")


@check("boundary-masks")
@pytest.mark.parametrize(
    ("causal", "window"), [(True, None), (True, (64, 0)), (True, (40, 17)), (False, (31, 9)), (False, (100_000, -1))]
)
def test_masks_are_predicted(
    submission: Submission,
    judge: Judge,
    recorder: boundary.Recorder,
    causal: bool,
    window: tuple[int, int] | None,
) -> None:
    """Causal alone, with windows, a window without causal, and one longer than the keys."""
    batch, seqlen_q, seqlen_k = sizes(judge.rng())
    k = dense(batch, seqlen_k, 4, 64)
    arguments: dict[str, Any] = {"causal": causal} | ({"window_size": list(window)} if window else {})
    call = flash_call(dense(batch, seqlen_q, 4, 64), k, dict(k), **arguments)
    predict(submission, judge, recorder, call, "a mask")


@check("boundary-results")
@pytest.mark.parametrize("dropout", [0.0, 0.125])
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("head_dim", [64, 90])
def test_results_are_predicted(
    submission: Submission, judge: Judge, recorder: boundary.Recorder, head_dim: int, wanted: bool, dropout: float
) -> None:
    """What is asked of the extension, how many values come back, and the output's shape."""
    batch, seqlen_q, seqlen_k = sizes(judge.rng())
    k = dense(batch, seqlen_k, 4, head_dim)
    arguments = {"dropout_p": dropout, "return_attn_probs": wanted}
    call = flash_call(dense(batch, seqlen_q, 4, head_dim), k, dict(k), **arguments)
    predict(submission, judge, recorder, call, "results")


@check("boundary-varlen")
@pytest.mark.parametrize("packing", ["none", "kv", "qkv"])
def test_varlen_is_predicted(submission: Submission, judge: Judge, recorder: boundary.Recorder, packing: str) -> None:
    """Three-dimensional tensors, running totals of lengths, and their packed varieties."""
    rng = judge.rng()
    lengths = [int(x) for x in rng.integers(5, 60, 3)]
    totals = [0, *(int(x) for x in np.cumsum(lengths))]
    heads, head_dim = 4, 59 if packing == "none" else 72
    q, kv = dense(totals[-1], heads, head_dim), dense(totals[-1], 2, 2, head_dim)
    arguments: dict[str, Any] = {"cu_seqlens_q": totals, "cu_seqlens_k": totals}
    arguments |= {"max_seqlen_q": max(lengths), "max_seqlen_k": max(lengths) + 3, "causal": True}
    if packing == "qkv":
        tensors = {"qkv": dense(totals[-1], 3, heads, head_dim)}
        arguments = {"cu_seqlens": totals, "max_seqlen": max(lengths), "softmax_scale": 0.25}
    else:
        tensors = {"q": q, "kv": kv} if packing == "kv" else {"q": q, "k": q, "v": q}
    function = "flash_attn_varlen_func" if packing == "none" else f"flash_attn_varlen_{packing}packed_func"
    call = {"function": function, "tensors": tensors, "arguments": arguments}
    predict(submission, judge, recorder, call, "varying lengths")


# The kernel


def kernel_calls(rng: np.random.Generator) -> list[Call]:
    """Head dimensions on both sides of every template's edge, and every way in which masks combine."""
    found = []
    for head_dim in (24, 32, 40, 59, 64, 72, 96, 104, 128, 136, 192, 200, 250, 256):
        dtype = str(rng.choice(["float16", "bfloat16"]))
        q = dense(8, 512 + int(rng.integers(0, 100)), 32, head_dim, dtype=dtype)
        found.append(flash_call(q, q, q, causal=bool(rng.integers(2))))
    masks: list[tuple[int, int, dict[str, Any]]] = [
        (1024, 1024, {"causal": True, "window_size": [128, 0]}),
        (1024, 1024, {"causal": True, "window_size": [128, 64]}),
        (1024, 1024, {"causal": True, "window_size": [-1, 64]}),
        (1024, 1024, {"causal": True, "window_size": [4096, 0]}),
        (1024, 1024, {"window_size": [-1, 0]}),
        (1024, 1024, {"window_size": [200, 100]}),
        (1024, 1024, {"window_size": [4096, 4096]}),
        (1024, 1024, {"window_size": [1024, -1]}),
        (1024, 1024, {"window_size": [1023, 1023]}),
        (1, 2048, {"causal": True}),
        (1, 2048, {"causal": True, "window_size": [300, 0]}),
    ]
    for seqlen_q, seqlen_k, arguments in masks:
        q, k = dense(64, seqlen_q, 32, 80), dense(64, seqlen_k, 32, 80)
        found.append(flash_call(q, k, k, **arguments))
    return found


@check("kernel-choice")
def test_kernel_is_predicted(submission: Submission, judge: Judge) -> None:
    """The .cu file, the template and its arguments, by the rules of mha_fwd, set_params_fprop and run_mha_fwd."""
    asked = kernel_calls(judge.rng())
    told = [submission.call("predict_kernel", call) for call in asked]
    kernel_choice.judge_choices(judge, asked, told)


# The adapter


def course_tensors(rng: np.random.Generator, head_dim: int = 64) -> tuple[calls.Described, ...]:
    """q and k in the course's layout: one contiguous, one a view of (batch, seqlen, heads, head_dim) memory."""
    batch, seqlen_q, seqlen_k = sizes(rng)
    return dense(batch, 4, seqlen_q, head_dim), permuted((batch, seqlen_k, 2, head_dim), (0, 2, 1, 3))


@check("course-call")
@pytest.mark.parametrize(
    ("scale", "causal", "window"),
    [(None, False, None), (0.0, True, None), (0.4, False, (50, 7)), (-0.5, True, (33, 0))],
)
def test_course_call_reaches_the_extension(
    submission: Submission,
    judge: Judge,
    recorder: boundary.Recorder,
    scale: float | None,
    causal: bool,
    window: tuple[int, int] | None,
) -> None:
    """The call is made of the real package; tensors, scale and mask arrive as the course means them, none copied."""
    q, k = course_tensors(judge.rng())
    told = submission.call("course_call", q, k, dict(k), causal=causal, scale=scale, window=window)
    course_call.judge_course_call(judge, recorder, told, (q, k, k), causal=causal, scale=scale, window=window)


# The recorder isn't needed for a refusal, but a check that is skipped in part would pass as a whole.
@check("course-call")
@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize("fault", ["dtype", "mixed", "head-dim", "groups"])
def test_course_call_refuses_what_the_kernel_would(submission: Submission, judge: Judge, fault: str) -> None:
    """float32, two dtypes, a head dimension above 256, heads that don't divide."""
    q, k = course_tensors(judge.rng(), head_dim=320 if fault == "head-dim" else 64)
    if fault == "dtype":
        q, k = {**q, "dtype": "float32"}, {**k, "dtype": "float32"}
    elif fault == "mixed":
        k = {**k, "dtype": "bfloat16"}
    elif fault == "groups":
        k = {**k, "shape": [k["shape"][0], 3, *k["shape"][2:]]}
    try:
        submission.call("course_call", q, k, dict(k))
    except SubmissionRaised as raised:
        if raised.type_name != "ValueError":
            judge.fail(f"course_call raised {raised.type_name} for what the kernel refuses; expected ValueError.")
    else:
        course_call.fail_accepted(judge)


# The build


@check("build-results")
def test_built_module_is_right(submission: Submission, judge: Judge) -> None:
    """Log-sum-exp of rows near 0 and far from it, with masked entries and masked rows; pairs of odd shapes."""
    (step,) = recipe.build(submission, [None])
    recipe.judge_built(judge, step, "The first build")
    rng = judge.rng()
    scores = (rng.standard_normal((9, 37)) * np.array([1, 20, 1, 1, 1, 1, 1, 1, 1])[:, None]).astype(np.float32)
    scores[2] += 900
    scores[3] -= 900
    scores[4, ::2] = -np.inf
    with recipe.extension(judge, submission, step) as worker:
        recipe.judge_lse(judge, worker, scores)
        scores[5] = scores[8] = -np.inf
        recipe.judge_lse(judge, worker, scores)
        for seqlen_q, seqlen_k in ((7, 3), (1, 9), (5, 5)):
            got = worker.call("extension_pairs", seqlen_q, seqlen_k, True, module=recipe.MODULE)
            if got != sum(max(i + seqlen_k - seqlen_q + 1, 0) for i in range(seqlen_q)):
                judge.fail("visible_pairs of the built module is wrong.")


@check("build-incremental")
def test_second_build_compiles_what_changed(submission: Submission, judge: Judge) -> None:
    """Nothing, one source, one header: which objects are new, and whether the module is."""
    touched = {"file": "src/row_lse.c", "old": "", "new": "\n/* touched */\n"}
    version = {"file": "src/pairs.h", "old": "MINI_VERSION 1", "new": "MINI_VERSION 2"}
    steps = recipe.build(submission, [None, None, touched, version])
    for number, step in enumerate(steps, start=1):
        recipe.judge_built(judge, step, f"Build {number}")
    for step, changed in zip(steps[1:], (None, "src/row_lse.c", "src/pairs.h"), strict=True):
        recipe.judge_rebuild(judge, step, changed)
    with recipe.extension(judge, submission, steps[-1]) as worker:
        if worker.call("extension_version", module=recipe.MODULE) != 2:
            judge.fail("The module still holds what was compiled before its header changed.")


@check("arch-restriction")
def test_flags_follow_the_request(submission: Submission, judge: Judge) -> None:
    """Suffixes, two-digit numbers, and PTX only where it's asked for."""
    asked = ["8.0", "8.6", "9.0a", "10.0+PTX"]
    others = submission.call("flags", ["8.9"], module=recipe.MODULE)
    recipe.judge_flags(judge, asked, submission.call("flags", asked, module=recipe.MODULE), others)


@check("arch-restriction")
def test_list_is_read_from_the_environment(submission: Submission, judge: Judge) -> None:
    """Semicolons, blanks, and an entry that's there twice."""
    default = submission.call("architectures", {}, module=recipe.MODULE)
    cases = {"8.6;9.0a": ["8.6", "9.0a"], " 12.0+PTX  8.9 ": ["12.0+PTX", "8.9"], "9.0;8.0;9.0": ["9.0", "8.0"]}
    for text, want in cases.items():
        got = submission.call("architectures", {"TORCH_CUDA_ARCH_LIST": text}, module=recipe.MODULE)
        recipe.judge_architectures(judge, got, want, default)


@check("arch-restriction")
@pytest.mark.parametrize("name", ["7.5", "6.1+PTX", "volta", "80"])
def test_unfit_architecture_is_refused(submission: Submission, judge: Judge, name: str) -> None:
    """Too old, or no architecture at all."""
    recipe.judge_refusal(judge, submission, name)


# The call path


@check("callpath-measure")
def test_calls_are_timed_one_by_one(submission: Submission, judge: Judge) -> None:
    """A call and a clock of the judge's: slow first calls, then ragged ones."""
    rng = judge.rng()
    warmup, repeats = int(rng.integers(5, 15)), int(rng.integers(30, 50))
    durations = [*rng.integers(10**6, 10**7, warmup).tolist(), *rng.integers(10**3, 10**5, repeats).tolist()]
    timed = callpath.Timed(durations)
    hosted = {"call": submission.host(timed.call, ("__call__",)), "clock": submission.host(timed.clock, ("__call__",))}
    call = hosted.pop("call")
    got = submission.call("time_calls", call, repeats=repeats, warmup=warmup, module="callpath", **hosted)
    callpath.judge_samples(judge, got, durations, warmup, timed.calls)


@check("callpath-measure")
def test_summary_is_right(submission: Submission, judge: Judge) -> None:
    """Skewed samples, an even and an odd number of them."""
    rng = judge.rng()
    for count in (40, 61):
        samples = (20_000 + rng.exponential(9_000, count)).astype(np.int64).tolist()
        samples[3] = 10**7
        callpath.judge_summary(judge, samples, submission.call("summarise", samples, module="callpath"))


@check("callpath-measure")
def test_break_even_is_right(submission: Submission, judge: Judge) -> None:
    """Two overheads and shapes."""
    for overhead_us, sizes, tflops in (
        (41.5, {"batch": 4, "heads": 16, "head_dim": 64}, 300.0),
        (230.0, {"batch": 1, "heads": 7, "head_dim": 96}, 120.0),
    ):
        got = submission.call("break_even_seqlen", overhead_us, tflops=tflops, module="callpath", **sizes)
        callpath.judge_break_even(judge, got, overhead_us, sizes, tflops)


@check("callpath-plausible")
def test_table_is_of_these_calls(submission: Submission, judge: Judge, recorder: boundary.Recorder) -> None:
    """The same layers are timed here, in the worker that holds no submission."""
    raw = submission.read_file(callpath.FILE_NAME)
    if raw is None:
        judge.fail("callpath.csv is missing.")
    try:
        rows = callpath.read_table(raw)
    except callpath.TableError as error:
        judge.fail(f"callpath.csv: {error}.")
    repeats = int(judge.thresholds["repeats"])
    measured = {dim: recorder.medians_us(dim, repeats) for dim in callpath.HEAD_DIMS}
    callpath.judge_against(judge, rows, measured)


# kept-from-students-89e14c8c99bd0538
