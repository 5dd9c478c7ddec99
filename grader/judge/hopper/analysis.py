"""lab09's analysis.toml: how it's read, and each answer recomputed from the tables that the student was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from grader.judge.hopper import measurements as tables
from grader.judge.hopper.measurements import CUDNN, FA2, FA4, Published, Shape, Speeds
from grader.judge.toml_file import read_table
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.profiles import HardwareProfile

FILE_NAME = "analysis.toml"
MAX_BYTES = 1 << 16
MAX_NUMBER = 1e300
KEYS = ("format_version", "ratios", "roofline", "causal", "ablation", "crossover", "holds_from", "claims")
CROSSOVERS = ((64, "no"), (128, "no"), (128, "yes"), (256, "no"), (256, "yes"))
"""(head_dim, causal) for which the paper shows FA3 beside cuDNN."""
GAINS = {"pipelining": "fa3-no-pipelining", "warp_specialization": "fa3-no-warp-specialization"}

TEXTS = {
    "analysis-missing": "A question has no answer, or a row is missing.",
    "analysis-inverted": "A ratio is upside down: FA2's rate over the other's.",
    "analysis-other-row": "A ratio is that of another kernel or direction.",
    "analysis-percent": "A ratio was given as a gain in percent, or a fraction as a percentage.",
    "analysis-measured-peak": "A fraction is of the measured GEMM rate, not of the profile's peak.",
    "analysis-sparse-peak": "A fraction is of the peak with sparsity, twice the dense one.",
    "analysis-noise-called": "A winner was named where the two fastest lie within the repeatability of a median.",
    "analysis-other-winner": "Another kernel than the fastest was named.",
    "analysis-causal-flops": "A causal time was compared as if it did as many FLOPs as the full one.",
    "analysis-causal-inverted": "A causal ratio is upside down: full over causal.",
    "analysis-causal-rate-for-time": "The ratio of rates was given as that of times.",
    "analysis-gain-of-whole": "A gain is relative to the complete kernel, not to the one without the step.",
    "analysis-gains-swapped": "The gains of the two steps are swapped.",
    "analysis-one-row": "A length was named from which on one row holds; all must, at every longer length too.",
    "analysis-claim": "A claim was judged otherwise than the tables bear out.",
    "analysis-wrong": "A number doesn't follow from the table.",
}


class AnalysisError(ValueError):
    """analysis.toml can't be read or has the wrong form; the message is for the student."""


def read(raw: bytes) -> dict[str, Any]:
    """The answers.

    Raises:
        AnalysisError: names the first thing that is wrong.
    """
    table = read_table(raw, max_bytes=MAX_BYTES, error=AnalysisError)
    unknown = sorted(set(table) - set(KEYS))
    if unknown:
        raise AnalysisError(f"it has the key {unknown[0][:40]!r}; expected {', '.join(KEYS)}")
    return table


class Answers:
    """What the file says, row by row; a missing or malformed answer ends the check."""

    def __init__(self, judge: Judge, table: Mapping[str, Any]) -> None:
        self._judge, self._table = judge, table

    def row(self, name: str, **wanted: object) -> Mapping[str, Any]:
        """The one table of the list `name` that has these values."""
        items = self._table.get(name, [])
        shown = ", ".join(f"{key} {value}" for key, value in wanted.items())
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            fail(self._judge, "analysis-missing", f"`{name}` must be a list of tables.")
        found = [item for item in items if all(item.get(key) == value for key, value in wanted.items())]
        if len(found) != 1:
            fail(self._judge, "analysis-missing", f"`{name}` has {len(found)} rows with {shown}, expected one.")
        return dict(found[0])

    def group(self, name: str) -> Mapping[str, Any]:
        items = self._table.get(name, {})
        if not isinstance(items, dict):
            fail(self._judge, "analysis-missing", f"`{name}` must be a table.")
        return items

    def number(self, row: Mapping[str, Any], key: str, where: str) -> float:
        value = row.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= MAX_NUMBER:
            fail(self._judge, "analysis-missing", f"{where}: `{key}` must be a finite number.")
        return float(value)

    def text(self, row: Mapping[str, Any], key: str, where: str, known: Sequence[str]) -> str:
        value = row.get(key)
        if value not in known:
            fail(self._judge, "analysis-missing", f"{where}: `{key}` must be one of {', '.join(known)}.")
        return str(value)


Guess = tuple[str, float]


def _hold(judge: Judge, got: float, want: float, allowed: float, where: str, guesses: Sequence[Guess]) -> None:
    """Fail unless a number is right; the diagnosis is the first mistake that gives it."""
    if abs(got - want) <= allowed:
        return
    for name, value in guesses:
        if abs(got - value) <= max(allowed, 0.005 * abs(value)):
            fail(judge, name, f"{where} doesn't follow from the table.")
    fail(judge, "analysis-wrong", f"{where} doesn't follow from the table.")


def judge_ratios(judge: Judge, answers: Answers, speeds: Speeds) -> None:
    """FA4's and cuDNN's rate over FA2's, for every shape and direction."""
    allowed = judge.thresholds["ratio"]
    for shape in speeds.shapes:
        for way, other_way in (tables.BOTH, tables.BOTH[::-1]):
            where = f"ratios: {told(shape)}, {way}"
            row = answers.row("ratios", **_named(shape), direction=way)
            for key, kernel, other in (("fa4", FA4, CUDNN), ("cudnn", CUDNN, FA4)):
                want = speeds.ratio(shape, kernel, FA2, way)
                guesses: list[Guess] = [
                    ("analysis-inverted", 1 / want),
                    ("analysis-percent", 100 * (want - 1)),
                    ("analysis-other-row", speeds.ratio(shape, other, FA2, way)),
                    ("analysis-other-row", speeds.ratio(shape, kernel, FA2, other_way)),
                ]
                _hold(judge, answers.number(row, key, where), want, allowed, f"{where}: `{key}`", guesses)


def judge_roofline(judge: Judge, answers: Answers, speeds: Speeds, profile: HardwareProfile) -> None:
    """The fastest forward kernel of each shape, or a tie, and its fraction of the profile's bfloat16 peak."""
    peak = profile.peak_tflops["bfloat16"]
    gemm = profile.measured.gemm_tflops["bfloat16"] if profile.measured is not None else peak
    for shape in speeds.shapes:
        where = f"roofline: {told(shape)}"
        row = answers.row("roofline", **_named(shape))
        rate = speeds.ranked(shape)[0][0]
        fraction = answers.number(row, "fraction_of_peak", where)
        guesses: list[Guess] = [
            ("analysis-percent", 100 * rate / peak),
            ("analysis-measured-peak", rate / gemm),
            ("analysis-sparse-peak", rate / peak / 2),
        ]
        _hold(judge, fraction, rate / peak, judge.thresholds["fraction"], f"{where}: `fraction_of_peak`", guesses)
        best, want = answers.text(row, "best", where, (*tables.KERNELS, "tie")), speeds.best(shape)
        if best != want:
            called = want == "tie" and best in [kernel for _, kernel in speeds.ranked(shape)[:2]]
            fail(judge, "analysis-noise-called" if called else "analysis-other-winner", f"{where}: not `{best}`.")


def judge_causal(judge: Judge, answers: Answers, speeds: Speeds) -> None:
    """What a causal mask does to FA4's forward: to its rate, and to its time."""
    for shape in [shape for shape in speeds.shapes if shape.causal == "no"]:
        masked = next(s for s in speeds.shapes if _same_but_mask(s, shape))
        rates = speeds.tflops[masked, FA4, "forward"] / speeds.tflops[shape, FA4, "forward"]
        row = answers.row("causal", seqlen=shape.seqlen, head_dim=shape.head_dim)
        where = f"causal: seqlen {shape.seqlen}, head_dim {shape.head_dim}"
        allowed = judge.thresholds["ratio"]
        inverse: Guess = ("analysis-causal-inverted", 1 / rates)
        _hold(judge, answers.number(row, "rate_ratio", where), rates, allowed, f"{where}: `rate_ratio`", [inverse])
        guesses: list[Guess] = [
            ("analysis-causal-flops", 1 / rates),
            ("analysis-causal-rate-for-time", rates),
            ("analysis-causal-inverted", 2 * rates),
        ]
        time = 0.5 / rates
        _hold(judge, answers.number(row, "time_ratio", where), time, allowed, f"{where}: `time_ratio`", guesses)


def judge_lengths(judge: Judge, answers: Answers, speeds: Speeds, published: Published) -> None:
    """The smallest length from which on a ratio holds; and from which on FA3 isn't slower than cuDNN."""
    held = answers.group("holds_from")
    for question, (kernel, way, ratio) in tables.HOLDS.items():
        got = answers.number(held, question, "holds_from")
        want = speeds.holds_from(kernel, ratio, way)
        one = [s.seqlen for s in speeds.shapes if speeds.ratio(s, kernel, FA2, way) >= ratio]
        if got != want:
            diagnosis = "analysis-one-row" if got == min(one, default=-1) else "analysis-wrong"
            fail(judge, diagnosis, f"holds_from: `{question}` doesn't follow from the table.")
    for head_dim, causal in CROSSOVERS:
        row = answers.row("crossover", head_dim=head_dim, causal=causal == "yes")
        where = f"crossover: head_dim {head_dim}, causal {causal}"
        if answers.number(row, "seqlen", where) != published.crossover(head_dim, causal):
            fail(judge, "analysis-wrong", f"{where}: `seqlen` doesn't follow from {tables.PUBLISHED}.")


def judge_ablation(judge: Judge, answers: Answers, published: Published, peak: float) -> None:
    """What pipelining and warp specialisation bought, in percent of the rate without each; and FA3's part of the peak.

    Args:
        peak: TFLOP/s of the card that the paper used.
    """
    whole = published.ablation["fa3"]
    given = answers.group("ablation")
    gains = {step: 100 * (whole / published.ablation[without] - 1) for step, without in GAINS.items()}
    for step, other in (("pipelining", "warp_specialization"), ("warp_specialization", "pipelining")):
        without = published.ablation[GAINS[step]]
        guesses: list[Guess] = [
            ("analysis-gain-of-whole", 100 * (1 - without / whole)),
            ("analysis-gains-swapped", gains[other]),
            ("analysis-percent", gains[step] / 100),
        ]
        key = f"{step}_percent"
        got = answers.number(given, key, "ablation")
        _hold(judge, got, gains[step], judge.thresholds["percent"], f"ablation: `{key}`", guesses)
    key = "fraction_of_peak"
    more: list[Guess] = [
        ("analysis-percent", 100 * whole / peak),
        ("analysis-sparse-peak", whole / peak / 2),
    ]
    got = answers.number(given, key, "ablation")
    _hold(judge, got, whole / peak, judge.thresholds["fraction"], f"ablation: `{key}`", more)


def judge_claims(judge: Judge, answers: Answers, speeds: Speeds, published: Published) -> None:
    """Whether the tables bear a claim out, deny it, leave it within the noise, or say nothing about it."""
    given = answers.group("claims")
    wrong = []
    for claim, decide in tables.CLAIMS.items():
        if answers.text(given, claim, "claims", tables.VERDICTS) != decide(speeds, published):
            wrong.append(claim)
    judge.measure("claims_right", len(tables.CLAIMS) - len(wrong))
    if wrong:
        fail(judge, "analysis-claim", f"claims: {len(wrong)} of {len(tables.CLAIMS)}, `{wrong[0]}` among them.")


def _named(shape: Shape) -> dict[str, object]:
    return {"seqlen": shape.seqlen, "head_dim": shape.head_dim, "causal": shape.causal == "yes"}


def _same_but_mask(one: Shape, other: Shape) -> bool:
    return one.causal != other.causal and (one.seqlen, one.head_dim) == (other.seqlen, other.head_dim)


def told(shape: Shape) -> str:
    return f"seqlen {shape.seqlen}, head_dim {shape.head_dim}, causal {shape.causal}"


def fail(judge: Judge, diagnosis: str, message: str) -> NoReturn:
    """Fail with one of `TEXTS` as the diagnosis."""
    judge.fail(f"{FILE_NAME}: {message}", diagnosis=Diagnosis(id=diagnosis, text=TEXTS[diagnosis]))
