"""One conversation with one worker: requests, replies, and every way in which it can go wrong told as a failure."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from typing import Any

from grader.course import Limits
from grader.errors import InfrastructureError
from grader.sandbox.failures import (
    ContractViolated,
    Crashed,
    ImportFailed,
    NotCompilable,
    NotInterpretable,
    OutOfBounds,
    OutOfMemory,
    Phase,
    SubmissionRaised,
    TimedOut,
)
from grader.sandbox.hosting import Hosts
from grader.sandbox.worker_process import LaunchedWorker
from grader.worker.channel import SPIN_S, Channel, ClosedError, DeadlineError, Frame
from grader.worker.codec import Encoder
from grader.worker.wire import MAX_BYTES, ProtocolError

START_TIMEOUT_S = 120.0
"""Loading torch, Triton and CUDA from a cold disk; no submission is there yet."""
MAX_TEXT = 2000
SHOWN_OUTPUT = 500
_NO_PLACE_OF_THEIRS = re.compile(r'^(?:Extension modules: |  File "[^"\n]*/grader_worker/)[^\n]*\n?', re.MULTILINE)
"""Python's report of a crash ends with the worker's own frames and every compiled module; the submission's lines, which
come before, must not lose their room to them."""
MIB = 1 << 20
CALLS = ("call", "execute")


class WorkerClient:
    """Talks to a launched worker. After any failure but the submission's own exception it's closed: start another.

    Args:
        launched: a worker that has not been spoken to.
        limits: of the lab; named in messages.
        device: `cuda` allows larger messages.
        busy: others wait for the cores, so don't look for an answer before sleeping.
    """

    def __init__(self, launched: LaunchedWorker, limits: Limits, device: str = "cpu", *, busy: bool = False) -> None:
        self.launched = launched
        self.closed = False
        self._holds_submission = False
        self._limits = limits
        # A child of the worker's may hold the socket open after the worker's end: then its process tells.
        self._exit_fd = os.pidfd_open(launched.pid)
        self._channel = Channel(
            launched.sock,
            max_bytes=MAX_BYTES[device],
            peer_exit_fd=self._exit_fd,
            spin_s=0.0 if busy else SPIN_S,
        )

    def start(
        self,
        runtime: str,
        device: str,
        *,
        submission: bool = False,
        modules: tuple[str, ...] = (),
        target: dict[str, Any] | None = None,
    ) -> dict[str, str]:
        """Have the worker load its libraries.

        Args:
            submission: make the staged submission importable.
            modules: of the worker's own, to load before that, e.g. ``traffic``.
            target: the hardware profile, as plain data, that `torch.cuda` answers from where there's no GPU.

        Returns:
            versions by library.

        Raises:
            InfrastructureError: it can't; no submission has been read yet.
        """
        body = {
            "runtime": runtime,
            "device": device,
            "submission": submission,
            "modules": list(modules),
            "target": target,
        }
        try:
            versions = self.request("start", body, timeout_s=START_TIMEOUT_S, doing="loading its libraries")
        except (Crashed, TimedOut, OutOfMemory, ContractViolated, SubmissionRaised) as failure:
            self.close()
            raise InfrastructureError(
                f"A worker with runtime `{runtime}` on {device} didn't start: {failure.message}",
                hint="Run `grade doctor`.",
            ) from failure
        self._holds_submission = submission
        return {str(name): str(version) for name, version in dict(versions).items()}

    def request(
        self,
        kind: str,
        body: dict[str, Any],
        *,
        timeout_s: float,
        doing: str,
        phase: Phase = "call",
        hosts: Hosts | None = None,
    ) -> Any:
        """One request and its one reply.

        Returns:
            what the worker answered; for a call the table of the value and what its options asked for.

        Args:
            doing: what the worker does meanwhile, for messages, e.g. "calling `merge`".
            hosts: objects that the worker may call back during the request.

        Raises:
            WorkerFailure: see the classes in `failures`. InfrastructureError: the fault is ours.
        """
        number = secrets.randbits(53)
        deadline = time.monotonic() + timeout_s
        try:
            if self._channel.has_input():
                raise ProtocolError("a message that nobody asked for")
            self._channel.send(kind, number, body, deadline=deadline)
            frame = self._reply(number, deadline, hosts)
            value = frame.value()
            if self._channel.has_input():
                raise ProtocolError("a second reply to one request")
        except DeadlineError as error:
            self.close()
            raise TimedOut(f"No answer after {timeout_s:g} s (the limit) while {doing}.", phase=phase) from error
        except ProtocolError as error:
            self.close()
            raise ContractViolated(
                f"The grader's connection to the submission carried {error}, while {doing}. "
                "Code that writes to inherited descriptors, or threads that outlive a call, can do this.",
                phase=phase,
            ) from error
        except ClosedError as error:
            raise self._ended(doing, phase) from error
        except BaseException:  # a hosted object of ours failed, or Ctrl-C: the worker is in the middle of a call
            self.close()
            raise
        reply = self._value(frame.kind, value, doing, phase)
        return reply if kind in CALLS else reply["value"]

    def _reply(self, number: int, deadline: float, hosts: Hosts | None) -> Frame:
        calls = 0
        while True:
            frame = self._channel.receive(deadline)
            if frame.id != number:
                raise ProtocolError("a reply to another request")
            if frame.kind != "host_call":
                return frame
            calls += 1
            if hosts is None:
                raise ProtocolError("a call of a hosted object where none is")
            kind, answer = hosts.answer(frame.value(), calls)
            self._channel.send(kind, number, answer, deadline=deadline, encoder=Encoder())

    def _value(self, kind: str, value: Any, doing: str, phase: Phase) -> dict[str, Any]:
        """The table of a result; any other reply is raised as what it stands for."""
        table: dict[str, Any] = value if type(value) is dict else {}
        if kind == "result" and "value" in table:
            return table
        text = str(table.get("message", ""))
        # Of a traceback the end tells most.
        message = text[-MAX_TEXT:] if kind == "fault" else text[:MAX_TEXT]
        if kind == "raised":
            raise self._raised(table, phase)
        if kind == "missing":
            raise ImportFailed(message)
        if kind == "signature":
            raise SubmissionRaised("TypeError", message, phase=phase)
        if kind == "contract":
            raise ContractViolated(message, phase=phase)
        if kind == "outside":
            raise OutOfBounds(message, table)
        if kind == "uncompilable":
            raise NotCompilable(message)
        if kind == "uninterpretable":
            raise NotInterpretable(message)
        if kind == "device_fault":  # nothing more runs on the GPU in that process
            self.close()
            raise Crashed(message, phase=phase)
        if kind == "fault":
            self.close()
            if self._holds_submission:  # who lives in that process can make it fail, or say that it did
                raise ContractViolated(
                    f"The grader's code in the submission's process failed while {doing}: {message[-SHOWN_OUTPUT:]}\n"
                    "Code that replaces functions of a library can do this; if yours does not, report a bug.",
                    phase=phase,
                )
            reason = message.rstrip().rpartition("\n")[2]
            raise InfrastructureError(
                f"The worker failed while {doing}: {reason}\n{message}", hint="Report this as a bug."
            )
        self.close()
        raise ContractViolated(f"The grader's connection carried an unknown reply while {doing}.", phase=phase)

    def _raised(self, value: dict[str, Any], phase: Phase) -> OutOfMemory | SubmissionRaised | ImportFailed:
        type_name, text, where = (str(value.get(key, ""))[:MAX_TEXT] for key in ("type", "text", "where"))
        if value.get("memory") is True:
            self.close()
            at = f" at {where}" if where else ""
            return OutOfMemory(
                f"Memory ran out{at} ({type_name}): the limit is {self._limits.memory_mib} MiB.", phase=phase
            )
        frames = value.get("frames")
        shown = tuple(str(frame)[:MAX_TEXT] for frame in frames[:6]) if type(frames) is list else ()
        raised = SubmissionRaised(type_name, text, where, shown, phase=phase)
        return ImportFailed(f"The import failed at {raised.message}") if phase == "import" else raised

    def _ended(self, doing: str, phase: Phase) -> Crashed | OutOfMemory:
        reason = self.launched.exit_reason()
        self.close()
        wrote = self.last_output()  # whole only now: the thread that reads it may lag behind
        if reason.kind == "oom":
            return OutOfMemory(
                f"Stopped while {doing}: {reason.limit or 'out of memory'} (limit {self._limits.memory_mib} MiB).",
                phase=phase,
            )
        detail = "closed the grader's connection" if reason.kind == "running" else reason.detail
        return Crashed(f"The process {detail} while {doing}. {wrote}".rstrip(), phase=phase)

    def last_output(self) -> str:
        """The end of what the worker printed, as a sentence; empty when it printed nothing."""
        text = self.launched.output.data.decode(errors="replace")
        text = _NO_PLACE_OF_THEIRS.sub("", text).strip()
        if not text:
            return ""
        cut = "…" if len(text) > SHOWN_OUTPUT else ""
        return f"It printed last: {cut}{text[-SHOWN_OUTPUT:]}"

    def close(self) -> None:
        """End the worker and everything that it started. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.launched.kill()
        with contextlib.suppress(OSError):
            os.close(self._exit_fd)
