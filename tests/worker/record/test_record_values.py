"""What a launcher can know of its tensors, what it keeps between calls, and what it returns."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from recording import Submission, described, names_of, steps_of

from grader.worker.guards import ContractError
from grader.worker.record import Refused

IMPORTED = ["arange", "mul", "constant", "_to_copy", "zeros", "select", "add_", "select", "copy_"]


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("numpy", r"Tensor.numpy\(\) reads"),
        ("asarray", "NumPy reads"),
        ("tolist", r"Tensor.tolist\(\) reads"),
        ("overwritten", r"Tensor.tolist\(\) reads"),
        ("float", r"float\(\) of a tensor reads"),
        ("nonzero", "torch.nonzero reads"),
        ("equal", "torch.equal reads"),
        ("allclose", "torch.allclose reads"),
        ("item", r"item\(\) reads"),
        ("if", r"bool\(\) of a tensor \(an `if`"),
        ("mask", "indexing by a mask reads"),
        ("masked_select", "torch.masked_select reads"),
    ],
)
def test_record_numbers_of_an_argument_cannot_be_read(example: Submission, how: str, what: str) -> None:
    freely = {"allow": ["moves", "rope"], "rope": ["q"], "scale": []}
    with pytest.raises(Refused, match=what) as caught:
        example.record("reads", described(64), how, rules=freely)
    assert "the argument q" in str(caught.value)
    assert "the host never sees what the device holds" in str(caught.value)
    assert caught.value.where.startswith("recorded_launchers.py:")


def test_record_integers_that_a_kernel_was_given_cannot_be_read(example: Submission) -> None:
    with pytest.raises(Refused, match=r"item\(\) reads .* what the kernel `copy_kernel` wrote"):
        example.record("reads", described(64), "written")


def test_record_known_integers_can_be_read(example: Submission) -> None:
    lens = described(3, dtype="int32", values=np.array([3, 17, 5]))
    (launch,) = steps_of(example.record("integers", described(64), lens), "launch")
    assert launch["grid"] == [17, 3, 1]


def test_record_integers_without_values_cannot_be_read(example: Submission) -> None:
    with pytest.raises(Refused, match=r"int\(\) of a tensor .* the argument lens"):
        example.record("integers", described(64), described(3, dtype="int32"))
    example.module.KNOWN_LENGTHS = False
    (launch,) = steps_of(example.record("integers", described(64), described(3, dtype="int32")), "launch")
    assert launch["grid"] == [17, 3, 1], "what the launcher made itself can be read all the same"


def test_record_printing_shows_the_form_and_is_noted(example: Submission, capsys: pytest.CaptureFixture[str]) -> None:
    tape = example.record("prints", described(64))
    assert "tensor(shape=(64,), dtype=torch.float32, device='cuda:0', no numbers" in capsys.readouterr().out
    assert any("a tensor was printed" in note for note in tape["notes"])


def test_record_tensors_of_the_import_are_made_anew_in_each_call(example: Submission) -> None:
    first = example.record("cached", described(64))
    assert names_of(first)[: len(IMPORTED)] == IMPORTED
    assert first["steps"][0]["where"] == "recorded_helpers.py:7"
    assert first["steps"][2]["values"] == [0.5, 0.25]
    second = example.record("cached", described(64))
    assert names_of(second)[len(IMPORTED) :][:3] == ["empty_strided", "zero_", "copy_kernel"], "no kernel is repeated"
    assert names_of(second).count("copy_kernel") == names_of(first).count("copy_kernel") == 3
    assert any("kept between calls" in note for note in second["notes"])
    third = example.record("cached", described(128))
    assert names_of(third)[len(IMPORTED) :][:3] == ["empty_like", "zero_", "copy_kernel"]


def test_record_what_an_earlier_call_copied_into_a_buffer_is_not_repeated(example: Submission) -> None:
    def names() -> list[str]:
        return [name for name in names_of(example.record("refilled", described(64))) if name != "constant"]

    call = ["copy_", "slice", "fill_", "empty_like", "copy_kernel"]
    assert names() == ["empty_like", "zero_", *call]
    assert names() == names() == ["empty_strided", "zero_", "slice", "fill_", *call]


def test_record_every_call_finds_the_imports_numbers(example: Submission) -> None:
    tapes = [example.record("counted", described(64)) for _ in range(3)]
    assert tapes[0]["steps"] == tapes[1]["steps"] == tapes[2]["steps"]


def test_record_calls_without_kept_tensors_have_no_steps_of_the_import(example: Submission) -> None:
    assert names_of(example.record("copied", described(64))) == ["empty_like", "copy_kernel"]


def test_record_tensor_that_an_earlier_call_made_from_its_arguments_is_refused(example: Submission) -> None:
    example.record("cached_argument", described(64))
    with pytest.raises(Refused, match=r"an earlier call made from the argument x \(recorded_launchers.py:\d+\)"):
        example.record("cached_argument", described(64))


def test_record_a_refused_call_leaves_the_next_one_alone(example: Submission) -> None:
    with pytest.raises(Refused):
        example.record("mistakes", described(8, 8), "library")
    assert names_of(example.record("copied", described(64))) == ["empty_like", "copy_kernel"]


def test_record_many_calls_keep_nothing(example: Submission) -> None:
    def kept() -> int:
        gc.collect()
        example.history._sweep_at = 0
        example.history._sweep()
        return len(example.history._memories)

    example.record("cached", described(64))
    before = kept()
    for _ in range(3):
        example.record("cached", described(64))
    assert kept() == before


def test_record_layout_of_an_argument_is_its_own(example: Submission) -> None:
    import torch

    seen = []
    example.module.look = lambda x: seen.append((x.stride(), x.storage_offset(), x.data_ptr() % 512, x.dtype, x.device))
    odd = described(4, 8, dtype="bfloat16")
    odd = type(odd)("bfloat16", (4, 8), (1, 16), offset=3)
    example.record("look", odd)
    assert seen == [((1, 16), 3, 6, torch.bfloat16, torch.device("cuda:0"))]


def test_record_allocations_of_every_kind(example: Submission) -> None:
    tape = example.record("allocations", described(64))
    assert [len(step["out"]) for step in steps_of(tape, "op")] == [1] * 11
    assert tape["result"] == [{"t": number} for number in range(1, 12)]
    full = tape["steps"][3]
    assert (full["name"], full["args"]) == ("aten.full.default", [[4], float("-inf")])


def test_record_results_keep_their_form(example: Submission) -> None:
    result = example.record("records", described(64))["result"]["tuple"]
    assert result[0] == {"record": "Pair", "fields": {"first": {"t": 1}, "count": 3}}
    assert result[1] == {"record": "Answer", "fields": {"out": {"t": 1}, "parts": [{"t": 2}, {"t": 3}]}}
    assert result[2:] == [None, True, 2.5, 0.5, "text"]


def test_record_result_of_another_kind_is_refused(example: Submission) -> None:
    import torch

    class Own(torch.Tensor):
        pass

    for value, name in (({"out": 1}, "dict"), (torch.zeros(3).as_subclass(Own), "Own"), (np.zeros(3), "ndarray")):
        example.module.OF_ANOTHER_KIND = value
        with pytest.raises(ContractError, match=rf"the result is a .*{name}; expected exactly"):
            example.record("returns_another_kind", described(64))


def test_record_starts_no_driver(example: Submission, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA build starts a context for the first tensor on "cuda", which fails where there is no GPU."""
    from torch._subclasses import fake_tensor

    def start(device: object) -> None:
        raise RuntimeError("No CUDA GPUs are available")

    monkeypatch.setattr(fake_tensor, "init_gpu_context", start)
    assert len(steps_of(example.record("views", described(64)), "launch")) == 1
    assert fake_tensor.init_gpu_context is start


def test_record_afterwards_torch_and_triton_are_as_before(example: Submission) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from triton.runtime.jit import JITFunction

    def state() -> list[object]:
        return [torch.cuda.is_available, torch.compile, JITFunction.run, FakeTensor.__repr__, torch.zeros(1).item()]

    before = state()
    example.record("copied", described(64))
    assert state() == before
    assert type(torch.zeros(2) + 1) is torch.Tensor
