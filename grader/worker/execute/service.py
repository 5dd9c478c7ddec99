"""The executor as the worker's loop uses it: a tape and its inputs in, results or the tape's fault out."""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
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
from .ahead import Ahead
from .bounds import OutOfBounds
from .describing import descriptions
from .kernels import CannotLower, CannotRebuild
from .language import CannotInterpret, KernelRaised
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
        self._device = device
        self._executor = Executor(target, device, Path(tempfile.mkdtemp(prefix="kernels-")))
        self._timers = Timers("triton", device, _no_function)
        self._compiling: dict[int, tuple[Any, Connection]] = {}
        self._begun = 0
        self._compiled: set[str] = set()

    def ahead(self, body: dict[str, Any], arguments: Arguments) -> None:
        """Compile what a tape will launch on the GPU; its inputs are the run's, on the CPU.

        What is wrong with the tape is told by its run.
        """
        mutable = _name(body, arguments)
        with contextlib.suppress(Exception):
            validate(body["tape"])
            kernels = self._executor.kernels_of(body["tape"]["functions"])
            options = Options(mutable=mutable, **body["options"])
            launches = descriptions(body["tape"], arguments, _rules(body), "cpu", kernels, options)
            new = {kernels.identity(launch): launch for launch in launches}
            new = {content: launch for content, launch in new.items() if content not in self._compiled}
            Ahead(kernels, list(new.values())).wait()
            self._compiled |= new.keys()

    def run(self, body: dict[str, Any], arguments: Arguments) -> tuple[Json, list[Bytes]]:
        """Run a tape; see `Executor.run`.

        Raises:
            Answered: what the tape does wrong. ContractError: what it does to its inputs.
        """
        mutable, rules = _name(body, arguments), _rules(body)
        options = Options(mutable=mutable, **body["options"])
        with _answering():
            return self._executor.run(body["tape"], arguments, rules, options)

    def compile(self, body: dict[str, Any], arguments: Arguments) -> int:
        """Begin to compile a tape's launches, beside whatever is asked next; see `inspect_kernels.compile`.

        Returns:
            a number, for `compiled`.

        Raises:
            Answered: what the tape does wrong.
        """
        _name(body, arguments)
        tape, rules = body["tape"], _rules(body)
        del rules["kernel"]
        with _answering():
            validate(tape)
            kernels = self._executor.kernels_of(tape["functions"])
            found = descriptions(tape, arguments, rules, self._device, kernels)
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=_send_reports, args=(theirs, found, tape["functions"], body["capabilities"])
        )
        process.start()
        theirs.close()
        self._begun += 1
        self._compiling[self._begun] = (process, ours)
        return self._begun

    def compiled(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The reports of a compile that was begun, once all are there."""
        process, ours = self._compiling.pop(body["number"])
        with ours:
            reports: list[dict[str, Any]] = ours.recv()
        process.join()
        return reports

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


def _send_reports(send: Connection, *compiled: Any) -> None:
    send.send(compile(*compiled))


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


@contextlib.contextmanager
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
    except KernelRaised as problem:
        raised = {"type": problem.kind, "text": problem.text, "where": problem.where, "frames": []}
        raise Answered("raised", raised) from problem
    except (Answered, ContractError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as problem:  # Whatever a step of an untrusted tape makes a library raise.
        traceback.print_exc()  # For the instructor's log: it shows the grader's own code.
        raise Answered(
            "contract", {"message": f"The recorded call can't be run: it ends in {type(problem).__name__}."}
        ) from problem
