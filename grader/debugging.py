"""Runs a public check on a submission in this very process, for its author: values, prints and breakpoints, no grade.

The check's own test draws its inputs and compares. What it calls is the student's file, imported as any other, in
Triton's interpreter on CPU tensors. Nothing is kept apart, so nothing here may decide a grade.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import traceback
from bdb import BdbQuit
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from grader.course import Course, Lab
from grader.interpreted import interpreted
from grader.judge.plan import Plan
from grader.judge.requirements import Machine
from grader.judge.run import run_checks
from grader.judge.seeds import Seeds
from grader.report.model import CheckResult
from grader.sandbox.failures import ContractViolated, ImportFailed, SubmissionRaised
from grader.sandbox.hosting import Hosted, Hosts
from grader.sandbox.outcomes import Gradients, Mutated, Traced
from grader.sandbox.submission import Submission
from grader.session import held_to
from grader.target import choose_target
from grader.worker.calls import Arguments, Options, RaisedError, ResultLeaves, perform
from grader.worker.codec import Decoder, Encoder, no_ref
from grader.worker.guards import ContractError
from grader.worker.hosting import Ask, HostRefusedError, make_stub
from grader.worker.loading import MissingError, SignatureError
from grader.worker.loading import Submission as Files
from grader.worker.traffic_model import Traffic
from grader.worker.wire import MAX_BYTES

PATIENCE_S = 1e6
"""A person at a breakpoint takes as long as a person takes."""
MAX_ARTIFACT_BYTES = 64 << 20


def run_plainly(
    course: Course, lab: Lab, folder: Path, check_id: str, *, profile: str | None, seeds: Seeds
) -> CheckResult:
    """Run the tests of one public check on the files in `folder`.

    Raises:
        UsageError: there is no such profile. CourseError: a file of the course is wrong.
        InfrastructureError: the lab needs torch or triton, which isn't here.
    """
    target = choose_target(course, lab, "cpu", profile)
    limits = lab.limits.model_copy(update={"call_s": PATIENCE_S})
    checks = {name: spec.model_copy(update={"timeout_s": None}) for name, spec in lab.checks.items()}
    patient = lab.model_copy(update={"limits": limits, "checks": checks})
    thresholds: dict[str, dict[str, float]] = {}
    for number in held_to(patient, target.profile):
        thresholds.setdefault(number.check, {})[number.name] = number.value
    with interpreted(target.profile) if lab.runtime == "triton" else contextlib.nullcontext():
        plain = Plain(folder, course.starter_dir(lab.id), patient)
        plan = Plan(
            lab=patient,
            tests_dir=course.assignment_dir(lab.id),
            profile=target.profile,
            device="cpu",
            seeds=seeds,
            open_submission=lambda: cast(Submission, plain),
            thresholds=thresholds,
            machine=Machine.look(device="cpu", device_reason="debugging runs on the CPU", gpu_sm=None),
            selected=frozenset({check_id}),
        )
        return next(result for result in run_checks(plan) if result.id == check_id)


class Plain:
    """Stands in for `Submission` in a test: the same calls, made here.

    What a student's code prints goes where it would without a grader, whatever the test runner does with its own.
    """

    device = "cpu"
    default_timeout_s: float | None = None

    def __init__(self, folder: Path, provided: Path, lab: Lab) -> None:
        self.lab = lab
        self._folder, self._runtime = folder.resolve(), lab.runtime
        self._files = Files(str(self._folder))
        first = next((name for name in lab.files.edit if name.endswith(".py")), lab.files.edit[0])
        self._module = first.removesuffix(".py").replace("/", ".")
        self._streams = sys.stdout, sys.stderr
        sys.path += [str(self._folder), str(provided)]  # the latter for a provided file that isn't in the folder

    def close(self) -> None:
        """Nothing runs beside this process."""

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._perform(function, args, kwargs, Options())["value"]

    def interpreted_call(self, function: str, /, *args: Any, reversed_programs: bool = False, **kwargs: Any) -> Any:
        if reversed_programs:
            self._only_graded("the order in which programs run is changed")
        return self.call(function, *args, **kwargs)

    def traced_call(
        self, function: str, /, *args: Any, interpreted: bool = False, mutable: tuple[str, ...] = (), **kwargs: Any
    ) -> Traced:
        reply = self._perform(function, args, kwargs, Options(mutable=mutable))
        return Traced(reply["value"], cast(Traffic, _Uncounted()), reply["mutated"])

    def mutating_call(self, function: str, /, *args: Any, mutable: tuple[str, ...], **kwargs: Any) -> Mutated:
        reply = self._perform(function, args, kwargs, Options(mutable=mutable))
        return Mutated(reply["value"], reply["mutated"])

    def gradient_call(self, function: str, /, *args: Any, cotangents: list[Any], **kwargs: Any) -> Gradients:
        reply = self._perform(function, args, kwargs, Options(cotangents=cotangents))
        return Gradients(reply["value"], reply["gradients"])

    def host(
        self, target: object, methods: tuple[str, ...], attributes: tuple[str, ...] = (), *, tensors: bool = False
    ) -> Hosted:
        return Hosted(target, methods, attributes, tensors=tensors)

    def read_file(self, name: str, max_bytes: int = MAX_ARTIFACT_BYTES) -> bytes | None:
        path = self._folder / name
        return path.read_bytes()[:max_bytes] if path.is_file() else None

    def __getattr__(self, name: str) -> Any:
        self._only_graded(f"what it looks at (`{name}`) isn't in a plain run")

    @staticmethod
    def _only_graded(why: str) -> NoReturn:
        pytest.skip(f"only a graded run decides this: {why}")

    def _perform(
        self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> dict[str, Any]:
        """The call behind the same guards as a worker's; its failures are those of one."""
        module = kwargs.pop("module", None) or self._module
        for name in ("timeout_s", "forbid_warnings"):
            kwargs.pop(name, None)
        hosts = Hosts()
        encoder = Encoder()
        tree = encoder.encode([[hosts.replace(item) for item in (args, kwargs)], options.cotangents])
        ask = self._ask(hosts)
        arguments = Arguments(lambda ref: make_stub(ref, ask))
        given, options.cotangents = Decoder(encoder.buffers, arguments.leaf, arguments.ref, expand=True).decode(tree)
        positional, named = list(given[0]), given[1]
        with contextlib.redirect_stdout(self._streams[0]), contextlib.redirect_stderr(self._streams[1]):
            wanted = self._function(module, function)
            try:
                bound = self._files.bind(function, wanted, positional, named)
                arguments.name({**bound, "cotangents": options.cotangents}, options.mutable)
                with_torch = self._runtime != "numpy"
                tree, buffers = perform(
                    wanted, positional, named, arguments, options, device="cpu", with_torch=with_torch
                )
            except SignatureError as error:
                raise ImportFailed(str(error)) from error
            except ContractError as error:
                raise ContractViolated(str(error)) from error
            except RaisedError as error:
                raise self._raised(error.__cause__ or error) from error
        return cast(dict[str, Any], Decoder(buffers).decode(tree))

    def _function(self, module: str, name: str) -> Any:
        try:
            return self._files.function(module, name)
        except MissingError as error:
            raise ImportFailed(str(error)) from error
        except BaseException as error:
            raise self._raised(error) from error

    def _raised(self, error: BaseException) -> SubmissionRaised:
        """The failure that a worker would report; the traceback is printed, from the student's first frame on."""
        if isinstance(error, (KeyboardInterrupt, BdbQuit)):
            raise KeyboardInterrupt from None
        frames = error.__traceback__
        while frames is not None and not frames.tb_frame.f_code.co_filename.startswith(f"{self._folder}{os.sep}"):
            frames = frames.tb_next
        told = self._files.describe(error)
        traceback.print_exception(error.with_traceback(frames or error.__traceback__))
        return SubmissionRaised(told["type"], told["text"], told["where"], tuple(told["frames"]))

    def _ask(self, hosts: Hosts) -> Ask:
        """Calls of hosted objects; arguments and answers cross as they do between a worker and the judge."""
        numbers = itertools.count(1)
        leaves = ResultLeaves([], MAX_BYTES["cpu"], with_torch=self._runtime != "numpy")

        def ask(number: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            there = Encoder(leaves)
            count = next(numbers)
            call = {"n": count, "object": number, "method": method, "args": list(args), "kwargs": kwargs}
            tree = there.encode(call)
            kind, answer = hosts.answer(Decoder(there.buffers).decode(tree), count)
            if kind == "host_refused":
                raise HostRefusedError(answer)
            back = Encoder()
            tree = back.encode(answer)
            return Decoder(back.buffers, Arguments(no_ref).leaf).decode(tree)

        return ask


class _Uncounted:
    """Stands where a call's traffic would be: a plain run counts none."""

    def __getattr__(self, name: str) -> NoReturn:
        Plain._only_graded("bytes are counted there; what the call returned is right")
