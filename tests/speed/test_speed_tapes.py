"""Recorded functions in a race: their tapes' device work is timed, in windows whose outputs are judged.

On a CPU and where a worker pretends to have a GPU (`pretend_cuda.py`), whose captured graphs are replayed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_submission import isolation, small_lab
from speed_toys import MatmulRows, matmul

from grader.course import Course, Record
from grader.judge.speed.model import Array, Contestant, Drawn, InputSpec, Picks, Race, Rules, Workload
from grader.judge.speed.race import WrongOutput, race
from grader.profiles import HardwareProfile, load_profile
from grader.sandbox.failures import ContractViolated
from grader.sandbox.launch import LaunchSpec, launch
from grader.sandbox.stage import Staged
from grader.sandbox.submission import Device, Submission
from grader.sandbox.worker_process import LaunchedWorker

pytest.importorskip("triton")
pytestmark = pytest.mark.xdist_group("races")  # one timed job a device: others would wait for its lock

PRETEND = Path(__file__).with_name("pretend_cuda.py")
RULES = Rules(window_s=60.0, rounds=2, cross_every=2, warmup=1, retries=0, alone=1, max_spread=1e9, max_calls=4)
"""No call takes as long as a window, so a window has as many as it may: half of `max_calls`."""
SIZE = 16
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(a, b, c, factor, SIZE: tl.constexpr, SHIFT: tl.constexpr = 0):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    places = rows * SIZE + columns
    product = tl.dot(tl.load(a + places), tl.load(b + places), input_precision="ieee") * tl.load(factor)
    tl.store(c + SHIFT + places, product)


def own(a, b, **options):
    c = torch.empty_like(a)
    _kernel[(1,)](a, b, c, torch.tensor([1.0], device=a.device), SIZE=a.shape[0], **options)
    return c
"""
PRODUCT = KERNEL + "\n\ndef product(a, b):\n    return own(a, b.contiguous().clone())\n"


def profile() -> HardwareProfile:
    return load_profile(Course.find(Path(__file__)).root, "h200")


def pretending(spec: LaunchSpec) -> LaunchedWorker:
    """Start an executor for a GPU as one that pretends to have it."""
    if spec.device == "cpu":
        return launch(spec)
    env = {**spec.env, "GRADE_PRETENDED_PROFILE": json.dumps(profile().model_dump(mode="json"))}
    return launch(replace(spec, env=env, entry="pretend_cuda", extra_modules=(PRETEND,)))


Opener = Callable[[str], Submission]


ON_BOTH = [pytest.param("cpu", marks=pytest.mark.slow), "cuda"]


@pytest.fixture
def device() -> Device:
    return "cpu"


@pytest.fixture
def opened(device: Device, tmp_path: Path) -> Opener:
    """A submission of a lab that records `product`."""

    def make(source: str) -> Submission:
        (tmp_path / "answer.py").write_text(source)
        (tmp_path / "answer.py").chmod(0o644)
        for path in (tmp_path, *list(tmp_path.parents)[:3]):  # pytest's temporary folders are closed to other users
            if path.owner() == tmp_path.owner() and path != Path("/"):
                path.chmod(path.stat().st_mode | 0o055)
        rules = {"product": Record(allow=("moves",), parameters=("a", "b"))}
        lab = small_lab("triton").model_copy(update={"record": rules})
        staged = Staged(tmp_path, tmp_path)
        return Submission(staged, lab, isolation(), device, profile(), launcher=pretending)

    return make


def raced(submission: Submission, *workloads: Workload) -> list[Race]:
    rng = np.random.default_rng(0)
    with submission:
        return race(Contestant("yours", submission), None, workloads, profile=None, rng=rng, rules=RULES)


@pytest.mark.parametrize("device", ON_BOTH)
def test_race_of_a_tape_judges_every_window_and_counts_its_device_work(opened: Opener) -> None:
    first, second = raced(opened(PRODUCT), matmul(SIZE), replace(matmul(2 * SIZE), label="larger"))
    assert (first.label, second.label) == (f"{SIZE} x {SIZE}", "larger")
    assert first.ours.windows == 2 * RULES.rounds
    assert first.ours.calls == RULES.max_calls // 2
    # The launcher's own number, the copy of b, and the launch.
    assert (first.ours.launches, first.ours.operations) == (1, 3)


def test_race_of_a_tape_refuses_a_wrong_product(opened: Opener) -> None:
    with pytest.raises(WrongOutput, match=r"`product` gave a wrong output \(16 x 16\)"):
        raced(opened(PRODUCT.replace("own(a, b.", "own(b, b.")), matmul(SIZE))


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_race_of_a_tape_whose_kernel_leaves_rows_unwritten_is_refused(opened: Opener) -> None:
    """What an earlier window left there is poisoned before each."""
    half = PRODUCT.replace("c + SHIFT + places, product", "c + SHIFT + places, product, mask=rows < SIZE // 2")
    with pytest.raises(WrongOutput, match="gave a wrong output"):
        raced(opened(half), matmul(SIZE))


def test_race_of_a_tape_without_a_kernel_is_refused(opened: Opener) -> None:
    with pytest.raises(ContractViolated, match="comes from a Triton kernel"):
        raced(opened(KERNEL + "\n\ndef product(a, b):\n    own(a, b)\n    return a.clone()\n"), matmul(SIZE))


TUNED = PRODUCT.replace(
    "@triton.jit",
    "@triton.autotune([triton.Config({'SHIFT': 0}, num_warps=warps) for warps in (4, 8)], key=['SIZE'])\n@triton.jit",
)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_race_of_a_tape_takes_one_of_an_autotuners_candidates_and_tells_which(opened: Opener) -> None:
    (ran,) = raced(opened(TUNED), matmul(SIZE))
    assert len(ran.ours.tuned) == 1
    assert "num_warps" in ran.ours.tuned[0]
    assert ran.ours.launches == 1


GRADIENT = (
    KERNEL
    + """

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(b)
        return own(a, b)

    @staticmethod
    def backward(ctx, grad):
        (b,) = ctx.saved_tensors
        return own(grad, b.T.contiguous()), None


def product(a, b):
    return Product.apply(a, b)
"""
)


class GradientRows(MatmulRows):
    """Rows of grad @ b.T."""

    def problem(self, drawn: Drawn, picks: Picks, taken: dict[int, Array]) -> str:  # type: ignore[override]
        wanted = drawn.take("grad")[picks[0][:, 0]] @ drawn.take("b").T
        return "" if np.allclose(taken[0], wanted, atol=1e-2) else "off"


@pytest.mark.parametrize("device", ON_BOTH)
def test_race_of_a_gradient_tape_times_the_backward_pass_alone(opened: Opener) -> None:
    plain = matmul(SIZE)
    a, b = (replace(spec, requires_grad=spec.name == "a") for spec in plain.inputs)
    grad = InputSpec("grad", a.shape, a.dtype, cotangent=True)
    workload = replace(plain, inputs=(a, b, grad), oracle=GradientRows(SIZE), mode="backward")
    (ran,) = raced(opened(GRADIENT), workload)
    assert ran.ours.launches == 1  # of two
