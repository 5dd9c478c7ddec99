"""lab03's answers: right ones keep every point, wrong ones lose theirs with the right diagnosis, nothing is free."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from grader.judge.tiles import forms, outputs, runs
from grader.judge.tiles.machine import Case, Machine
from grader.modules import load_module
from grader.mutants import Mistake, Variant, load_mistakes, load_variants, materialise
from grader.report.model import Status
from grader.sandbox.levels import choose_isolation
from grader.session import GradeRequest, grade


def _inprocess() -> ModuleType:
    path = Path(__file__).with_name("lab03_inprocess.py")
    return load_module(path, "lab03_inprocess")


lab03 = _inprocess()
SOLUTIONS = lab03.COURSE.solution_dir(lab03.LAB_ID)
REFERENCE = SOLUTIONS / "reference"
MISTAKES = load_mistakes(SOLUTIONS)
VARIANTS = load_variants(SOLUTIONS)
MODELS = {"standard_attention": "io_standard", "fa1_forward": "io_fa1", "fa2_forward": "io_fa2"}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # wrong answers divide by zero


SECRETS = [b"one", *(pytest.param(secret, marks=pytest.mark.slow) for secret in (b"two", b"three"))]


@pytest.mark.parametrize("secret", SECRETS)
def test_reference_every_check_passes(secret: bytes) -> None:
    outcomes = lab03.run_checks(REFERENCE, secret=secret)
    assert {o.check_id for o in outcomes} == set(lab03.LAB.checks)
    assert [o for o in outcomes if o.status is not Status.PASS] == []


@pytest.mark.parametrize("secret", SECRETS[:2])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_variant_every_check_passes(variant: Variant, secret: bytes, tmp_path: Path) -> None:
    outcomes = lab03.run_checks(materialise(variant, tmp_path / "answer"), secret=secret)
    assert [o for o in outcomes if o.status is not Status.PASS] == []


@pytest.mark.parametrize("secret", SECRETS[:2])
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_mistake_its_check_fails_with_its_diagnosis(mistake: Mistake, secret: bytes, tmp_path: Path) -> None:
    outcomes = lab03.run_checks(materialise(mistake, tmp_path / "answer"), only=mistake.check, secret=secret)
    lost = [o for o in outcomes if o.status is not Status.PASS]
    assert lost
    # Of several cases that fail alike the report shows the first.
    assert lost[0].diagnosis == mistake.diagnosis
    assert mistake.message in lost[0].message
    assert Status.ERROR not in {o.status for o in outcomes}


def random_settings(count: int) -> list[forms.Setting]:
    """Sizes that a run can be made at: ragged and whole, N < Bc, M no multiple of 4d, one row a tile."""
    rng = np.random.default_rng(20)
    found = []
    for number in range(count):
        d = int(rng.integers(2, 17))
        large = 1 if number == 0 else int(rng.integers(2, 24))
        n = int(rng.integers(1, large + 1)) if number % 5 == 2 else int(rng.integers(20, 90))
        n = large * 3 if number % 7 == 1 else n
        found.append(forms.Setting(n, d, 4 * d * large + int(rng.integers(0, 4 * d)), int(rng.choice([2, 4]))))
    return found


SETTINGS = random_settings(20)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("function", forms.FUNCTIONS)
def test_reference_counted_bytes_equal_the_closed_forms_to_the_byte(function: str, causal: bool) -> None:
    submission = lab03.InProcess(REFERENCE)
    assert sum(s.n % forms.block_sizes(s.d, s.m)[0] != 0 for s in SETTINGS) >= 10
    assert sum(s.n < forms.block_sizes(s.d, s.m)[0] for s in SETTINGS) >= 2
    for number, s in enumerate(SETTINGS):
        dtype = "float16" if s.itemsize == 2 else "float32"
        case = runs.draw(np.random.default_rng(number), s.n, s.d, s.m, dtype=dtype, causal=causal)
        machine = Machine(case, function, max_calls=100_000)
        submission.call(function, machine.view(submission.host))
        counted = sum(machine.moved.values())
        options = {"causal": causal} if function != forms.STANDARD else {}
        model = submission.call(MODELS[function], s.n, s.d, s.m, s.itemsize, module="io_model", **options)
        assert counted == model == forms.total(function, case.setting)
        assert dict(machine.moved) == forms.moves(function, case.setting)
        o, _ = outputs.truth(case)
        assert np.abs(machine.tensors["O"].astype(float) - o).max() <= outputs.allowed(function, case, o)
        assert machine.peak_elements <= s.m


ZEROS = """
import numpy as np
from honest import block_sizes, blocks  # noqa: F401

def _moves(machine, parts):
    tiles = {}
    for way, name, rows, cols in parts:
        tile = None
        if name in ("Q", "K", "V", "O"):
            tile = machine.sram.alloc(rows[1] - rows[0], machine.head_dim)
        if way == "load":
            machine.hbm.load(name, rows, cols, tile)
        else:
            shape = (rows[1] - rows[0],) if name in ("l", "m", "LSE") else (rows[1] - rows[0], machine.head_dim)
            dtype = np.float32 if len(shape) == 1 else machine.dtype
            machine.hbm.store(name, np.zeros(shape, dtype), rows, cols, tile)
        if tile is not None:
            machine.sram.free(tile)

def standard_attention(machine):
    n = machine.seq_len
    machine.hbm.store("S", np.zeros((n, n), machine.dtype), (0, n))
    machine.hbm.store("P", np.zeros((n, n), machine.dtype), (0, n))
    for rows in blocks(n, 1):
        _moves(machine, [("store", "O", rows, None)])

def fa1_forward(machine):
    for rows in blocks(machine.seq_len, 1):
        _moves(machine, [("store", name, rows, None) for name in ("O", "l", "m")])

def fa2_forward(machine):
    for rows in blocks(machine.seq_len, 1):
        _moves(machine, [("store", name, rows, None) for name in ("O", "LSE")])
"""
RUN_CHECKS = {
    *("standard-output", "fa1-output", "fa2-output", "bytes", "fa1-bytes", "fa2-bytes", "standard-bytes"),
    *("sram-residency", "fresh-loads", "reload-slope", "causal", "large-scores"),
}


def with_fa1(folder: Path, text: str) -> Path:
    """The reference with another fa1.py; the reference's own is `honest`."""
    shutil.copytree(REFERENCE, folder)
    (folder / "fa1.py").rename(folder / "honest.py")
    (folder / "fa1.py").write_text(text)
    return folder


def test_zeros_every_check_of_a_run_fails(tmp_path: Path) -> None:
    outcomes = lab03.run_checks(with_fa1(tmp_path / "answer", ZEROS))
    passed = {o.check_id for o in outcomes if o.status is Status.PASS}
    # The slope of the closed form is a case of its own, and isn't touched.
    assert passed & RUN_CHECKS == {"reload-slope"}
    assert Status.ERROR not in {o.status for o in outcomes}


def test_doing_nothing_every_check_of_a_run_fails(tmp_path: Path) -> None:
    text = "from honest import block_sizes, blocks  # noqa: F401\n" + "".join(
        f"def {name}(machine): return None\n" for name in forms.FUNCTIONS
    )
    outcomes = lab03.run_checks(with_fa1(tmp_path / "answer", text))
    assert {o.check_id for o in outcomes if o.status is Status.PASS} & RUN_CHECKS == {"reload-slope"}
    assert Status.ERROR not in {o.status for o in outcomes}


MISUSES = [
    *('machine.hbm.load("X", (0, 1))', "machine.hbm.load(3, (0, 1))", 'machine.hbm.load("Q", (0, 1))'),
    *('machine.hbm.load("Q", (0, 10**30), None, 1)', 'machine.hbm.load("Q", "ab", None, 1)', "machine.sram.free(1)"),
    *("machine.sram.alloc(10**9, 10**9)", "machine.sram.alloc(-1, 5)", "machine.sram.alloc(2.0, 5)"),
    *('machine.hbm.store("Q", np.ones((1, 1)), (0, 1))', 'machine.hbm.store("O", None, (0, 1), None, 1)'),
    *('machine.hbm.load("Q", (3, 3), None, machine.sram.alloc(1, machine.head_dim))', "machine.sram.alloc(True, [1])"),
    *('machine.hbm.store("O", np.ones(3), (0, 1), None, machine.sram.alloc(1, machine.head_dim))', "1 / 0"),
    *('machine.hbm.load("Q", (np.int64(0), None), None, 1)', 'machine.hbm.load("Q", (0, 1), (0, 1), 1)'),
]


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_of_the_machine_never_blames_the_judge_and_earns_nothing(misuse: str, tmp_path: Path) -> None:
    text = "import numpy as np\nfrom honest import block_sizes, blocks  # noqa: F401\nimport honest\n" + "".join(
        f"def {name}(machine):\n    try:\n        {misuse}\n    except RuntimeError:\n        pass\n"
        f"    honest.{name}(machine)\n"
        for name in forms.FUNCTIONS
    )
    outcomes = lab03.run_checks(with_fa1(tmp_path / "answer", text), only="bytes")
    assert {o.status for o in outcomes} == {Status.FAIL}


GARBAGE = ("None", "'text'", "[]", "float('nan')", "np.ones(3)", "True", "1e999", "{}", "np.float64('nan')", "10**40")


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_from_the_model_never_blames_the_judge(garbage: str, tmp_path: Path) -> None:
    folder = tmp_path / "answer"
    shutil.copytree(REFERENCE, folder)
    names = ("io_standard", "io_fa1", "io_fa1_backward", "io_fa2", "measure", "make_table")
    functions = "".join(f"def {name}(*_, **__): return {garbage}\n" for name in names)
    (folder / "io_model.py").write_text(f"import numpy as np\n{functions}")
    for check_id in ("paper-setting", "closed-forms", "backward-form", "reload-slope", "table-numbers"):
        outcomes = lab03.run_checks(folder, only=check_id)
        assert Status.ERROR not in {o.status for o in outcomes}
        assert [o for o in outcomes if o.status is not Status.PASS]


def test_starter_no_check_passes() -> None:
    outcomes = lab03.run_checks(lab03.COURSE.starter_dir(lab03.LAB_ID))
    assert [o.check_id for o in outcomes if o.status is Status.PASS] == []


def test_lab_every_check_has_a_mistake() -> None:
    assert set(lab03.LAB.checks) - {m.check for m in MISTAKES} == set()
    assert len([c for c in lab03.LAB.checks.values() if c.hidden]) >= 8


def test_large_scores_catch_what_the_other_checks_of_outputs_allow(tmp_path: Path) -> None:
    folder = tmp_path / "answer"
    shutil.copytree(REFERENCE, folder)
    path = folder / "fa1.py"
    # No maximum at all: exp of scores up to a few, and all is well; at 200 float32 overflows.
    text = path.read_text()
    assert text.count("np.maximum(row_max, scores.max(axis=1))") == 2
    path.write_text(text.replace("np.maximum(row_max, scores.max(axis=1))", "np.zeros_like(scores[:, 0])"))
    assert {o.status for o in lab03.run_checks(folder, only="fa2-output")} == {Status.PASS}
    assert {o.status for o in lab03.run_checks(folder, only="large-scores")} == {Status.FAIL}


@pytest.mark.parametrize("content", [b"", b"not a picture", b"\x89PNG\r\n\x1a\n"])
def test_plot_that_is_no_picture_loses_its_points(content: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "answer"
    shutil.copytree(REFERENCE, folder)
    (folder / "io.png").write_bytes(content)
    (outcome,) = lab03.run_checks(folder, only="io-plot")
    assert outcome.status is Status.FAIL


def test_paper_setting_is_what_the_handout_prints() -> None:
    setting = forms.Setting(1024, 64, 192 * 1024 // 2)
    assert forms.block_sizes(64, setting.m) == (384, 64)
    assert (forms.total(forms.FA1, setting), forms.backward_total(setting)) == (1_490_944, 2_514_944)
    total = 1024 * (1_490_944 + 2_514_944)
    initial, dq, dk_dv = (1024 * count for count in (1024 * 64 * 2 + 1024 * 8, 1024 * 64 * 2, 2 * 1024 * 64 * 2))
    shown = (total, total + initial + dq, total + initial + dq + dk_dv)
    assert [f"{count / 1e9:.3f}" for count in shown] == ["4.102", "4.379", "4.647"]
    handout = " ".join((lab03.COURSE.assignment_dir(lab03.LAB_ID) / "README.md").read_text().split())
    for number in ("1 490 944", "2 514 944", "1.527", "2.575", "4.102", "4.379", "4.647", "5.201", "466 944", "22 528"):
        assert number in handout
    small = forms.Setting(1024, 64, 4 * 64 * 256)
    assert f"{1024 * (forms.total(forms.FA1, small) + forms.backward_total(small)) / 1e9:.3f}" == "5.201"


def test_case_of_the_checks_is_ragged_where_it_says() -> None:
    hidden = load_module(lab03.COURSE.assignment_dir(lab03.LAB_ID) / "test_hidden.py", "lab03_hidden")
    for seed in range(40):
        rng = np.random.default_rng(seed)
        for kind in hidden.KINDS:
            n, d, m = hidden.sizes(rng, kind)
            large, small = forms.block_sizes(d, m)
            assert m % (4 * d) or kind == "one-block"
            assert {"ragged": n % large, "one-block": n < large}.get(kind, True)
            assert {"wide": large % small and n % large, "single-row": large == 1}.get(kind, True)
            # Seven loads and stores a step, and as many calls again to allocate and free four tiles in each.
            assert 15 * len(forms.blocks(n, large)) * len(forms.blocks(n, small)) < runs.MAX_CALLS / 2
    assert runs.MAX_CALLS > 15 * 16 * 16  # the finest point of the slope


@pytest.mark.parametrize(
    ("new", "place"),
    [
        (
            'hbm.store("O", o, rows, tile=o_tile)',
            r"fa1\.py:\d+ in fa1_forward: the machine refused a call \(store of O: ",
        ),
        ('hbm.load("P", rows)', r"fa1\.py:\d+ in fa1_forward: the machine refused a call \(fa1_forward has no tensor"),
        (
            '\n                try:\n                    hbm.load("O", rows)\n                except RuntimeError:\n'
            "                    pass",
            r"^fa1_forward: the machine refused a call \(O needs an SRAM tile\)",
        ),
    ],
    ids=["store", "load", "caught"],
)
def test_refused_call_names_its_line_in_a_public_check_only(new: str, place: str, tmp_path: Path) -> None:
    folder = tmp_path / "answer"
    shutil.copytree(SOLUTIONS / "reference", folder)
    path = folder / "fa1.py"
    old = 'hbm.store("O", o.astype(machine.dtype), rows, tile=o_tile)\n            hbm.store("l"'
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, f'if True: {new}\n            hbm.store("l"'))
    report = grade(
        GradeRequest(lab03.COURSE, lab03.LAB_ID, folder, checks=frozenset({"fa1-output", "fa1-bytes"}), device="cpu")
    )
    public, hidden = (next(c for c in report.checks if c.id == check) for check in ("fa1-output", "fa1-bytes"))
    assert re.search(place, public.message), public.message
    assert hidden.message.startswith("fa1_forward: the machine refused a call.")


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "least", "most"), [("reference", 100, 100), ("starter", 0, 5)])
def test_grade_behind_the_boundary_earns_what_it_should(folder: str, least: float, most: float) -> None:
    submission = REFERENCE if folder == "reference" else lab03.COURSE.starter_dir(lab03.LAB_ID)
    level = choose_isolation("auto").level
    report = grade(GradeRequest(lab03.COURSE, lab03.LAB_ID, submission, isolation=level))
    assert least <= report.score.points <= most
    assert not [c for c in report.checks if c.status in (Status.ERROR, Status.SKIPPED)]


def test_case_q_k_v_are_never_written(tmp_path: Path) -> None:
    case = runs.draw(np.random.default_rng(0), 12, 4, 64)
    before = [x.copy() for x in (case.q, case.k, case.v)]
    submission = lab03.InProcess(REFERENCE)
    submission.call("fa1_forward", Machine(case, forms.FA1).view(submission.host))
    assert all(np.array_equal(x, y) for x, y in zip(before, (case.q, case.k, case.v), strict=True))
    assert isinstance(case, Case)
