"""The reference solutions and other right answers record under their labs' own rules."""

from __future__ import annotations

from typing import Any

import pytest
from recording import ROOT, Submission, described, steps_of

from grader.course import Course

SOLUTIONS = ROOT / "solutions"


def rules_of(lab: str, function: str, *mutable: str) -> dict[str, Any]:
    found = Course(ROOT).lab(lab).record[function]
    names = ("allow", "scale", "rope", "known")
    return {**{name: list(getattr(found, name)) for name in names}, "mutable": list(mutable)}


def attention(**more: Any) -> list[Any]:
    return [described(2, heads, 256, 64, dtype="float16", **more) for heads in (4, 2, 2)]


@pytest.mark.parametrize(("folder", "kernels"), [("reference", 1), ("correct/split_kv", 2)])
def test_record_fa2_forward(monkeypatch: pytest.MonkeyPatch, folder: str, kernels: int) -> None:
    lab = "lab06_fa2_forward"
    with Submission("fa2_forward", SOLUTIONS / lab / folder, monkeypatch) as submission:
        rules = rules_of(lab, "flash_attention_forward")
        tape = submission.record("flash_attention_forward", *attention(), causal=True, rules=rules)
    assert len(steps_of(tape, "launch")) == kernels
    assert len(tape["result"]["tuple"]) == 2


def test_record_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = "lab07_backward"
    with Submission("fa2_backward", SOLUTIONS / lab / "reference", monkeypatch) as submission:
        tape = submission.record(
            "flash_attention",
            *attention(requires_grad=True),
            causal=True,
            cotangents=[described(2, 4, 256, 64, dtype="float16")],
            rules=rules_of(lab, "flash_attention"),
        )
    kernels = [(step["kernel"], step["phase"]) for step in steps_of(tape, "launch")]
    assert kernels == [
        ("_forward_kernel", "forward"),
        ("_delta_kernel", "backward"),
        ("_dk_dv_kernel", "backward"),
        ("_dq_kernel", "backward"),
    ]
    delta, dk_dv, dq = (step["args"] for step in steps_of(tape, "launch")[1:])
    assert delta["do_ptr"] == dk_dv["do_ptr"] == dq["do_ptr"] == {"t": tape["cotangents"][0]}
    assert [{"t": tape["gradients"][name]} for name in "qkv"] == [dq["dq_ptr"], dk_dv["dk_ptr"], dk_dv["dv_ptr"]]


def test_record_decode_step(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = "lab08_decode"
    cache = [described(20, 16, 2, 64, dtype="float16") for _ in range(2)]
    token = [described(3, heads, 64, dtype="float16") for heads in (8, 2, 2)]
    places = [described(3, 64, dtype="int32"), described(3, dtype="int32")]
    with Submission("paged_decode", SOLUTIONS / lab / "reference", monkeypatch) as submission:
        rules = rules_of(lab, "decode_step", "k_cache", "v_cache")
        tape = submission.record("decode_step", *token, *cache, *places, rules=rules)
    assert [step["kernel"] for step in steps_of(tape, "launch")] == [
        "_append_kernel",
        "_decode_kernel",
        "_merge_kernel",
    ]
