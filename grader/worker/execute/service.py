"""The executor as the worker's loop uses it: a tape and its inputs in, results or the tape's fault out."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..calls import Answered, Arguments
from ..gpu_target import Target
from ..guards import ContractError
from ..inspect_kernels import compile
from ..rules import Forbidden
from ..tape import InvalidTape, validate
from ..timers import Timers
from ..wire import Bytes, Json
from .bounds import OutOfBounds
from .describing import descriptions
from .kernels import CannotLower, CannotRebuild, Kernels
from .language import CannotInterpret
from .launching import DeviceFault
from .run import Executor, Options

_WITHOUT_TAPE = ("begin", "end")
_CHECKED = ("allow", "scale", "rope", "known", "kernel")


class Service:
    """Runs one submission's tapes.

    Args:
        target: the card that kernels are compiled for where there is none.
    """

    def __init__(self, target: Target, device: str) -> None:
        self._device, self._folder = device, Path(tempfile.mkdtemp(prefix="kernels-"))
        self._executor = Executor(target, device, self._folder)
        self._timers = Timers("triton", device, _no_function)

    def run(self, body: dict[str, Any], arguments: Arguments) -> tuple[Json, list[Bytes]]:
        """Run a tape; see `Executor.run`.

        Raises:
            Answered: what the tape does wrong. ContractError: what it does to its inputs.
        """
        mutable, rules = _name(body, arguments), _rules(body)
        options = Options(mutable=mutable, **body["options"])
        with _answering():
            return self._executor.run(body["tape"], arguments, rules, options)

    def compile(self, body: dict[str, Any], arguments: Arguments) -> list[dict[str, Any]]:
        """Machine code of a tape's launches; see `inspect_kernels.compile`.

        Raises:
            Answered: what the tape does wrong.
        """
        _name(body, arguments)
        tape, rules = body["tape"], _rules(body)
        del rules["kernel"]
        with _answering():
            validate(tape)
            kernels = Kernels(tape["functions"], self._folder)
            found = descriptions(tape, arguments, rules, self._device, kernels)
        return compile(found, tape["functions"], body["capabilities"])

    def time(self, name: str, body: dict[str, Any]) -> Any:
        """One request to the timers of tapes; see `timers.Timers`.

        Raises:
            Answered: what the tape does wrong. ContractError: what its calls do to their memory.
        """
        request = getattr(self._timers, name)
        if name in _WITHOUT_TAPE:
            return request(**body)
        with _answering():
            return request(**body)


def _no_function(body: dict[str, Any]) -> Any:
    raise InvalidTape("There is no recorded call to time.")


def _name(body: dict[str, Any], arguments: Arguments) -> tuple[str, ...]:
    """Give the guarded inputs the judge's names; returns the names of those that may change."""
    mutable = tuple(item["name"] for item in body["inputs"] if item["mutable"])
    named = {item["name"]: item["value"] for item in body["inputs"]}
    arguments.name({**named, "cotangents": body.get("cotangents", [])}, mutable)
    return mutable


def _rules(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body["rules"][name] for name in _CHECKED}


@contextmanager
def _answering() -> Iterator[None]:
    """Turns what a tape does wrong into the reply that says so."""
    try:
        yield
    except InvalidTape as problem:
        raise Answered("contract", {"message": f"The recorded call can't be run. {problem}"}) from problem
    except (Forbidden, CannotRebuild) as problem:
        raise Answered("contract", {"message": str(problem)}) from problem
    except CannotLower as problem:
        raise Answered("uncompilable", {"message": str(problem)}) from problem
    except OutOfBounds as problem:
        raise Answered("outside", {"message": str(problem), **problem.fault.to_wire()}) from problem
    except DeviceFault as problem:
        raise Answered("device_fault", {"message": str(problem)}) from problem
    except CannotInterpret as problem:
        raise Answered("uninterpretable", {"message": str(problem)}) from problem
    except (Answered, ContractError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as problem:  # Whatever a step of an untrusted tape makes a library raise.
        traceback.print_exc()  # For the instructor's log: it shows the grader's own code.
        raise Answered(
            "contract", {"message": f"The recorded call can't be run: it ends in {type(problem).__name__}."}
        ) from problem
