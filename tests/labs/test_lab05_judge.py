"""lab05's judge: definitions are found in real and in tricky source, known misreadings are told apart, tables are read
warily."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from lab_judges import judge_of, verdict_of

from grader.course import Course
from grader.errors import InfrastructureError
from grader.judge.anatomy import (
    boundary,
    callpath,
    course_call,
    kernel_choice,
    predictions,
    recipe,
    source,
    symbols,
    trace,
)
from grader.judge.anatomy.calls import Call, dense
from grader.judge.recorder import Judge
from grader.judge.upstream import UnavailableError
from grader.modules import load_module
from grader.report.model import Status
from grader.sandbox.failures import Crashed
from grader.sandbox.levels import choose_isolation
from grader.sandbox.stage import stage
from grader.sandbox.submission import Submission

COURSE = Course(Path(__file__).resolve().parents[2])
LAB_ID = "lab05_repo_anatomy"
LAB = COURSE.lab(LAB_ID)
REFERENCE = COURSE.solution_dir(LAB_ID) / "reference"


def _hidden_tests() -> ModuleType:
    path = COURSE.assignment_dir(LAB_ID) / "test_hidden.py"
    return load_module(path, "lab05_hidden")


hidden = _hidden_tests()


judge = partial(judge_of, LAB)
verdict = partial(verdict_of, LAB)


def diagnosis(check_id: str, run: Callable[[Judge], object]) -> str:
    ended = verdict(check_id, run)
    assert ended.status is Status.FAIL, ended.message
    return ended.diagnosis.id if ended.diagnosis is not None else ended.message


@pytest.fixture(scope="module")
def release() -> source.Source:
    try:
        return source.load()
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def recorder(release: source.Source) -> Iterator[boundary.Recorder]:
    isolation = choose_isolation("auto")
    with (
        stage(REFERENCE, LAB, COURSE.starter_dir(LAB_ID)) as staged,
        Submission(staged, LAB, isolation) as submission,
        boundary.recorder(submission) as opened,
    ):
        yield opened


# Symbols

CPP = """
// void f(int x) { g(x); }
void f(int x);
/* void f(int x) { g(x); } */
template<> void f<half, 64, true>(Params &p) {
    say("not h( here }");
    g<half>(p);  // and not h(
}
DEFINE_FORWARD_KERNEL(kern, bool A) { body<A>(params); }
template<typename T>
__global__ void plain(const T *x) { use(x); }
PYBIND11_MODULE(NAME, m) { m.def("fwd", &ns::mha_fwd, "text"); }
int caller() { return f(3) < 4; }
"""

PY = """
import torch
if torch.ready:
    _wrapped = torch.ops.lib._real
else:
    _wrapped = _other

@_torch_custom_op_wrapper("lib::_real", mutates_args=())
def _real(q):
    return gpu.fwd(q)

class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q):
        return _wrapped(q)
    @staticmethod
    def backward(ctx, g):
        return gpu.bwd(g)

class NotFn:
    def forward(self):
        pass
"""


def test_definitions_in_cpp_skip_comments_declarations_and_calls() -> None:
    (found,) = symbols.definitions("a.cu", CPP, "f")
    assert found.kind == "cpp-function"
    assert "g" in found.uses
    assert "h" not in found.uses
    assert symbols.definitions("a.cu", CPP, "g") == []


@pytest.mark.parametrize(
    ("name", "kind", "uses"),
    [
        ("kern", "kernel", "body"),
        ("plain", "kernel", "use"),
        ("fwd", "binding", "mha_fwd"),
        ("caller", "cpp-function", "f"),
    ],
)
def test_definitions_in_cpp_tell_their_kind(name: str, kind: str, uses: str) -> None:
    (found,) = symbols.definitions("a.h", CPP, name)
    assert found.kind == kind
    assert uses in found.uses


def test_definitions_in_python_follow_aliases_and_the_forward_only() -> None:
    (function,) = symbols.definitions("a.py", PY, "Fn")
    assert function.kind == "autograd"
    assert {"_wrapped", "_real"} <= function.uses
    assert "bwd" not in function.uses
    (operator,) = symbols.definitions("a.py", PY, "_real")
    assert (operator.kind, "fwd" in operator.uses) == ("custom-op", True)
    assert symbols.definitions("a.py", PY, "NotFn") == []


# The trace


def reference_hops() -> list[trace.Hop]:
    return trace.read_trace((REFERENCE / "trace.toml").read_bytes())


def test_evidence_of_each_decision_is_in_one_definition_only(release: source.Source) -> None:
    defined = trace.judge_chain(judge("trace-chain"), release, reference_hops(), tuple(trace.ROLES))
    assert set(hidden.EVIDENCE) == set(trace.DECISIONS)
    for name, pattern in hidden.EVIDENCE.items():
        makes = [definition.name for definition in defined if re.search(pattern, definition.body, re.DOTALL)]
        assert len(makes) == 1, f"{name}: {makes}"


def test_package_files_are_all_that_the_package_imports(release: source.Source) -> None:
    imports = re.findall(
        r"^from flash_attn\.(\w+) import|^\s*from \.(\w+) import", release.files["flash_attn/__init__.py"], re.M
    )
    assert {name for pair in imports for name in pair if name} == {"flash_attn_interface"}


HOP = '[[hop]]\nrole = "kernel"\nfile = "a"\nsymbol = "b"\ncalls = "c"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format_version = 1\nhop = 3", "tables"),
        ("format_version = 1", "tables"),
        ("format_version = 2\n" + HOP, "format_version"),
        ("format_version = ", "TOML"),
        ("format_version = 1\n" + HOP * 31, "1 to 30"),
        ("format_version = 1\n" + HOP.replace('"kernel"', '"boss"'), "no role"),
        ("format_version = 1\n" + HOP.replace('"b"', "7"), "`symbol` must be text"),
        ("format_version = 1\n" + HOP + 'decides = ["lunch"]', "no decision"),
        ("format_version = 1\n" + HOP + "decides = [1]", "list of texts"),
        ("format_version = 1\n" + HOP.replace('calls = "c"\n', "") + HOP, "`calls` must be text"),
        ("format_version = 1\na = " + "[" * 5000, "TOML"),
        ("format_version = 1\na = " + "9" * 5000, "TOML"),
    ],
)
def test_read_trace_of_a_broken_file_names_the_fault(text: str, message: str) -> None:
    with pytest.raises(trace.TraceError, match=message):
        trace.read_trace(text.encode())


def test_judge_chain_refuses_a_symbol_of_another_file_and_an_invented_one(release: source.Source) -> None:
    hops = reference_hops()
    for old, new, expected in (
        ("file", "csrc/none.h", "hop-file-missing"),
        ("symbol", "mha_fwd_fast", "hop-unknown-symbol"),
        ("symbol", "mha_bwd", "hop-not-called"),
        ("symbol", "num_splits_heuristic", "hop-not-called"),
    ):
        at = 4
        changed = [*hops[:at], trace.Hop(**{**hops[at].__dict__, old: new}), *hops[at + 1 :]]
        run = lambda it, c=changed: trace.judge_chain(it, release, c, tuple(trace.ROLES))  # noqa: E731
        assert diagnosis("trace-chain", run) == expected


def test_judge_chain_refuses_roles_that_the_symbol_does_not_have(release: source.Source) -> None:
    hops = reference_hops()
    swapped = [trace.Hop(**{**hop.__dict__, "role": role}) for hop, role in zip(hops, trace.ROLES, strict=True)]
    swapped[2] = trace.Hop(**{**hops[2].__dict__, "symbol": "round_multiple"})
    run = lambda it: trace.judge_chain(it, release, swapped, trace.PYTHON_ROLES)  # noqa: E731
    assert diagnosis("trace-chain", run) == "hop-wrong-role"


# Predictions


def hidden_calls() -> list[Call]:
    """Calls as the hidden checks make them, every family."""
    rng = np.random.default_rng(0)
    found = [hidden.layout_call(rng, layout) for layout in hidden.LAYOUTS]
    for head_dim in (59, 65, 73, 100, 127, 200, 72, 64):
        q, k = dense(2, 67, 4, head_dim), dense(2, 131, 4, head_dim, dtype="float16")
        for arguments in (
            {},
            {"softmax_scale": 0.0},
            {"softmax_scale": -0.5, "causal": True},
            {"causal": True, "window_size": [40, 17]},
            {"window_size": [100_000, -1]},
            {"return_attn_probs": True},
            {"return_attn_probs": True, "dropout_p": 0.125},
            {"softcap": 20.0},
        ):
            found.append({"function": "flash_attn_func", "tensors": {"q": q, "k": k, "v": k}, "arguments": arguments})
    totals = {"cu_seqlens_q": [0, 9, 50], "cu_seqlens_k": [0, 9, 50], "max_seqlen_q": 41, "max_seqlen_k": 44}
    tensors = {"q": dense(50, 4, 59), "k": dense(50, 2, 59), "v": dense(50, 2, 59)}
    found.append({"function": "flash_attn_varlen_func", "tensors": tensors, "arguments": totals})
    packed = {"cu_seqlens": [0, 9, 50], "max_seqlen": 41, "causal": True}
    tensors = {"qkv": dense(50, 3, 4, 72)}
    found.append({"function": "flash_attn_varlen_qkvpacked_func", "tensors": tensors, "arguments": packed})
    tensors = {"q": dense(50, 4, 72), "kv": dense(50, 2, 2, 72)}
    found.append({"function": "flash_attn_varlen_kvpacked_func", "tensors": tensors, "arguments": totals})
    return found


def test_model_of_the_boundary_equals_recordings(recorder: boundary.Recorder) -> None:
    for call in hidden_calls():
        truth = recorder.record(call)
        assert predictions.differences(predictions.model(call), truth) == [], call


def test_recorder_of_a_refused_call_tells_the_packages_own_words(recorder: boundary.Recorder) -> None:
    call = {"function": "flash_attn_func", "tensors": {"q": dense(2, 3, 4, 8)}, "arguments": {}}
    with pytest.raises(boundary.RefusedError, match="TypeError"):
        recorder.record(call)


@pytest.mark.parametrize("name", predictions.MISTAKES)
def test_each_broken_rule_shows_on_some_call_and_is_told(name: str) -> None:
    shown = [call for call in hidden_calls() if predictions.model(call, name) != predictions.model(call)]
    assert shown, "no hidden call shows this mistake"
    told = set()
    for call in shown:
        wrong = predictions.differences(predictions.model(call, name), predictions.model(call))
        assert wrong
        found = predictions.diagnose(predictions.model(call, name), call, wrong)
        told.add(found.id if found else "")
    assert name in told


@pytest.mark.parametrize("told", [None, {}, [], 0, {"q": None}, {"q": 3, "function": "fwd"}])
def test_differences_of_an_empty_prediction_are_found(told: object) -> None:
    assert predictions.differences(told, predictions.model(hidden_calls()[0]))


@pytest.mark.parametrize(
    ("name", "value"),
    [("causal", 0), ("returns", True), ("softmax_scale", float("nan")), ("window_size_left", "-1"), ("surplus", 1)],
)
def test_differences_tell_values_of_another_kind(name: str, value: object) -> None:
    truth = predictions.model(hidden_calls()[0])
    assert predictions.differences({**truth, name: value}, truth)


def test_diagnose_of_two_mistakes_at_once_is_none() -> None:
    call = hidden_calls()[0]
    told = {**predictions.model(call), "softmax_scale": 3.0, "causal": True}
    wrong = predictions.differences(told, predictions.model(call))
    assert predictions.diagnose(told, call, wrong) is None


@pytest.mark.parametrize(
    "told",
    [
        None,
        {"function": "os.system", "tensors": {}, "arguments": {}},
        {"function": "flash_attn_func", "tensors": {"q": 1}, "arguments": {}},
        {
            "function": "flash_attn_func",
            "tensors": {n: dense(2, 2, 2, 8, dtype="storage") for n in "qkv"},
            "arguments": {},
        },
        {"function": "flash_attn_func", "tensors": {n: dense(2, 2, 1 << 30, 8) for n in "qkv"}, "arguments": {}},
        {"function": "flash_attn_func", "tensors": {n: dense(2, 2, 2) for n in "qkv"}, "arguments": {}},
        {"function": "flash_attn_func", "tensors": {n: dense(2, 2, 2, 8) for n in "qkv"}, "arguments": {"self": 1}},
        {
            "function": "flash_attn_func",
            "tensors": {n: dense(2, 2, 2, 8) for n in "qkv"},
            "arguments": {"window_size": [1] * 10_000},
        },
        {
            "function": "flash_attn_func",
            "tensors": {n: dense(2, 2, 2, 8) for n in "qkv"},
            "arguments": {"softmax_scale": float("nan")},
        },
    ],
)
def test_course_call_of_another_form_is_refused_before_it_runs(told: object) -> None:
    q = dense(2, 2, 2, 8)

    def run(it: Judge) -> None:
        course_call.judge_course_call(it, None, told, (q, q, q), causal=False, scale=None, window=None)  # type: ignore[arg-type]

    assert verdict("course-call", run).status is Status.CONTRACT


# The kernel


@pytest.mark.parametrize("name", kernel_choice.MISTAKES)
def test_each_misreading_of_the_dispatch_shows_and_is_told(name: str) -> None:
    asked = hidden.kernel_calls(np.random.default_rng(1))
    told = [kernel_choice.choose(call, name) for call in asked]
    assert told != [kernel_choice.choose(call) for call in asked]
    assert diagnosis("kernel-choice", lambda it: kernel_choice.judge_choices(it, asked, told)) == name


def test_kernel_choice_agrees_with_the_release(release: source.Source) -> None:
    switch = release.files["csrc/flash_attn/src/static_switch.h"]
    dims = [int(x) for x in re.findall(r"HEADDIM <= (\d+)", switch)]
    assert tuple(dims) == kernel_choice.TEMPLATE_HEAD_DIMS
    api = release.files["csrc/flash_attn/flash_api.cpp"]
    for line in (
        "if (window_size_left >= seqlen_k) { window_size_left = -1; }",
        "if (seqlen_q == 1 && !alibi_slopes_.has_value()) { is_causal = false; }",
        "if (is_causal) { window_size_right = 0; }",
        "params.is_causal = window_size_left < 0 && window_size_right == 0;",
    ):
        assert line in api
    for call in hidden.kernel_calls(np.random.default_rng(2)):
        choice = kernel_choice.choose(call)
        (found,) = symbols.definitions(choice["source"], release.files[choice["source"]], "run_mha_fwd_")
        assert choice["template"] in found.uses
        # Not split over keys on any card that the course knows: 0.8 of twice 192 SMs.
        q = call["tensors"]["q"]["shape"]
        assert q[0] * q[2] * -(-q[1] // 64) >= 0.8 * 2 * 192


def test_kernel_choice_of_nothing_fails() -> None:
    asked = hidden.kernel_calls(np.random.default_rng(1))
    for told in ([None] * len(asked), [{}] * len(asked)):
        verdict("kernel-choice", lambda it, told=told: kernel_choice.judge_choices(it, asked, told))


# The build


@pytest.mark.parametrize(
    ("flags", "want"),
    [
        (["-gencode", "arch=compute_80,code=sm_80"], [("80", "sm_80")]),
        (["-gencode=arch=compute_90a,code=sm_90a"], [("90a", "sm_90a")]),
        (["--generate-code=arch=compute_100,code=[sm_100,compute_100]"], [("100", "sm_100"), ("100", "compute_100")]),
        ([], []),
    ],
)
def test_targets_reads_every_spelling(flags: list[str], want: list[tuple[str, str]]) -> None:
    assert recipe.targets(flags) == want


@pytest.mark.parametrize(
    "flags", [None, "-gencode", ["-arch=sm_80"], ["-gencode"], [3], ["-gencode", "arch=compute_80"]]
)
def test_targets_of_anything_else_is_an_error(flags: object) -> None:
    with pytest.raises(ValueError, match=r"gencode|list of texts"):
        recipe.targets(flags)


@pytest.mark.parametrize(
    ("compiled", "changed", "expected"),
    [
        ({"pairs"}, None, "rebuilt-for-nothing"),
        (set(recipe.OBJECTS), "src/row_lse.c", "everything-rebuilt"),
        (set(), "src/row_lse.c", "nothing-rebuilt"),
        (set(), "src/pairs.h", "header-ignored"),
    ],
)
def test_judge_rebuild_tells_what_was_compiled_wrongly(compiled: set[str], changed: str | None, expected: str) -> None:
    step = recipe.Step(0, "", frozenset(compiled), recipe.OBJECTS, recipe.ELF_MAGIC)
    assert diagnosis("build-incremental", lambda it: recipe.judge_rebuild(it, step, changed)) == expected


def test_judge_rebuild_refuses_one_of_two_users_of_a_header() -> None:
    step = recipe.Step(0, "", frozenset({"pairs"}), recipe.OBJECTS, recipe.ELF_MAGIC)
    verdict("build-incremental", lambda it: recipe.judge_rebuild(it, step, "src/pairs.h"))


def test_users_of_each_file_are_those_that_include_it() -> None:
    folder = REFERENCE / "build"
    for header in ("pairs.h", "row_lse.h"):
        users = {path.stem for path in (folder / "src").glob("*.c") if f'"{header}"' in path.read_text()}
        assert recipe.USERS.get(f"src/{header}", users) == users
    assert {path.stem for path in (folder / "src").glob("*.c")} == recipe.OBJECTS


@pytest.mark.parametrize("extension", [b"", b"import this", b"\x00ELF"])
def test_judge_built_of_no_machine_code_fails(extension: bytes) -> None:
    step = recipe.Step(0, "", recipe.OBJECTS, recipe.OBJECTS, extension)
    verdict("build-imports", lambda it: recipe.judge_built(it, step, "The build"))


# The call path


def table(change: Callable[[list[dict[str, Any]]], None] = lambda rows: None) -> bytes:
    rows = [
        {"layer": layer, "head_dim": dim, "median_us": 10.0 * step, "iqr_us": 1.0, "n": 200, "predicted": "yes"}
        for dim in callpath.HEAD_DIMS
        for step, layer in enumerate(callpath.LAYERS, start=1)
    ]
    for row in rows:
        length = callpath.break_even(row["median_us"], callpath.BATCH, callpath.HEADS, row["head_dim"], callpath.TFLOPS)
        row["break_even_seqlen"] = length
    change(rows)
    lines = [",".join(callpath.COLUMNS), *(",".join(str(row[name]) for name in callpath.COLUMNS) for row in rows)]
    return "\n".join(lines).encode()


def test_read_table_of_a_whole_table_has_six_rows_that_hold() -> None:
    rows = callpath.read_table(table())
    assert len(rows) == 6
    callpath.judge_rows(judge("callpath-table"), rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.pop(), "no row for"),
        (lambda rows: rows.append(rows[0]), "there twice"),
        (lambda rows: rows[0].update(layer="kernel"), "no layer"),
        (lambda rows: rows[0].update(median_us="=cmd()"), "text where a number"),
        (lambda rows: rows[0].update(median_us="nan"), "positive and finite"),
        (lambda rows: rows[0].update(iqr_us="-1"), "positive and finite"),
        (lambda rows: rows[0].update(n="inf"), "text where a number"),
    ],
)
def test_read_table_of_a_broken_table_names_the_fault(change: Callable[[list[Any]], None], message: str) -> None:
    with pytest.raises(callpath.TableError, match=message):
        callpath.read_table(table(change))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"predicted": "no"}, "prediction-unchecked"),
        ({"n": 1}, "one-sample"),
        ({"iqr_us": 0}, "one-sample"),
        ({"break_even_seqlen": 7}, "break-even-arithmetic"),
    ],
)
def test_judge_rows_of_a_bad_row_tells_why(change: dict[str, object], expected: str) -> None:
    rows = callpath.read_table(table(lambda rows: rows[3].update(change)))
    assert diagnosis("callpath-table", lambda it: callpath.judge_rows(it, rows)) == expected


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, None), (5.0, None), (1000.0, "unit-wrong"), (0.001, "unit-wrong")]
)
def test_judge_against_catches_a_unit_and_not_a_slow_machine(factor: float, expected: str | None) -> None:
    rows = callpath.read_table(table())
    here = {
        dim: {layer: rows[layer, dim].median_us * factor for layer in callpath.LAYERS} for dim in callpath.HEAD_DIMS
    }
    if expected is None:
        callpath.judge_against(judge("callpath-plausible"), rows, here)
    else:
        assert diagnosis("callpath-plausible", lambda it: callpath.judge_against(it, rows, here)) == expected


def test_timed_calls_are_those_of_the_clock() -> None:
    timed = callpath.Timed([5, 7, 11])
    start = timed.clock()
    timed.call()
    timed.call()
    assert (timed.clock() - start, timed.calls) == (12, 2)


@pytest.mark.parametrize(
    ("samples", "calls", "expected"),
    [
        ([1, 2], 4, "warmup-missing"),
        ([1, 2, 3, 4], 4, "warmup-timed"),
        ([3, 3], 4, "one-sample"),
        ([4, 3], 4, "time_calls: its samples aren't the durations of the timed calls."),
        ([3, 4], 9, "time_calls: its samples aren't the durations of the timed calls."),
    ],
)
def test_judge_samples_tells_what_was_timed(samples: list[int], calls: int, expected: str) -> None:
    run = lambda it: callpath.judge_samples(it, samples, [1, 2, 3, 4], 2, calls)  # noqa: E731
    assert diagnosis("callpath-measure", run) == expected
    callpath.judge_samples(judge("callpath-measure"), [3, 4], [1, 2, 3, 4], 2, 4)


def test_judge_summary_tells_known_statistics_apart() -> None:
    samples = [20_000, 21_000, 22_500, 26_000, 31_000, 90_000, 24_000]
    us = np.array(samples) / 1000
    first, median, third = np.percentile(us, [25, 50, 75])
    right = {"median_us": median, "iqr_us": third - first, "n": 7}
    callpath.judge_summary(judge("callpath-measure"), samples, right)
    for change, expected in (
        ({"median_us": us.mean()}, "mean-for-median"),
        ({"median_us": median * 1000}, "unit-wrong"),
        ({"iqr_us": us.std()}, "deviation-for-iqr"),
        ({"iqr_us": np.ptp(us)}, "range-for-iqr"),
    ):
        told = right | change
        assert diagnosis("callpath-measure", lambda it, t=told: callpath.judge_summary(it, samples, t)) == expected


class _FailingWorker:
    """Stands in for a clean worker: the first `failures` calls end in a crash."""

    lab = LAB

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def call(self, function: str, *args: object, **options: object) -> object:
        self.failures -= 1
        if self.failures >= 0:
            raise Crashed("The process was killed.")
        return {"function": function}


def test_recorder_survives_one_lost_worker_and_reports_two() -> None:
    assert boundary.Recorder(_FailingWorker(1)).record({}) == {"function": "record"}  # type: ignore[arg-type]
    with pytest.raises(InfrastructureError, match="The process was killed"):
        boundary.Recorder(_FailingWorker(2)).record({})  # type: ignore[arg-type]
