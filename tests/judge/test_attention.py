"""Drawing a case, calling a submission, and the words of the verdict."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pytest

from grader.errors import CourseError
from grader.judge import attention
from grader.judge.mistakes import by_id
from grader.judge.oracle import AttentionCase, RowView
from grader.judge.precision import numpy_dtype
from grader.report.model import Diagnosis, ErrorMap
from grader.sandbox.failures import ContractViolated
from grader.sandbox.wire import Tensor


class Failed(Exception):
    def __init__(self, message: str, diagnosis: Diagnosis | None, error_map: ErrorMap | None) -> None:
        super().__init__(message)
        self.message, self.diagnosis, self.error_map = message, diagnosis, error_map


class FakeJudge:
    def __init__(self) -> None:
        self.measured: dict[str, object] = {}

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(99)

    def measure(self, name: str, value: object) -> None:
        self.measured[name] = value

    def fail(self, message: str, *, diagnosis: Diagnosis | None = None, error_map: ErrorMap | None = None) -> NoReturn:
        raise Failed(message, diagnosis, error_map)


class FakeSubmission:
    """Answers with the oracle's O and LSE, or with what `answer` makes of them."""

    device = "cpu"

    def __init__(self, case: AttentionCase, answer: Any = None) -> None:
        self.case, self.answer, self.calls = case, answer, []  # type: ignore[var-annotated]

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((function, args, kwargs))
        o, lse = attention.exact(self.case)
        result = Tensor(o.astype(numpy_dtype(self.case.dtype))), Tensor(lse.astype(np.float32))
        return result if self.answer is None else self.answer(*result)


def _case(**options: Any) -> AttentionCase:
    base: dict[str, Any] = {"q_heads": 4, "kv_heads": 2, "q_len": 90, "k_len": 203, "head_dim": 64, "causal": True}
    return attention.case(np.random.default_rng(1), **{**base, **options})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_run_and_judge_right_answer_passes_and_is_measured(dtype: str) -> None:
    case, judge = _case(dtype=dtype), FakeJudge()
    o, lse = attention.run_forward(FakeSubmission(case), case)
    attention.judge_forward(judge, case, o, lse)
    assert 0 <= judge.measured["o_error_over_allowed"] < 1  # type: ignore[operator]


def test_run_forward_passes_scale_and_window_only_when_set() -> None:
    case = _case()
    submission = FakeSubmission(case)
    attention.run_forward(submission, case, timeout_s=3.0)
    assert submission.calls[0][2] == {"causal": True, "timeout_s": 3.0}
    case = _case(scale=0.0, window=(3, -1))
    submission = FakeSubmission(case)
    attention.run_forward(submission, case)
    assert submission.calls[0][2] == {"causal": True, "scale": 0.0, "window": (3, -1)}


def _relabel(tensor: Tensor, device: str) -> Tensor:
    return Tensor(tensor.data, device=device)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda o, lse: o, "returned Tensor; expected the two tensors"),
        (lambda o, lse: (o, lse, lse), "returned 3 values"),
        (lambda o, lse: (o.data, lse), "o is a ndarray, expected a tensor"),
        (lambda o, lse: (Tensor(o.data.astype(np.float32)), lse), "o has dtype float32, expected float16"),
        (lambda o, lse: (o, Tensor(lse.data.astype(np.float16))), "lse has dtype float16, expected float32"),
        (lambda o, lse: (o, Tensor(lse.data[..., None])), r"lse has shape \(1, 4, 90, 1\), expected \(1, 4, 90\)"),
        (lambda o, lse: (Tensor(o.data[:, :1]), lse), r"o has shape \(1, 1, 90, 64\)"),
        (lambda o, lse: (_relabel(o, "cuda"), lse), "o is on cuda, expected cpu"),
    ],
    ids=["one", "three", "ndarray", "o-dtype", "lse-dtype", "lse-shape", "o-shape", "device"],
)
def test_run_forward_wrong_kind_of_result_violates_the_contract(answer: Any, message: str) -> None:
    case = _case()
    with pytest.raises(ContractViolated, match=message):
        attention.run_forward(FakeSubmission(case, answer), case)


def _failure(case: AttentionCase, o: np.ndarray, lse: np.ndarray, **options: Any) -> Failed:
    with pytest.raises(Failed) as caught:
        attention.judge_forward(FakeJudge(), case, o, lse, **options)
    return caught.value


def test_judge_forward_known_mistake_is_diagnosed_and_mapped() -> None:
    case = _case()
    o, lse = by_id("mask-top-left").variants[0](RowView.whole(case))
    failed = _failure(case, o.reshape(case.q.shape), lse.reshape(case.q.shape[:3]), label="second call")
    assert failed.diagnosis is not None
    assert failed.diagnosis.id == "mask-top-left"
    assert failed.message.startswith("second call: O: ")
    assert "allowed" in failed.message
    assert failed.error_map is not None
    assert failed.error_map.tile == (16, 16)
    assert (len(failed.error_map.cells), len(failed.error_map.cells[0])) == (6, 4)
    assert max(max(row) for row in failed.error_map.cells) > 1


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (np.s_[:, 2:], "Only query heads from kv_heads upwards are wrong"),
        (np.s_[:, 1:], "Only heads after the first are wrong"),
        (np.s_[1:], "Only batch entries after the first are wrong"),
        (np.s_[:, :, 64:], "Only the rows of the last, partial query tile"),
        (np.s_[:, :, :16], "Only the first 16 query rows are wrong"),
        (np.s_[..., 32:], "Only head_dim columns from 32 upwards are wrong"),
    ],
    ids=["kv-heads", "heads", "batch", "tail", "head", "columns"],
)
def test_judge_forward_message_says_where(place: Any, sentence: str) -> None:
    case = _case(batch=2, q_len=100 if sentence.endswith("wrong") else 90, causal=False)
    o, lse = attention.exact(case)
    o[place] += 0.5
    assert sentence in _failure(case, o, lse).message


def test_judge_forward_rows_without_keys_are_told() -> None:
    case = _case(q_len=150, k_len=100)
    o, lse = attention.exact(case)
    o[:, :, :50] = np.nan
    failed = _failure(case, o, lse)
    assert "Only rows that see no key at all are wrong" in failed.message
    assert failed.diagnosis is not None
    assert failed.diagnosis.id == "fully-masked-row-nan"


def test_judge_forward_wrong_lse_alone_maps_the_lse() -> None:
    case = _case()
    o, lse = attention.exact(case)
    failed = _failure(case, o, lse / np.log(2))
    assert failed.diagnosis is not None
    assert failed.diagnosis.id == "lse-base-2"
    assert "O is right." in failed.message
    assert failed.error_map is not None
    assert failed.error_map.title.startswith("LSE, batch 0")


def test_judge_forward_all_nan_says_what_it_can_mean() -> None:
    case = _case()
    o, lse = attention.exact(case)
    failed = _failure(case, np.full(o.shape, np.nan), lse)
    assert "Every value is NaN" in failed.message
    assert failed.error_map is not None
    assert np.isinf(failed.error_map.cells).all()


def test_judge_forward_message_holds_no_value_of_inputs_or_oracle() -> None:
    case = _case()
    o, lse = attention.exact(case)
    spoiled = o.copy()
    spoiled[0, 1, 5, 7] += 1.0
    message = _failure(case, spoiled, lse).message
    for value in (o[0, 1, 5, 7], lse[0, 1, 5], case.q[0, 1, 5, 7]):
        assert f"{value:.2e}" not in message


def test_judge_forward_large_case_samples_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "WHOLE_SCORES", 20_000)
    case, judge = _case(q_len=200, k_len=150, causal=False), FakeJudge()
    view = attention.choose_view(case, judge.rng())
    assert not view.is_whole
    o, lse = attention.exact(case)
    attention.judge_forward(judge, case, o, lse)
    o[:, :, 64:128] += 0.5
    assert _failure(case, o, lse).error_map is not None


@pytest.mark.parametrize("layout", [*attention.layouts.LAYOUTS, "mixed", ("contiguous", "seqlen-last", "offset")])
def test_to_tensors_any_layout_keeps_logical_values(layout: Any) -> None:
    case = _case(layout=layout, batch=2)
    for tensor, values in zip(attention.to_tensors(case), (case.q, case.k, case.v), strict=True):
        np.testing.assert_array_equal(tensor.data.astype(np.float64), values)
        for axis, stride in enumerate(tensor.strides or ()):
            if stride == 0:
                assert (values == values.take([0], axis=axis)).all()


def test_to_tensors_mixed_layout_differs_between_q_k_v() -> None:
    q, k, v = attention.to_tensors(_case(layout="mixed"))
    assert q.strides == (90 * 4 * 64, 64, 4 * 64, 1)
    assert k.strides == (2 * 203 * 72, 203 * 72, 72, 1)
    assert (v.strides, v.offset) == (None, 40)


def test_case_unknown_dtype_is_named() -> None:
    with pytest.raises(CourseError, match="Unknown dtype 'float8'"):
        _case(dtype="float8")
