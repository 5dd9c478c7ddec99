"""What a test sees as `judge`: its inputs, its thresholds, and the ways to say how the check ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pytest

from grader.course import CheckSpec, Lab
from grader.judge.seeds import Seeds
from grader.report.model import Diagnosis, ErrorMap, Measured, Scalar, Status

if TYPE_CHECKING:
    from grader.profiles import HardwareProfile


class Verdict(Exception):
    """Ends a test with a status; raised by `Judge` only.

    Attributes:
        fraction: part of the points that stays earned, 0 to 1; only `noisy` and `pending` carry some.
    """

    def __init__(
        self,
        status: Status,
        message: str,
        *,
        diagnosis: Diagnosis | None = None,
        error_map: ErrorMap | None = None,
        fraction: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.diagnosis = diagnosis
        self.error_map = error_map
        self.fraction = fraction


class Judge:
    """One test's side of a check.

    Messages of hidden checks reach students: they name the category and the diagnosis, never inputs or expected
    values. The error map of a hidden check is dropped from the report.

    Attributes:
        check_id, spec, lab: what is judged.
        profile: the hardware that the check is held to.
        device: where the submission's tensors live, ``cpu`` or ``cuda``.
        thresholds: name → value; the profile's numbers laid over those of lab.toml.
    """

    def __init__(
        self,
        *,
        check_id: str,
        lab: Lab,
        profile: HardwareProfile,
        device: str,
        thresholds: dict[str, float],
        seeds: Seeds,
        test: str,
    ) -> None:
        self.check_id = check_id
        self.spec: CheckSpec = lab.checks[check_id]
        self.lab = lab
        self.profile = profile
        self.device = device
        self.thresholds = dict(thresholds)
        self.measured: Measured = {}
        self.awards: list[tuple[float, str, Diagnosis | None]] = []
        self._seeds = seeds
        self._test = test
        self._draws = 0

    @property
    def hidden(self) -> bool:
        return self.spec.hidden

    def rng(self) -> np.random.Generator:
        """A fresh generator, the same in every run with the same secret."""
        self._draws += 1
        return self._seeds.rng(self.lab.id, self.check_id, self._test, self._draws)

    def measure(self, name: str, value: object) -> None:
        """Keep a number or a short text for the report, whatever the verdict will be.

        Raises:
            TypeError: `value` is neither a scalar nor a list of scalars.
        """
        values = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        if isinstance(values, (list, tuple)):
            self.measured[name] = [_scalar(name, item) for item in values]
        else:
            self.measured[name] = _scalar(name, values)

    def fail(self, message: str, *, diagnosis: Diagnosis | None = None, error_map: ErrorMap | None = None) -> NoReturn:
        """The answer is wrong; `diagnosis` names the known mistake that explains it."""
        raise Verdict(Status.FAIL, _said(message), diagnosis=diagnosis, error_map=error_map)

    def contract(self, message: str) -> NoReturn:
        """The answer isn't of the kind that was asked for: type, dtype, shape, device."""
        raise Verdict(Status.CONTRACT, _said(message))

    def award(self, fraction: float, message: str, *, diagnosis: Diagnosis | None = None) -> None:
        """Partial credit: this part of the points, 0 to 1. The test goes on; several awards average.

        `diagnosis` names the known mistake for which the rest is lost.

        Raises:
            ValueError: `fraction` is outside 0 to 1 or not a number.
        """
        self.awards.append((_fraction(fraction), _said(message), diagnosis))

    def noisy(self, message: str, *, fraction: float = 0.0) -> NoReturn:
        """A measurement straddles its threshold: inconclusive, with the part that its lower end earns."""
        raise Verdict(Status.NOISY, _said(message), fraction=_fraction(fraction))

    def pending(self, message: str, *, fraction: float = 0.0) -> NoReturn:
        """A threshold that nobody measured on this card was missed: the part that is earned; the rest isn't lost."""
        raise Verdict(Status.PENDING, _said(message), fraction=_fraction(fraction))

    def suspect(self, message: str) -> NoReturn:
        """A measurement cannot be what it says; its points wait for a person."""
        raise Verdict(Status.SUSPECT, _said(message))

    def skip(self, reason: str) -> NoReturn:
        """The check can't run here; its points aren't at stake."""
        pytest.skip(_said(reason))


def _said(message: str) -> str:
    if not message.strip():
        raise ValueError("a verdict needs a message")
    return message


def _fraction(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"a fraction of the points lies in 0 to 1, found {value!r}")
    return float(value)


def _scalar(name: str, value: object) -> Scalar:
    item = value.item() if isinstance(value, np.generic) else value
    if isinstance(item, float) and math.isnan(item):
        # NaN is no JSON number and equals nothing, so two equal reports would differ.
        return "nan"
    if item is None or isinstance(item, (bool, int, float, str)):
        return item
    raise TypeError(f"measure({name!r}): expected a scalar or a list of scalars, found {type(value).__name__}")
