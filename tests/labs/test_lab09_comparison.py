"""lab09's annotations, analysis and benchmark judge: any right place and table passes, misreadings are named."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab_judges import diagnosis_of, judge_of

from grader.course import Course
from grader.judge.hopper import analysis, annotations, bench_table, definitions, evidence, measurements, upstream_source
from grader.judge.hopper.annotations import Annotation, AnnotationError
from grader.judge.hopper.measurements import FA2, FA4, Shape
from grader.judge.recorder import Judge, Verdict
from grader.judge.upstream import UnavailableError
from grader.machine import MachineError
from grader.profiles import list_profiles, load_profile

COURSE = Course(Path(__file__).resolve().parents[2])
LAB = COURSE.lab("lab09_fa3_probe")
REFERENCE = COURSE.solution_dir(LAB.id) / "reference"
PROFILES = [load_profile(COURSE.root, name) for name in list_profiles(COURSE.root)]


judge = partial(judge_of, LAB)
diagnosis = partial(diagnosis_of, LAB)


# Definitions

KERNEL = """
class Base:
    def load(self):
        return helper(tma_atom_K)

class Kernel(Base):
    def load(self):
        bound = partial(copies.get_copy, tma_atom_K)
        either = partial(self.first if fast else self.second, 1)
        # call_in_a_comment()
        "call_in_text()"
        return bound(src=0)
"""
CUDA = """
struct Loop {
  void declared(int x);
  // void mma() { gemm(tiled_mma_qk); }
  void mma(int x) {
    auto load_K = [&] (int n) { copy(params.tma_load_K.with(barrier), n); };
    load_K(0);  gemm</*zero=*/true>(tiled_mma_qk, tS);
  }
  void operator()(Params const& p) { mainloop.load(p); }
};
"""


def test_python_calls_are_found_in_the_definition_that_makes_them() -> None:
    (base,) = definitions.find("k.py", KERNEL, "Base.load")
    (own,) = definitions.find("k.py", KERNEL, "Kernel.load")
    assert len(definitions.find("k.py", KERNEL, "load")) == 2
    assert definitions.find("k.py", KERNEL, "Kernel.store") == []
    assert definitions.calls_of(base, "helper") == ["helper(tma_atom_K)"]
    assert definitions.calls_of(own, "helper") == []
    assert definitions.calls_of(own, "get_copy") == ["partial(copies.get_copy, tma_atom_K)"]
    assert definitions.calls_of(own, "second")
    assert definitions.calls_of(own, "call_in_a_comment") == []
    assert definitions.calls_of(own, "call_in_text") == []


def test_cuda_calls_are_found_in_functions_operators_and_lambdas() -> None:
    (mma,) = definitions.find("k.hpp", CUDA, "Loop::mma")
    assert definitions.calls_of(mma, "gemm") == ["gemm< true>(tiled_mma_qk, tS)"]
    (operator,) = definitions.find("k.hpp", CUDA, "Loop::operator()")
    assert definitions.calls_of(operator, "load") == ["mainloop.load(p)"]
    assert definitions.find("k.hpp", CUDA, "load_K")
    assert definitions.find("k.hpp", CUDA, "Other::mma") == []
    assert definitions.find("k.hpp", CUDA, "declared") == []


# Annotations

WHEEL = {
    "flash_attn/cute/flash_fwd_sm90.py": """
class FlashAttentionForwardSm90:
    def mma(self):
        mma_qk_fn = partial(sm90_utils.gemm_zero_init, tiled_mma_qk, shape)
        mma_pv_fn = partial(sm90_utils.gemm_w_idx, tiled_mma_pv, acc)
    def overlapped(self):
        mma_qk_fn(wg_wait=-1); mma_pv_fn(wg_wait=-1); warpgroup.wait_group(1)
    def plain(self):
        mma_qk_fn(wg_wait=-1); warpgroup.wait_group(0)
""",
    "flash_attn/cute/flash_fwd_sm100.py": "class Blackwell:\n    def mma(self):\n        gemm(tiled_mma_qk)\n",
}


def place(feature: str, symbol: str, call: str, file: str = "flash_attn/cute/flash_fwd_sm90.py") -> list[Annotation]:
    return [Annotation(feature, file, symbol, call, *evidence.FEATURES[feature])]


@pytest.mark.parametrize(
    ("feature", "symbol", "call"),
    [
        ("wgmma-qk", "FlashAttentionForwardSm90.mma", "gemm_zero_init"),
        ("wgmma-qk", "plain", "mma_qk_fn"),
        ("wgmma-pv", "FlashAttentionForwardSm90.mma", "gemm_w_idx"),
        ("wgmma-pv", "FlashAttentionForwardSm90.overlapped", "mma_pv_fn"),
        ("intra-warpgroup-overlap", "overlapped", "wait_group"),
        ("intra-warpgroup-overlap", "overlapped", "mma_qk_fn"),
    ],
)
def test_any_right_place_passes(feature: str, symbol: str, call: str) -> None:
    assert annotations.location_faults(WHEEL, place(feature, symbol, call)) == {}


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("annotation-evidence", place("wgmma-qk", "FlashAttentionForwardSm90.mma", "gemm_w_idx")),
        ("annotation-evidence", place("intra-warpgroup-overlap", "plain", "wait_group")),
        ("annotation-call", place("wgmma-qk", "plain", "gemm_zero_init")),
        ("annotation-symbol", place("wgmma-qk", "FlashAttentionForwardSm90.load", "mma_qk_fn")),
        ("annotation-file", place("wgmma-qk", "mma", "gemm", "flash_attn/cute/none.py")),
        ("annotation-other-kernel", place("wgmma-qk", "mma", "gemm", "flash_attn/cute/flash_fwd_sm100.py")),
    ],
)
def test_wrong_places_are_named(name: str, entries: list[Annotation]) -> None:
    (fault,) = annotations.location_faults(WHEEL, entries).values()
    assert fault.kind == name


def test_each_feature_carries_its_part_of_the_points() -> None:
    told = reference_annotations()
    features = tuple(evidence.FEATURES)
    ambiguous = [
        replace(entry, runs_on="producer") if entry.feature == "mbarrier-pipeline" else entry for entry in told.features
    ]
    asked = judge("annotations-schedule")
    annotations.judge_features(asked, features, annotations.meaning_faults(told.features))
    assert asked.awards == []
    annotations.judge_features(asked, features, annotations.meaning_faults(ambiguous))
    ((fraction, message, found),) = asked.awards
    assert fraction == pytest.approx(14 / 15)
    assert "14 of 15" in message
    assert "`mbarrier-pipeline` doesn't run on `producer`" in message
    assert found is not None
    assert found.id == "annotation-runs-on"
    # Two faults of one feature cost it once; what is missing costs as what is wrong.
    partly = annotations.Annotations(tuple(ambiguous[2:]), ())
    missing = annotations.count_faults(partly, features)
    asked = judge("annotations-schedule")
    annotations.judge_features(asked, features, missing, annotations.meaning_faults(ambiguous), missing)
    assert asked.awards[0][0] == pytest.approx(12 / 15)


def test_no_feature_right_is_no_point() -> None:
    none = annotations.Annotations((), ())
    asked = tuple(evidence.FEATURES)
    found = diagnosis(
        "annotations-schedule", lambda j: annotations.judge_features(j, asked, annotations.count_faults(none, asked))
    )
    assert found == "annotation-missing"


def reference_annotations() -> annotations.Annotations:
    return annotations.read((REFERENCE / "annotations.toml").read_bytes())


def test_the_references_places_are_in_the_real_wheel() -> None:
    try:
        source = upstream_source.load()
    except UnavailableError as error:
        pytest.skip(str(error))
    told = reference_annotations()
    assert annotations.count_faults(told, evidence.FEATURES) == {}
    assert annotations.location_faults(source, told.features) == {}
    assert annotations.meaning_faults(told.features) == {}


def test_every_feature_can_be_pointed_at_in_either_source() -> None:
    assert set(evidence.WHEEL) == set(evidence.CLONE) == set(evidence.FEATURES)
    assert {entry.feature for entry in reference_annotations().fa3} <= set(evidence.CLONE)


def clone(folder: Path) -> Path:
    (folder / "hopper").mkdir(parents=True)
    (folder / "hopper" / "loop.hpp").write_text(CUDA)
    (folder / "hopper" / "notes.md").write_text("mma")
    return folder


def test_a_clone_is_read_where_the_environment_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(upstream_source.CLONE_VARIABLE, raising=False)
    with pytest.raises(UnavailableError, match="needs a clone of flash-attention"):
        upstream_source.load_clone()
    monkeypatch.setenv(upstream_source.CLONE_VARIABLE, str(tmp_path))
    with pytest.raises(MachineError, match=r"has no folder hopper/"):  # shown, though the check is hidden
        upstream_source.load_clone()
    monkeypatch.setenv(upstream_source.CLONE_VARIABLE, str(clone(tmp_path / "clone")))
    files = upstream_source.load_clone()
    assert list(files) == ["hopper/loop.hpp"]
    right = [Annotation("wgmma-qk", "hopper/loop.hpp", "Loop::mma", "gemm")]
    assert annotations.clone_faults(files, right) == {}
    wrong = [Annotation("wgmma-pv", "hopper/loop.hpp", "Loop::mma", "gemm")]
    assert [fault.kind for fault in annotations.clone_faults(files, wrong).values()] == ["annotation-evidence"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("format_version = 2", "`format_version` must be 1"),
        ("format_version = 1\nfeatures = []", "it has the key 'features'"),
        ("format_version = 1\nfeature = 3", "must be a list of tables"),
        ("format_version = 1\n[[feature]]\nfeature = 'wgmma-qk'", "`file` must be text"),
        ("\xff", "it isn't a TOML file"),
    ],
)
def test_annotations_of_another_form_are_refused(text: str, match: str) -> None:
    with pytest.raises(AnnotationError, match=match):
        annotations.read(text.encode("latin-1"))


# Analysis


def provided() -> tuple[measurements.Speeds, measurements.Published]:
    measured = (REFERENCE / measurements.MEASURED).read_text()
    return measurements.read(measured), measurements.read_published((REFERENCE / measurements.PUBLISHED).read_text())


def test_the_measured_table_holds_eight_shapes_of_four_kernels() -> None:
    speeds, published = provided()
    assert len(speeds.shapes) == 8
    assert {kernel for _, kernel, _ in speeds.tflops} == set(measurements.KERNELS)
    assert len(speeds.tflops) == 8 * 4 * 2 - 6  # FlexAttention's backward at two shapes alone
    shape = Shape(16384, 128, "no", 1, 16)
    assert speeds.ratio(shape, FA4, FA2) == pytest.approx(661 / 350)
    assert published.ablation == {"fa3": 661, "fa3-no-pipelining": 582, "fa3-no-warp-specialization": 570}
    # End points that the project states elsewhere: FA3 at 512 and at 16k.
    ends = {(64, "no"): (333, 497), (128, "no"): (467, 648), (128, "yes"): (292, 616), (256, "no"): (482, 756)}
    for (head_dim, causal), rates in ends.items():
        found = {
            s.seqlen: r
            for (s, k, _), r in published.forward.tflops.items()
            if k == "fa3" and s.head_dim == head_dim and s.causal == causal
        }
        assert (found[512], found[16384]) == rates


def test_ties_crossovers_and_claims_follow_from_a_table() -> None:
    text = "gpu,kernel,batch,heads,seqlen,head_dim,causal,direction,tflops\n" + "".join(
        f"C,{kernel},1,1,{length},64,no,{way},{rate}\n"
        for length, rates in ((1024, (100, 150, 152)), (2048, (100, 140, 200)), (4096, (100, 150, 190)))
        for kernel, rate in zip((FA2, measurements.CUDNN, FA4), rates, strict=True)
        for way in measurements.BOTH
    )
    speeds = measurements.read(text)
    assert [speeds.best(shape) for shape in speeds.shapes] == ["tie", FA4, FA4]
    assert speeds.holds_from(measurements.CUDNN, 1.45, "forward") == 4096
    assert speeds.holds_from(FA4, 1.9, "forward") == 2048
    assert speeds.holds_from(FA4, 1.95, "forward") == 0
    decide = measurements.CLAIMS
    nothing = measurements.Published({}, measurements.Speeds({}))
    assert decide["fa4-beats-fa2"](speeds, nothing) == "supported"
    assert decide["fa4-beats-cudnn-forward"](speeds, nothing) == "within-noise"
    assert decide["fa4-beats-cudnn-at-512"](speeds, nothing) == "not-in-the-data"


def reference_answers() -> dict[str, Any]:
    return analysis.read((REFERENCE / "analysis.toml").read_bytes())


def judged(check_id: str, table: dict[str, Any], run: Callable[..., None], *args: Any) -> None:
    asked = judge(check_id)
    run(asked, analysis.Answers(asked, table), *args)


def test_reference_answers_pass_and_the_starters_fail() -> None:
    speeds, published = provided()
    h200, h100 = (load_profile(COURSE.root, name) for name in ("h200", "h100-sxm"))
    starter = analysis.read((COURSE.starter_dir(LAB.id) / "analysis.toml").read_bytes())
    runs: list[tuple[str, Callable[..., None], tuple[Any, ...]]] = [
        ("comparison-ratios", analysis.judge_ratios, (speeds,)),
        ("comparison-lengths", analysis.judge_lengths, (speeds, published)),
        ("comparison-roofline", analysis.judge_roofline, (speeds, h200)),
        ("comparison-roofline", analysis.judge_causal, (speeds,)),
        ("comparison-ablation", analysis.judge_ablation, (published, h100.peak_tflops["float16"])),
        ("comparison-ablation", analysis.judge_claims, (speeds, published)),
    ]
    for check_id, run, args in runs:
        judged(check_id, reference_answers(), run, *args)
        with pytest.raises(Verdict):
            judged(check_id, starter, run, *args)
        with pytest.raises(Verdict, match=r"analysis\.toml"):
            judged(check_id, {}, run, *args)


def test_one_ratio_upside_down_is_named() -> None:
    speeds, _ = provided()
    table = reference_answers()
    table["ratios"][3]["fa4"] = 1 / table["ratios"][3]["fa4"]
    run = lambda j: analysis.judge_ratios(j, analysis.Answers(j, table), speeds)  # noqa: E731
    assert diagnosis("comparison-ratios", run) == "analysis-inverted"


@pytest.mark.parametrize("value", ["nan", "true", '"1.65"'])
def test_a_ratio_must_be_a_number(value: str) -> None:
    speeds, _ = provided()
    text = re.sub(r"fa4 = [\d.]+", f"fa4 = {value}", (REFERENCE / "analysis.toml").read_text(), count=1)
    # The first match may stand in a remark; every one after it is an answer.
    text = re.sub(r"(?m)^(    \{.*?fa4 = )[\d.]+", rf"\g<1>{value}", text)
    table = analysis.read(text.encode())
    run = lambda j: analysis.judge_ratios(j, analysis.Answers(j, table), speeds)  # noqa: E731
    assert diagnosis("comparison-ratios", run) == "analysis-missing"


# Benchmark tables, made up: what a Hopper card's would look like

H200 = next(profile for profile in PROFILES if profile.name == "h200")
PART = {"sdpa-flash": 0.33, "sdpa-cudnn": 0.5, "flash-attn-cute": 0.55}


def made_up(change: Callable[[dict[str, str]], object] = lambda row: None) -> bytes:
    """A whole table at fixed fractions of the roofline, with `change` made to every row."""
    text = io.StringIO()
    columns = (*bench_table.COLUMNS.words, *bench_table.COLUMNS.numbers, *bench_table.COLUMNS.times)
    writer = csv.DictWriter(text, ["kernel", *(name for name in columns if name != "kernel")])
    writer.writeheader()
    for kernel, part in PART.items():
        for length in bench_table.LENGTHS:
            for head_dim in bench_table.HEAD_DIMS:
                for causal in ("no", "yes"):
                    batch, heads = 16384 // length, 2048 // head_dim
                    pairs = length * (length + 1) / 2 if causal == "yes" else length**2
                    flops, tokens = 4 * batch * heads * head_dim * pairs, batch * length * heads
                    floor_s = max(flops / 989e12, tokens * (8 * head_dim + 4) / 4800e9)
                    row = {"kernel": kernel, "causal": causal, "dtype": "bfloat16", "direction": "forward"}
                    row |= {"correct": "yes", "gpu": "NVIDIA H200", "max_error": "1e-3", "allowed_error": "2e-3"}
                    sizes = {"batch": batch, "q_heads": heads, "kv_heads": heads, "seqlen": length}
                    row |= {name: str(size) for name, size in (sizes | {"head_dim": head_dim}).items()}
                    ms = floor_s / part * 1e3
                    row |= {"median_ms": f"{ms:.6g}", "iqr_ms": f"{ms / 50:.3g}", "repeats": "20"}
                    row |= {"tflops": f"{flops / ms / 1e9:.5g}", "roofline_fraction": f"{part:.4f}"}
                    change(row)
                    writer.writerow(row)
    return text.getvalue().encode()


def test_an_honest_table_passes() -> None:
    table = made_up()
    bench_table.judge_table(judge("comparison-ratios"), table, PROFILES)
    bench_table.judge_roofline(judge("comparison-roofline"), table, PROFILES)
    asked = judge("comparison-lengths")
    bench_table.judge_gain(asked, table)
    assert asked.measured["least_ratio"] == pytest.approx(PART[FA4] / PART[FA2], rel=1e-3)


def faster(row: dict[str, str], factor: float) -> None:
    ms = float(row["median_ms"]) / factor
    row |= {"median_ms": f"{ms:.6g}", "tflops": f"{float(row['tflops']) * factor:.5g}"}
    row["roofline_fraction"] = f"{float(row['roofline_fraction']) * factor:.4f}"


TABLES: dict[str, tuple[str, Callable[[dict[str, str]], object]]] = {
    "benchmark-untested-row": ("table", lambda row: row.update(correct="no")),
    "benchmark-arithmetic": ("table", lambda row: row.update(tflops="500")),
    "benchmark-impossible": ("table", lambda row: faster(row, 4)),
    "bench-not-hopper": ("table", lambda row: row.update(gpu="NVIDIA A100-SXM4-80GB")),
    "benchmark-malformed": ("table", lambda row: row.update(median_ms="fast")),
    "bench-roofline": ("roofline", lambda row: row.update(roofline_fraction="0.9")),
    "bench-spread": ("roofline", lambda row: row.update(iqr_ms=row["median_ms"])),
    "bench-no-gain": ("gain", lambda row: faster(row, 0.5) if row["kernel"] != FA2 else None),
}


@pytest.mark.parametrize(
    "change", [{"seqlen": "1e300"}, {"head_dim": "64.5"}, {"batch": "1e10"}, {"median_ms": "0", "tflops": "0"}]
)
def test_a_table_with_sizes_or_times_that_are_none_is_malformed(change: dict[str, str]) -> None:
    table = made_up(lambda row: row.update(change))
    for check_id, run in (
        ("comparison-ratios", lambda j: bench_table.judge_table(j, table, PROFILES)),
        ("comparison-roofline", lambda j: bench_table.judge_roofline(j, table, PROFILES)),
        ("comparison-lengths", lambda j: bench_table.judge_gain(j, table)),
    ):
        assert diagnosis(check_id, run) == "benchmark-malformed"


def test_an_answer_too_large_for_a_float_is_no_number() -> None:
    for value in (10**400, float("inf"), float("nan"), True, "1"):
        run = lambda j, value=value: analysis.Answers(j, {}).number({"fa4": value}, "fa4", "here")  # noqa: E731
        assert diagnosis("comparison-ratios", run) == "analysis-missing"


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_cannot_be_is_refused_by_name(name: str) -> None:
    which, change = TABLES[name]
    table = made_up(change)
    run: Callable[[Judge], object]
    if which == "table":
        run = lambda j: bench_table.judge_table(j, table, PROFILES)  # noqa: E731
    elif which == "roofline":
        run = lambda j: bench_table.judge_roofline(j, table, PROFILES)  # noqa: E731
    else:
        run = lambda j: bench_table.judge_gain(j, table)  # noqa: E731
    check_id = {"table": "comparison-ratios", "roofline": "comparison-roofline", "gain": "comparison-lengths"}[which]
    assert diagnosis(check_id, run) == name


def test_a_table_with_a_gap_is_incomplete() -> None:
    lines = made_up().decode().splitlines(keepends=True)
    cut = "".join(line for line in lines if not (line.startswith(FA2) and ",8192,128," in line)).encode()
    assert cut != made_up()
    run = lambda j: bench_table.judge_table(j, cut, PROFILES)  # noqa: E731
    assert diagnosis("comparison-ratios", run) == "benchmark-incomplete"
    run = lambda j: bench_table.judge_roofline(j, cut, PROFILES)  # noqa: E731
    assert diagnosis("comparison-roofline", run) == "benchmark-incomplete"
    run = lambda j: bench_table.judge_gain(j, cut)  # noqa: E731
    assert diagnosis("comparison-lengths", run) == "benchmark-incomplete"


def test_no_gain_is_asked_for_at_short_sequences() -> None:
    table = made_up(lambda row: faster(row, 0.3) if row["kernel"] != FA2 and int(row["seqlen"]) < 4096 else None)
    bench_table.judge_gain(judge("comparison-lengths"), table)
