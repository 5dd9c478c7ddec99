"""Has a card measured in a worker, and holds what comes back to being numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from grader.errors import InfrastructureError
from grader.profiles import GpuInfo
from grader.sandbox.failures import WorkerFailure
from grader.sandbox.levels import Isolation
from grader.sandbox.submission import Submission
from grader.sandbox.trusted import TrustedModule

STAGED = Path(__file__).with_name("staged")
GEMM_DTYPES = ("bfloat16", "float16", "tf32", "float32", "float8")
GEMM_SIZE, SMALL_GEMM_SIZE = 8192, 4096
SMALL_MEMORY_MIB = 8192
OLDEST_SM = {"bfloat16": 80, "tf32": 80, "float8": 89}
"""Compute capability from which the tensor cores take a dtype."""

Step = Callable[[str], None]


@dataclass(frozen=True)
class Measurements:
    """What was read and measured on one card.

    Attributes:
        attributes: of the driver, by the names of `staged/card.py`; 0 where it doesn't tell.
        copy_gbs: device copy, bytes read plus written.
        gemm_tflops: by dtype. unmeasured: dtype → why it has no rate.
        cached: (MiB touched by a copy, GB/s), in increasing order of size.
        versions: torch, cuda. day: when it was measured.
    """

    gpu: GpuInfo
    attributes: dict[str, int]
    copy_gbs: float
    gemm_tflops: dict[str, float]
    cached: tuple[tuple[float, float], ...]
    versions: dict[str, str]
    day: date
    unmeasured: dict[str, str] = field(default_factory=dict)

    @property
    def sm(self) -> int:
        return 10 * self.attributes["capability_major"] + self.attributes["capability_minor"]


def measure(gpu: GpuInfo, isolation: Isolation, step: Step) -> Measurements:
    """Measure device 0 (as CUDA_VISIBLE_DEVICES orders them), in about a minute.

    Args:
        step: told what is being measured.

    Raises:
        InfrastructureError: the card can't be measured, or answers nonsense.
    """
    with TrustedModule(STAGED, "card", "Measuring the card", isolation, "cuda") as card:
        try:
            step("attributes of the device")
            attributes = {str(name): int(value) for name, value in card.call("attributes").items()}
            step("copy bandwidth")
            copy_gbs = _rate("copy bandwidth", card.call("copy_gbs"))
            rates, unmeasured = _products(card, gpu, attributes, step)
            step("copies that fit the L2 cache")
            cached = tuple((float(mib), _rate("a copy", rate)) for mib, rate in card.call("cached_copies"))
            versions = {str(name): str(value) for name, value in card.call("versions").items()}
        except WorkerFailure as failure:
            raise InfrastructureError(
                f"{gpu.name} can't be measured: {failure.message}", hint="Free the card, then see `grade doctor`."
            ) from failure
    return Measurements(gpu, attributes, copy_gbs, rates, cached, versions, datetime.now(UTC).date(), unmeasured)


def _products(
    card: Submission, gpu: GpuInfo, attributes: dict[str, int], step: Step
) -> tuple[dict[str, float], dict[str, str]]:
    """GEMM rates by dtype, and why the others have none."""
    sm = 10 * attributes["capability_major"] + attributes["capability_minor"]
    size = GEMM_SIZE if gpu.memory_mib >= SMALL_MEMORY_MIB else SMALL_GEMM_SIZE
    rates: dict[str, float] = {}
    unmeasured: dict[str, str] = {}
    for dtype in GEMM_DTYPES:
        oldest = OLDEST_SM.get(dtype, 0)
        if sm < oldest:
            unmeasured[dtype] = f"tensor cores take it from sm_{oldest} on"
            continue
        step(f"{size}-cubed GEMM in {dtype}")
        try:
            rates[dtype] = _rate(f"GEMM in {dtype}", card.call("gemm_tflops", dtype, size))
        except WorkerFailure as failure:
            unmeasured[dtype] = failure.message[:200]
    if not rates:
        raise InfrastructureError(f"{gpu.name}: no GEMM ran: {unmeasured}.", hint="See `grade doctor`.")
    return rates, unmeasured


def _rate(what: str, value: Any) -> float:
    if not isinstance(value, float) or not 0.0 < value < float("inf"):
        raise InfrastructureError(f"{what} was measured as {value!r}, expected a positive number.")
    return value
