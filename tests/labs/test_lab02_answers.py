"""lab02's answers: right ones keep every point, wrong ones lose theirs with the right diagnosis, nothing is free."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from grader.judge import memo
from grader.modules import load_module
from grader.mutants import Mistake, Variant, load_mistakes, load_variants, materialise
from grader.report.model import Kind, Status
from grader.sandbox.levels import choose_isolation
from grader.session import GradeRequest, grade


def _inprocess() -> ModuleType:
    path = Path(__file__).with_name("lab02_inprocess.py")
    return load_module(path, "lab02_inprocess")


lab02 = _inprocess()
SOLUTIONS = lab02.COURSE.solution_dir(lab02.LAB_ID)
MISTAKES = load_mistakes(SOLUTIONS)
VARIANTS = load_variants(SOLUTIONS)

ZEROS = """
import numpy as np

def _wide(x):
    return np.float64 if x.dtype == np.float64 else np.float32

def softmax(x, axis=-1):
    return np.zeros_like(x)

def online_softmax_stats(blocks):
    for block in blocks:
        zeros = np.zeros(len(block), _wide(block))
    return zeros, zeros.copy()

def merge(a, b):
    return tuple(np.zeros_like(part) for part in a)

def blockwise_attention(q, k, v, block, *, causal=False, scale=None, accumulate=None):
    return np.zeros((len(q), v.shape[1]), q.dtype), np.zeros(len(q), _wide(q))

def exact_softmax_stats(blocks):
    for block in blocks:
        rows = len(block)
    return np.zeros(rows, np.int64), np.zeros(rows)

def exact_softmax(x):
    return np.zeros_like(x), np.zeros(len(x), np.int64), np.zeros(len(x))
"""


SECRETS = [b"one", *(pytest.param(secret, marks=pytest.mark.slow) for secret in (b"two", b"three"))]


@pytest.mark.parametrize("secret", SECRETS)
def test_reference_every_check_passes(secret: bytes) -> None:
    outcomes = lab02.run_checks(SOLUTIONS / "reference", secret=secret)
    assert {o.check_id for o in outcomes} == set(lab02.LAB.checks)
    assert [o for o in outcomes if o.status is not Status.PASS] == []


@pytest.mark.filterwarnings("ignore:overflow")
def test_what_a_batch_keeps_comes_from_no_submission(tmp_path: Path) -> None:
    """Two useless answers of different values leave the same keys, and nobody's outcome changes by what was kept."""
    shutil.copytree(SOLUTIONS / "reference", tmp_path / "zeros")
    (tmp_path / "zeros" / "online_softmax.py").write_text(ZEROS)
    shutil.copytree(tmp_path / "zeros", tmp_path / "ones")
    (tmp_path / "ones" / "online_softmax.py").write_text(ZEROS.replace("np.zeros", "np.ones"))
    folders = [SOLUTIONS / "reference", tmp_path / "zeros", tmp_path / "ones"]
    computed = lab02.run_checks(folders[1])
    memory = memo.enable()
    try:
        kept, keys = [], []
        for folder in folders:
            kept.append(lab02.run_checks(folder))
            keys.append(len(memory))
    finally:
        memo.disable()
    assert {outcome.status for outcome in kept[0]} == {Status.PASS}
    assert kept[1] == computed
    assert keys[0] > 50
    assert keys[1] == keys[2]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_variant_every_check_passes(variant: Variant, tmp_path: Path) -> None:
    outcomes = lab02.run_checks(materialise(variant, tmp_path / "answer"))
    assert [o for o in outcomes if o.status is not Status.PASS] == []


@pytest.mark.parametrize("secret", SECRETS[:2])
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_mistake_its_check_fails_with_its_diagnosis(mistake: Mistake, secret: bytes, tmp_path: Path) -> None:
    outcomes = lab02.run_checks(materialise(mistake, tmp_path / "answer"), only=mistake.check, secret=secret)
    lost = [o for o in outcomes if o.status is not Status.PASS]
    assert lost
    # Of several cases that fail alike the report shows the first.
    assert lost[0].diagnosis == mistake.diagnosis
    assert mistake.message in lost[0].message


def test_zeros_every_check_of_values_fails(tmp_path: Path) -> None:
    folder = tmp_path / "answer"
    shutil.copytree(SOLUTIONS / "reference", folder)
    (folder / "online_softmax.py").write_text(ZEROS)
    outcomes = lab02.run_checks(folder)
    failed = {o.check_id for o in outcomes if o.status is not Status.PASS}
    assert {o.check_id for o in outcomes} - failed == {"table-format", "tolerance-plot"}


GARBAGE = [
    *("None", "3", "'text'", "[]", "()", "{}", "(None, None)", "(None, None, None)", "[{}]", "[None] * 36"),
    *("np.ones(3)", "(np.full(2, np.nan), np.full(2, np.nan))", "(np.ones((2, 2)),) * 3", "[1e999] * 2"),
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_results_never_blame_the_judge(garbage: str, tmp_path: Path) -> None:
    names = "softmax online_softmax_stats merge blockwise_attention exact_softmax_stats exact_softmax"
    functions = "".join(
        f"def {name}(*_, **__): return {garbage}\n" for name in (*names.split(), "make_table", "measure")
    )
    for name in ("online_softmax.py", "tolerance.py"):
        (tmp_path / name).write_text(f"import numpy as np\n{functions}")
    shutil.copy(SOLUTIONS / "reference" / "tolerance.csv", tmp_path)
    outcomes = [o for o in lab02.run_checks(tmp_path) if o.check_id != "table-format"]
    assert Status.ERROR not in {o.status for o in outcomes}
    # A function that does nothing doesn't warn either, which is one case of one check.
    assert [o.check_id for o in outcomes if o.status is Status.PASS] == ["masked-stream"]


def test_starter_no_check_passes() -> None:
    outcomes = lab02.run_checks(lab02.COURSE.starter_dir(lab02.LAB_ID))
    assert [o.check_id for o in outcomes if o.status is Status.PASS] == []


def test_lab_every_check_has_a_mistake_or_is_about_the_picture() -> None:
    assert set(lab02.LAB.checks) - {m.check for m in MISTAKES} <= {"tolerance-plot", "exact-small"}
    assert sum(c.points for i, c in lab02.LAB.checks.items() if i.startswith("exact")) == 15
    assert {c.kind for c in lab02.LAB.checks.values()} == {
        Kind.CORRECTNESS,
        Kind.NUMERICS,
        Kind.INTEGRITY,
        Kind.ARTIFACT,
    }


@pytest.mark.parametrize("content", [b"", b"not a picture", b"\x89PNG\r\n\x1a\n"])
def test_plot_that_is_no_picture_loses_its_points(content: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "answer"
    shutil.copytree(SOLUTIONS / "reference", folder)
    (folder / "tolerance.png").write_bytes(content)
    (outcome,) = lab02.run_checks(folder, only="tolerance-plot")
    assert outcome.status is Status.FAIL


def test_classic_recurrence_in_the_exact_pair_loses_only_exactness(tmp_path: Path) -> None:
    folder = tmp_path / "answer"
    shutil.copytree(SOLUTIONS / "reference", folder)
    path = folder / "online_softmax.py"
    classic = """

def exact_softmax_stats(blocks):
    m, l = online_softmax_stats(blocks)
    reference = np.where(np.isfinite(m), np.rint(finite_shift(m) * LOG2_E), 0).astype(np.int64)
    return reference, l * np.exp(finite_shift(m) - reference * 0.6931471805599453)


def exact_softmax(x):
    reference, l = exact_softmax_stats([x])
    return softmax(x), reference, l
"""
    path.write_text(path.read_text() + classic)
    lost = {o.check_id for o in lab02.run_checks(folder) if o.status is not Status.PASS}
    assert lost == {"exact-small", "exact-bits", "exact-truth"}


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "least", "most"), [("reference", 100, 100), ("starter", 0, 5)])
def test_grade_behind_the_boundary_earns_what_it_should(folder: str, least: float, most: float) -> None:
    submission = SOLUTIONS / folder if folder == "reference" else lab02.COURSE.starter_dir(lab02.LAB_ID)
    level = choose_isolation("auto").level
    report = grade(GradeRequest(lab02.COURSE, lab02.LAB_ID, submission, isolation=level))
    assert least <= report.score.points <= most
    assert not [c for c in report.checks if c.status in (Status.ERROR, Status.SKIPPED)]
