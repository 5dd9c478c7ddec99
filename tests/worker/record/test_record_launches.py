"""Launches on a tape: arguments by name, constants, options, grids, candidates; and what can't be launched."""

from __future__ import annotations

from typing import Any

import pytest
from recording import FOLDER, RULES, Submission, described, names_of, steps_of

from grader.worker.record import Refused, history


def literal(value: Any) -> dict[str, str]:
    return {"kind": "literal", "text": repr(value)}


def test_record_launch_names_arguments_with_their_defaults(example: Submission) -> None:
    tape = example.record("copied", described(64))
    (launch,) = steps_of(tape, "launch")
    assert launch["args"] == {"x": {"t": 0}, "y": {"t": 1}, "n": 64}
    assert launch["constexprs"] == {"BLOCK": literal(64)}
    assert (launch["kernel"], launch["grid"], launch["phase"]) == ("copy_kernel", [1, 1, 1], "forward")
    source = (FOLDER / "recorded_helpers.py").read_text().splitlines()
    file, _, line = launch["where"].partition(":")
    assert file == "recorded_helpers.py"
    assert source[int(line) - 1].lstrip().startswith("copy_kernel[(triton.cdiv(x.numel()")
    assert [function["name"] for function in tape["functions"]] == ["copy_kernel", "doubled"]
    assert tape["result"] == {"t": 1}


def test_record_launch_grid_sees_constants_and_arguments(example: Submission) -> None:
    first, second = steps_of(example.record("grids", described(64)), "launch")
    assert first["grid"] == [2, 2, 1]
    assert first["constexprs"] == {"BLOCK": literal(32)}
    assert first["options"] == {"num_warps": 2}
    assert second["grid"] == [2, 1, 3], "and a grid of size 0 launches nothing"


def test_record_autotune_lists_the_pruned_candidates_with_their_hooks(example: Submission) -> None:
    tape = example.record("tuned", described(64))
    (choice,) = steps_of(tape, "choice")
    assert [candidate["text"].split(",")[:2] for candidate in choice["candidates"]] == [
        ["BLOCK: 32", " num_warps: 4"],
        ["BLOCK: 64", " num_warps: 4"],
    ]
    for candidate, (block, even, blocks) in zip(choice["candidates"], [(32, True, 3), (64, False, 2)], strict=True):
        hook, launch = candidate["steps"]
        assert (hook["name"], hook["args"]) == ("aten.zero_.default", [{"t": 1}]), "the candidate's own hook, once"
        assert launch["constexprs"] == {"BLOCK": literal(block), "EVEN": literal(even)}
        assert launch["grid"] == [blocks, 1, 1]
    assert names_of(tape) == ["empty_like", "choice"]


def test_record_descriptor_is_noted_as_each_candidate_sets_it(example: Submission) -> None:
    (choice,) = steps_of(example.record("descriptors", described(64, 16)), "choice")
    found = [candidate["steps"][0]["args"]["desc"]["descriptor"] for candidate in choice["candidates"]]
    assert found[0] == {
        "base": {"t": 0},
        "shape": [64, 16],
        "strides": [16, 1],
        "block_shape": [16, 16],
        "padding": "zero",
    }
    assert found[1]["block_shape"] == [32, 16]


def test_record_odd_arguments_are_kept(example: Submission) -> None:
    tape = example.record("oddities", described(64))
    (launch,) = steps_of(tape, "launch")
    assert launch["args"]["pair"] == {"tuple": [{"t": 0}, 3]}
    assert launch["args"]["bits"]["reinterpret"]["dtype"] == "fp8e5"
    index = launch["constexprs"]["FN"]["index"]
    assert tape["functions"][index]["name"] == "doubled"
    assert launch["constexprs"]["DTYPE"] == {"kind": "dtype", "name": "fp16"}
    assert launch["options"] == {"num_warps": 4, "num_stages": 2, "num_ctas": 1, "maxnreg": 64}


def test_record_compiled_kernel_launches_when_it_is_called(example: Submission) -> None:
    (launch,) = steps_of(example.record("persistent", described(64)), "launch")
    assert (launch["grid"], launch["constexprs"]) == ([64, 1, 1], {"BLOCK": literal(64)})


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("compiled", 1),
        ("operations", 2),
        ("device_and_streams", 2),
        ("prints", 1),
        ("views", 1),
        ("in_gluon", 1),
        ("profiled", 1),
        ("with_parameters", 1),
        ("default_device", 1),
    ],
)
def test_record_honest_launcher_survives(example: Submission, name: str, kernels: int) -> None:
    assert len(steps_of(example.record(name, described(64)), "launch")) == kernels


@pytest.mark.parametrize(("profile", "sms", "capability"), [("h100-sxm", 132, [9, 0]), ("l4", 58, [8, 9])])
def test_record_gpu_is_the_profiles(
    monkeypatch: pytest.MonkeyPatch, profile: str, sms: int, capability: list[int]
) -> None:
    with Submission("recorded_launchers", FOLDER, monkeypatch, profile) as submission:
        result = submission.record("device_and_streams", described(64))["result"]["tuple"]
    assert result[1:] == [sms, {"tuple": capability}]


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("address", r"is given an address as a number \(`x`\); pass the tensor itself"),
        ("host", "given a tensor on the cpu"),
        ("grid", r"a size of the grid of `copy_kernel` is a float \(1.0\); expected an integer"),
        ("no grid", "without a grid"),
        ("large grid", "CUDA allows sizes"),
        ("option", "the launch option `extern_libs` can't be recorded"),
        ("named tuple", "the named tuple Pair"),
        ("constexpr", "a tl.constexpr argument is a dict"),
        ("library", "torch.matmul on `x`"),
        ("attention", "scaled_dot_product_attention"),
        ("gradients", "a launcher can't ask torch for gradients"),
        ("hook", "that the pre_hook of one configuration made is used outside of it"),
        ("other thread", "made where nothing is recorded"),
        ("constant", "at most 65536"),
    ],
)
def test_record_mistake_is_refused_with_its_line(example: Submission, which: str, message: str) -> None:
    with pytest.raises(Refused, match=message) as caught:
        example.record("mistakes", described(8, 8), which)
    assert caught.value.where.startswith("recorded_")
    assert str(caught.value).startswith(f"{caught.value.where}: ")


def test_record_endless_loop_is_refused(example: Submission, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_STEPS", 32)
    with pytest.raises(
        Refused, match=r"recorded_launchers.py:\d+: this call makes more than 32 operations and launches"
    ):
        example.record("mistakes", described(64), "loop")


def test_record_input_is_written_only_where_the_lab_says_so(example: Submission) -> None:
    cache = described(64)
    tape = example.record("in_place", described(64), cache, rules={"mutable": ["cache"]})
    assert names_of(tape) == ["copy_kernel", "slice", "slice", "copy_", "view", "select", "zero_"]
    assert [step["out"] for step in steps_of(tape, "op") if step["name"].split(".")[1].endswith("_")] == [[None]] * 2
    with pytest.raises(Refused, match="writes to the input `cache`"):
        example.record("in_place", described(64), cache)


def test_record_rules_are_the_labs(example: Submission) -> None:
    assert "amax" in names_of(example.record("partials", described(64)))
    with pytest.raises(Refused, match=r"torch\.amax on what a kernel wrote"):
        example.record("partials", described(64), rules={"allow": [x for x in RULES["allow"] if x != "partials"]})
