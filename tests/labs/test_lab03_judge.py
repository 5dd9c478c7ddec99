"""lab03's judge: forms against counting, the two machines agree, replays see what they should, artifacts are read."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grader.course import Course
from grader.judge.softmax.mistakes import diagnose
from grader.judge.tiles import forms, models, moves, notes, outputs, runs, table
from grader.judge.tiles.forms import FA1, FA2, FUNCTIONS, STANDARD, Setting
from grader.judge.tiles.machine import REFUSALS, Machine
from grader.judge.tiles.replay import replay
from grader.modules import load_module
from grader.sandbox.hosting import HostRefusal

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = Course(ROOT).solution_dir("lab03_fa1_io") / "reference"


def load(name: str) -> ModuleType:
    return load_module(REFERENCE / f"{name}.py", f"lab03_reference_{name}")


fa1, local = load("fa1"), load("machine")


def host(target: Any, methods: tuple[str, ...], attributes: tuple[str, ...] = ()) -> Any:
    return target


def run_reference(machine: Machine) -> Machine:
    getattr(fa1, machine.function)(machine.view(host))
    return machine


def draw(n: int = 23, d: int = 5, m: int = 4 * 5 * 4 + 7, *, seed: int = 0, **options: Any) -> Any:
    return runs.draw(np.random.default_rng(seed), n, d, m, **options)


# Closed forms


def brute(function: str, s: Setting) -> Counter[tuple[str, str]]:
    """Moves counted by walking over the blocks, one at a time."""
    large, small = forms.block_sizes(s.d, s.m)
    found: Counter[tuple[str, str]] = Counter()

    def move(way: str, names: str, rows: int, cols: int, size: int) -> None:
        for name in names.split():
            found[way, name] += rows * cols * size

    row_size, col_size = (large, small) if function == FA2 else (small, large)
    if function == STANDARD:
        for cols in forms.blocks(s.n, large):
            move("load", "K", cols[1] - cols[0], s.d, s.itemsize)
            move("load", "Q V", s.n, s.d, s.itemsize)
        move("store", "O", s.n, s.d, s.itemsize)
        move("load", "S P", s.n, s.n, s.itemsize)
        move("store", "S P", s.n, s.n, s.itemsize)
        return found
    pairs = [(r, c) for c in forms.blocks(s.n, col_size) for r in forms.blocks(s.n, row_size)]
    pairs = [(r, c) for r, c in pairs if not s.causal or any(i >= j for i in range(*r) for j in range(*c))]
    for rows, cols in pairs:
        if function == FA1:
            move("load", "Q O", rows[1] - rows[0], s.d, s.itemsize)
            move("store", "O", rows[1] - rows[0], s.d, s.itemsize)
            for way in ("load", "store"):
                move(way, "l m", rows[1] - rows[0], 1, 4)
        else:
            move("load", "K V", cols[1] - cols[0], s.d, s.itemsize)
    once = "K V" if function == FA1 else "Q"
    move("load", once, s.n, s.d, s.itemsize)
    if function == FA2:
        move("store", "O", s.n, s.d, s.itemsize)
        move("store", "LSE", s.n, 1, 4)
    return found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_moves_equal_what_walking_over_the_blocks_counts(function: str, causal: bool) -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        d = int(rng.integers(1, 12))
        s = Setting(int(rng.integers(1, 60)), d, int(rng.integers(1, 90 * d)), int(rng.choice([2, 4])), causal)
        assert forms.moves(function, s) == brute(function, s)


def test_moves_without_a_mask_are_the_formulas_of_the_handout() -> None:
    s = Setting(97, 10, 4 * 10 * 12 + 3)
    passes = -(-97 // 12)
    assert forms.total(FA1, s) == (2 * 970 + passes * 3 * 970) * 2 + passes * 4 * 97 * 4
    assert forms.total(FA2, s) == (2 * 970 + passes * 2 * 970) * 2 + 97 * 4
    assert forms.total(STANDARD, s) == (4 * 97 * 97 + 2 * 970 + passes * 2 * 970) * 2
    assert forms.backward_total(s) == (4 * 970 + passes * 5 * 970) * 2 + passes * 2 * 97 * 4


def test_fa1_moves_less_than_standard_from_where_the_handout_says() -> None:
    n, d = 4096, 64
    crossing = d * d + 8 * d
    for m, less in ((crossing - 256, False), (crossing + 256, True)):
        s = Setting(n, d, m // (4 * d) * 4 * d)
        assert (forms.total(FA1, s) < forms.total(STANDARD, s)) is less


def test_reload_slope_of_the_form_is_minus_one_and_of_the_total_is_not() -> None:
    n, d = 256, 16
    memories = [4 * d * 2**k for k in range(9)]
    totals = [forms.total(FA1, Setting(n, d, m)) for m in memories]
    assert runs.reload_slope(totals, memories, 2 * n * d * 2) == pytest.approx(-1.0, abs=1e-9)
    assert abs(runs.reload_slope(totals, memories, 0) + 1) > 0.05
    assert np.isnan(runs.reload_slope([1, 2], [3, 4], 5))


# Mistakes in counts and models


@pytest.mark.parametrize("name", list(models.MODELS))
def test_mistaken_forms_differ_from_the_right_one_and_from_each_other(name: str) -> None:
    hidden = load_hidden()
    settings = hidden.settings(np.random.default_rng(1))
    answers: dict[tuple[float, ...], str] = {}
    for mistake, form in models._mistakes(models.MODELS[name]):
        values = tuple(form(setting) for setting in settings)
        if values == tuple(models.right(name, setting) for setting in settings):
            # Only what needs a mask may be invisible without one, and the standard form has no statistics.
            assert mistake.startswith("causal") or (name == "io_standard" and mistake.startswith("statistics")), mistake
            continue
        assert answers.setdefault(values, mistake) == mistake
    assert len(set(answers.values())) >= 6


def load_hidden() -> ModuleType:
    path = ROOT / "assignments" / "lab03_fa1_io" / "test_hidden.py"
    return load_module(path, "lab03_hidden_checks")


def test_right_forms_are_explained_by_no_mistake_of_the_mask() -> None:
    settings = load_hidden().settings(np.random.default_rng(3), causal=True)
    for name in ("io_fa1", "io_fa2"):
        assert models.explain(name, {s: 1.5 * models.right(name, s) for s in settings}) is None


def test_explain_of_a_count_that_no_mistake_gives_is_silent() -> None:
    s = Setting(40, 4, 80)
    got = forms.moves(FA1, s)
    assert moves.explain(FA1, s, got | {("load", "Q"): got["load", "Q"] + 8}) is None


# Outputs


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", ["ragged", "wide", "one-block", "single-row"])
def test_inputs_of_the_byte_checks_kill_every_known_mistake_that_applies(
    function: str, kind: str, causal: bool
) -> None:
    rng = np.random.default_rng(11)
    n, d, m = load_hidden().sizes(rng, kind)
    case = runs.draw(rng, n, d, m, dtype="float16", causal=causal)
    o, lse = outputs.truth(case)
    bound = outputs.allowed(function, case, o)
    for zeros in (np.zeros_like(o), np.broadcast_to(case.v.astype(float).mean(axis=0), o.shape)):
        assert np.abs(zeros - o).max() > 20 * bound
    killed = set()
    for mistake in outputs.mistakes(function, case):
        for result in mistake.results():
            o_off = not np.allclose(result[0].astype(float), o, atol=bound)
            lse_off = len(result) > 1 and not np.allclose(result[1], lse, atol=1e-3)
            if o_off or lse_off:
                killed.add(mistake.id)
    expected = {mistake.id for mistake in outputs.mistakes(function, case)}
    # With one block there is no old state to spoil, and nothing ragged; a row a tile leaves no row without a key.
    large, small = forms.block_sizes(d, m)
    if kind == "one-block" and function == FA1:
        expected -= {"rescale-missing", "output-rescale-missing", "block-max-kept", "state-lost", "tail-dropped"}
        expected -= {"old-output-normalised", "sum-not-carried", "exp-and-exp2-mixed"}
    if kind == "single-row":
        expected -= {"tail-dropped", "mask-missing"}
    blind = causal and outputs._nan_rows(function, case)[0]
    if causal and not np.isnan(blind).any():
        expected -= {"nan-on-masked-rows"}
    assert expected - killed <= ({"tail-dropped"} if n % small == 0 and n % large == 0 else set())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_honest_runs_are_allowed_and_never_diagnosed(function: str) -> None:
    for seed in range(5):
        for dtype in ("float16", "float32"):
            for slope in (1.0, 300.0, -300.0):
                case = draw(seed=seed, dtype=dtype, slope=slope)
                o, _ = outputs.truth(case)
                machine = run_reference(Machine(case, function))
                error = np.abs(machine.tensors["O"].astype(float) - o).max()
                assert error <= outputs.allowed(function, case, o)
                got = outputs.result_of(machine)
                assert diagnose(outputs.mistakes(function, case), got, outputs.truth(case)[: len(got)]) is None


# The machine


PROBES: list[tuple[str, str]] = [
    ("load", '("Z", (0, 1))'),
    ("load", '("Q", (0, 1))'),
    ("load", '("Q", (0, 1), None, 99)'),
    ("load", '("Q", (0, 3), None, 1)'),
    ("load", '("Q", (0, 1), (0, 1), 1)'),
    ("load", '("l", (0, 2), None, 1)'),
    ("load", '("l", (5, 2))'),
    ("load", '("m", (20, 24))'),
    ("store", '("K", np.zeros((1, 5), np.float16), (0, 1), None, 1)'),
    ("store", '("O", np.zeros((1, 5), np.float32), (0, 1), None, 1)'),
    ("store", '("O", np.zeros((2, 4), np.float16), (0, 2), None, 1)'),
    ("store", '("l", np.zeros(2, np.float16), (0, 2))'),
    ("alloc", "(100, 100)"),
    ("alloc", "(0, 5)"),
    ("free", "(7,)"),
]


@pytest.mark.parametrize(("method", "arguments"), PROBES)
def test_both_machines_refuse_the_same(method: str, arguments: str) -> None:
    hosted = Machine(draw(), FA1)
    provided = local.Machine(23, 5, 4 * 5 * 4 + 7, FA1)
    for view, refusal in ((hosted.view(host), HostRefusal), (provided, local.MachineError)):
        assert view.sram.alloc(2, 5) == 1
        target = view.sram if method in ("alloc", "free") else view.hbm
        with pytest.raises(refusal, match=r".") as caught:
            getattr(target, method)(*eval(arguments, {"np": np}))
        assert str(caught.value)
    assert hosted.refusal is not None
    assert hosted.refusal[0] in REFUSALS


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_both_machines_count_the_same(function: str, causal: bool) -> None:
    hosted = run_reference(Machine(draw(causal=causal), function))
    provided = local.Machine(23, 5, 4 * 5 * 4 + 7, function, causal=causal)
    getattr(fa1, function)(provided)
    assert provided.bytes_by_tensor == dict(hosted.moved)
    assert provided.total_bytes == sum(hosted.moved.values())
    assert provided.max_error() < 5e-3


def test_machine_after_too_many_calls_refuses() -> None:
    machine = Machine(draw(), FA1, max_calls=3)
    view = machine.view(host)
    for _ in range(3):
        view.hbm.load("l", (0, 1))
    with pytest.raises(HostRefusal, match="more than 3 calls"):
        view.hbm.load("l", (0, 1))
    assert machine.refusal == ("too-many-calls", "more than 3 calls")


def test_machine_freed_room_can_be_used_again() -> None:
    machine = Machine(draw(), FA1)
    view = machine.view(host)
    first = view.sram.alloc(16, 5)
    with pytest.raises(HostRefusal, match="doesn't fit"):
        view.sram.alloc(2, 5)
    view.sram.free(first)
    assert view.sram.alloc(17, 5) == 2
    assert machine.peak_elements == 85
    with pytest.raises(HostRefusal, match="isn't allocated"):
        view.sram.free(first)


# Replays


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("function", [FA1, FA2])
def test_replay_of_the_reference_finds_every_visible_pair(function: str, causal: bool) -> None:
    found = replay(run_reference(Machine(draw(causal=causal, dtype="float32"), function)))
    assert (found.met | ~draw(causal=causal).visible).all()
    assert found.error < 1e-5


@pytest.mark.parametrize("function", [FA1, FA2])
def test_replay_of_fresh_values_follows_the_reference_and_nothing_else(function: str) -> None:
    case = draw(dtype="float32")
    machine = run_reference(Machine(case, function, fresh=np.random.default_rng(1)))
    found = replay(machine)
    assert found.used.all()
    assert found.unfounded == 0
    assert max(found.error, found.statistics_error) < 1e-4
    # The same stores against a machine whose loads had brought something else: far off.
    other = Machine(case, function, fresh=np.random.default_rng(2))
    run_reference(other)
    other.events = [
        theirs if theirs.kind != "store" else ours for theirs, ours in zip(other.events, machine.events, strict=True)
    ]
    assert replay(other).error > 0.1


def test_replay_ends_the_life_of_a_tile_with_free_and_with_the_next_load() -> None:
    machine = Machine(draw(n=6, m=4 * 5 * 3), FA2)
    view = machine.view(host)
    q, k, v = (view.sram.alloc(3, 5) for _ in range(3))
    view.hbm.load("Q", (0, 3), tile=q)
    view.hbm.load("K", (0, 3), tile=k)
    view.sram.free(q)
    view.hbm.load("V", (0, 3), tile=v)
    assert not replay(machine).met.any()
    q = view.sram.alloc(3, 5)
    view.hbm.load("Q", (3, 6), tile=q)
    view.hbm.load("K", (3, 6), tile=k)
    view.hbm.load("Q", (0, 3), tile=q)
    met = replay(machine).met
    assert met[3:, :3].all()
    assert met.sum() == 9


# Artifacts

NOTES = (REFERENCE / "NOTES.md").read_text()


def test_notes_of_the_reference_hold() -> None:
    notes.judge_notes(NOTES.encode(), min_words=30)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("## fa2_forward", "## something", "no section whose heading names fa2_forward"),
        ("load Q_i, O_i, l_i, m_i", "load Q_i, l_i, m_i", "never loads O"),
        ("store O_i, l_i, m_i", "store O_i, l_i, m_i, P_ij", "used outside|doesn't store P|store P"),
        ("        load Q_i, O_i, l_i, m_i", "    load Q_i, O_i, l_i, m_i", "outside of a loop over i"),
        ("closed form: 2*N*d + N + Tr*2*N*d", "", "no closed form"),
        ("closed form: 2*N*d + N + Tr*2*N*d", "closed form: __import__('os')", "can't be read"),
        ("closed form: 2*N*d + N + Tr*2*N*d", "closed form: 2*N*d + 2*N + Tr*2*N*d", "not that of the algorithm"),
        ("closed form: 2*N*d + N + Tr*2*N*d", "closed form: N**99999", "can't be read"),
        ("closed form: 2*N*d + N + Tr*2*N*d", "closed form: N/(d-d)", "can't be read"),
        ("prints 4.4 GB", "prints something", "doesn't mention 4.4"),
        ("1.53 GB", "much", "doesn't mention 1.53"),
    ],
)
def test_notes_that_break_a_rule_say_which(old: str, new: str, message: str) -> None:
    text = NOTES.replace("1.527 + 2.575", "see above")
    assert text.count(old) == 1
    with pytest.raises(notes.NotesError, match=message):
        notes.judge_notes(text.replace(old, new).encode(), min_words=30)


def test_notes_without_text_of_ones_own_are_thin() -> None:
    with pytest.raises(notes.NotesError, match="different words"):
        notes.judge_notes(NOTES.encode(), min_words=300)


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"```" * 500, b"#" * 70_000, b"## fa1_forward\n```\nload Q_i\n```"])
def test_notes_of_any_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(notes.NotesError):
        notes.judge_notes(raw, min_words=0)


def test_evaluate_is_exact() -> None:
    values = {"N": Fraction(9), "d": Fraction(2), "Tc": Fraction(3), "Tr": Fraction(4)}
    assert notes.evaluate("4*N^2 + N/d - (Tc - Tr)", values) == 324 + Fraction(9, 2) + 1


def test_table_of_the_reference_is_read() -> None:
    read = table.read_table((REFERENCE / "io.csv").read_bytes())
    assert len(read) == 21
    assert all(row.counted == row.model == forms.total(point[0], Setting(*point[1:])) for point, row in read.items())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("function,seq_len", "function,n", "first line"),
        ("466944,466944", "466944,many", "text where a number"),
        ("fa2_forward,128,16,8192", "fa2_forward,128,16,8191", "no point that is asked for"),
        ("fa2_forward,128,16,8192", "fa2_forward,128,16,4096", "there twice"),
        ("9437184,9437184,", "9437184,9437184,-", "negative or not finite"),
    ],
)
def test_table_that_is_not_the_one_says_why(old: str, new: str, message: str) -> None:
    text = (REFERENCE / "io.csv").read_text()
    assert text.count(old) == 1
    with pytest.raises(table.TableError, match=message):
        table.read_table(text.replace(old, new).encode())
