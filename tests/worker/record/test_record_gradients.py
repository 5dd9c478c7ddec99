"""Gradients on a tape: through Functions, through torch's own operations between them, to the inputs."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from recording import Submission, described, names_of, replayed, steps_of

from grader.worker.record import Refused, session
from grader.worker.rules import Checker

FREELY: dict[str, Any] = {"allow": ["moves", "rope", "partials"], "rope": ["x", "factor"], "scale": []}


def test_record_gradients_go_through_functions_and_operations(example: Submission) -> None:
    x, factor = described(64, requires_grad=True), described(64, requires_grad=True)
    tape = example.record("differentiable", x, factor, cotangents=[described(8, 8), None], rules=FREELY)
    assert tape["cotangents"] == [2, None]
    backward = steps_of(tape, "launch")
    assert [step["phase"] for step in backward] == ["forward"] * 3 + ["backward"] * 3
    # Later's backward copies the cotangent; y + y sends it twice; Scaled's backward copies the sum for x and factor.
    assert backward[3]["args"]["x"] == {"t": 2}
    assert tape["gradients"] == {"x": backward[4]["args"]["y"]["t"], "factor": backward[5]["args"]["y"]["t"]}
    assert names_of(tape).count("add") == 2
    assert "zeros_like" in names_of(tape), "the result without a gradient gets zeros"


def test_record_gradients_of_several_paths_are_summed(example: Submission) -> None:
    x, factor = described(64, requires_grad=True), described(64, requires_grad=True)
    rules = {**FREELY, "rope": ["x", "factor", "cotangents"]}
    tape = example.record("differentiable", x, factor, cotangents=[None, described(64)], rules=rules)
    assert tape["gradients"]["factor"] is None
    (last,) = steps_of(tape, "op")[-1:]
    assert last["out"] == [tape["gradients"]["x"]]
    assert (last["name"], last["args"]) == ("aten.mul.Tensor", [{"t": 2}, 1])


class Permissive(Checker):
    """No lab lets a launcher do all of this."""

    def check(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None: ...

    def finish(self, results: Any) -> None: ...


def test_record_gradients_equal_those_of_torchs_engine(example: Submission, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Checker", Permissive)
    described_inputs = described(8, 8, requires_grad=True), described(8, requires_grad=True)
    forms = [((8, 8), "float64"), ((8,), "float32"), ((), "float32")]
    tape = example.record("in_torch", *described_inputs, cotangents=[described(*s, dtype=d) for s, d in forms])
    torch.manual_seed(1)
    inputs = {"x": torch.randn(8, 8, requires_grad=True), "w": torch.randn(8, requires_grad=True)}
    cotangents = [torch.randn(shape, dtype=getattr(torch, dtype)) for shape, dtype in forms]
    results = example.module.in_torch(**inputs)
    torch.autograd.backward(results, cotangents)
    found = replayed(tape, inputs, cotangents)
    for result, written in zip(results, tape["result"]["tuple"], strict=True):
        torch.testing.assert_close(found[written["t"]], result.detach())
    for name, tensor in inputs.items():
        torch.testing.assert_close(found[tape["gradients"][name]], tensor.grad)


def test_record_gradients_of_an_input_that_needs_none_are_left_out(example: Submission) -> None:
    tape = example.record(
        "differentiable",
        described(64, requires_grad=True),
        described(64),
        cotangents=[described(8, 8), None],
        rules=FREELY,
    )
    assert set(tape["gradients"]) == {"x"}


def test_record_gradients_of_a_registered_operation(example: Submission) -> None:
    tape = example.record("square", described(64, requires_grad=True), cotangents=[described(64)])
    assert [step["phase"] for step in steps_of(tape, "launch")] == ["forward", "backward"]
    assert list(tape["gradients"].values()) == [steps_of(tape, "launch")[1]["args"]["y"]["t"]]


def test_record_gradients_keep_the_strides_of_a_cotangent(example: Submission, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    functions = sys.modules["recorded_functions"]
    inner = functions.copied

    def copied(x: Any) -> Any:
        seen.append(x.stride())
        return inner(x)

    monkeypatch.setattr(functions, "copied", copied)
    expanded = type(described(64))("float32", (64,), (0,))
    example.record("wrong_gradients", described(64, requires_grad=True), "fits", cotangents=[expanded])
    assert seen == [(1,), (0,)]


def test_record_gradients_of_a_result_without_a_graph_are_refused(example: Submission) -> None:
    with pytest.raises(RuntimeError, match="result 0 does not require grad"):
        example.record("copied", described(64, requires_grad=True), cotangents=[described(64)])


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("few", "Wrong.backward returned 1 gradients; expected 2"),
        ("shape", r"argument 0 of forward \(x\) has shape \(3,\); expected \(64,\)"),
        ("number", r"argument 0 of forward \(x\) is a float; expected a tensor"),
        ("extra", r"argument 1 of forward \(mode\) is a FakeTensor; expected None"),
    ],
)
def test_record_gradients_that_do_not_fit_are_refused(example: Submission, mode: str, message: str) -> None:
    with pytest.raises(Refused, match=message) as caught:
        example.record("wrong_gradients", described(64, requires_grad=True), mode, cotangents=[described(64)])
    assert caught.value.where.startswith("recorded_functions.py:")
