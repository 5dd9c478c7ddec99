"""The worker's loop: load the runtime, then answer one request after another with exactly one reply each.

Everything that the loop needs is bound before the submission's folder comes on `sys.path`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import platform
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from . import calls
from .calls import Answered, Arguments, Options, RaisedError
from .channel import BUSY_VARIABLE, SPIN_S, Channel, ClosedError, Frame
from .codec import Encoder
from .guards import ContractError
from .hosting import HostRefusedError, make_stub
from .loading import MissingError, SignatureError, Submission, parameters
from .wire import MAX_BYTES, HostRef, Json, Leaf, UnsendableError, WireError, numpy_value

SOCKET_FD = 3
SUBMISSION_VARIABLE = "GRADE_SUBMISSION_DIR"
TIMING = "time_"
"""Requests that begin so are for the timers."""
HIGH_FD = 100
"""The socket moves up here, out of the way of code that closes or reuses the first descriptors."""
MAX_FAULT_TEXT = 4000
KEPT_BYTES = 64 << 20
"""The last call's buffers are kept alive up to this size."""

_exit, _flush_stdout, _flush_stderr = os._exit, sys.stdout.flush, sys.stderr.flush
_format_exc = traceback.format_exc


def run() -> None:
    """Serve over descriptor 3 until the judge hangs up, then leave without running the submission's exit handlers."""
    faulthandler.enable()
    try:
        spin_s = 0.0 if os.environ.get(BUSY_VARIABLE) else SPIN_S
        _Worker(Channel(_take_socket(), max_bytes=1 << 62, spin_s=spin_s)).serve()
    except ClosedError:
        _exit(0)


def _take_socket() -> socket.socket:
    try:
        descriptor = fcntl.fcntl(SOCKET_FD, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except OSError:  # RLIMIT_NOFILE is below it
        descriptor = fcntl.fcntl(SOCKET_FD, fcntl.F_DUPFD_CLOEXEC, SOCKET_FD + 1)
    os.close(SOCKET_FD)
    return socket.socket(fileno=descriptor)


class _Worker:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._request = 0
        self._host_calls = 0
        self._runtime = "numpy"
        self._device = "cpu"
        self._submission: Submission | None = None
        self._kept: Arguments | None = None
        self._timers: Any = None
        self._executor: Any = None
        self._recorder: Any = None
        self._handlers = {
            "start": self._start,
            "import": self._import,
            "signature": self._signature,
            "record": self._record,
            "cuda_compile": self._cuda_compile,
            "cuda_device": self._cuda_device,
            "cuda_launch": self._cuda_launch,
            "cuda_time": self._cuda_time,
        }

    def serve(self) -> None:
        while True:
            frame = self._channel.receive()
            self._request, self._host_calls = frame.id, 0
            kind, tree, buffers = self._answer(frame)
            # A submission may have replaced or closed its streams: what it printed is a courtesy, the reply isn't.
            with contextlib.suppress(Exception):
                _flush_stdout()
                _flush_stderr()
            try:
                self._channel.send_written(kind, frame.id, tree, buffers)
            except UnsendableError as error:
                self._channel.send("contract", frame.id, {"message": f"The result is too large: {error}."})

    def _answer(self, frame: Frame) -> tuple[str, Json, list[Any]]:
        """Kind, tree and buffers of the reply to one request, whatever happens in it."""
        try:
            return self._judged(frame)
        except Exception:  # noqa: BLE001 - a fault of ours is told to the judge, which counts it as one
            return _written("fault", {"message": _format_exc()[-MAX_FAULT_TEXT:]})

    def _judged(self, frame: Frame) -> tuple[str, Json, list[Any]]:
        arguments = Arguments(self._stub)
        return self._told(
            lambda: self._reply(frame.kind, frame.value(arguments.leaf, arguments.ref, expand=True), arguments)
        )

    def _reply(self, kind: str, body: dict[str, Any], arguments: Arguments) -> tuple[str, Json, list[Any]]:
        """The reply to a request that goes well."""
        if kind == "call":
            tree, buffers = self._call(body, arguments)
            return "result", tree, buffers
        if kind == "execute":
            tree, buffers = self._executor.run(body, arguments)
            return "result", tree, buffers
        if kind == "ahead":
            self._executor.ahead(body, arguments)
            return _written("result", {"value": None})
        if kind == "compile":
            return _written("result", {"value": self._executor.compile(body, arguments)})
        if kind == "compiled":
            return _written("result", {"value": self._executor.compiled(body)})
        if kind == "record" and (elsewhere := self._recorder.elsewhere(body)) is not None:
            answered, tree, buffers = elsewhere
            return answered, tree, buffers
        if kind.startswith(TIMING):
            return _written("result", {"value": self._time(kind.removeprefix(TIMING), body)})
        return _written("result", {"value": self._handlers[kind](body)})

    def _told(self, reply: Callable[[], tuple[str, Json, list[Any]]]) -> tuple[str, Json, list[Any]]:
        """The reply, where what the submission did wrong is told as such."""
        try:
            return reply()
        except Answered as answered:
            return _written(answered.kind, answered.body)
        except RaisedError as error:
            return _written("raised", self._describe(error.__cause__ or error))
        except ContractError as error:
            return _written("contract", {"message": str(error)})
        except MissingError as error:
            return _written("missing", {"message": str(error)})
        except SignatureError as error:
            return _written("signature", {"message": str(error)})
        except MemoryError as error:
            return _written("raised", self._describe(error))

    def _start(self, body: dict[str, Any]) -> dict[str, str]:
        """Load the runtime's libraries, then make the submission's folder importable, after everything else."""
        self._runtime, self._device = body["runtime"], body["device"]
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        if self._runtime != "numpy":
            versions["torch"] = str(import_module("torch").__version__)
            import_module(f"{__package__}.tensors")
        if self._runtime == "triton":
            versions["triton"] = str(import_module("triton").__version__)
            import_module("triton.language")
        for name in body["modules"]:
            import_module(f"{__package__}.{name}")
        if "execute.service" in body["modules"]:
            self._executor = import_module(f"{__package__}.execute.service").Service(body["target"], self._device)
        elif "record.service" in body["modules"]:
            folder = os.environ[SUBMISSION_VARIABLE]
            self._recorder = import_module(f"{__package__}.record.service").Service(body["target"], folder)
        if body["submission"]:
            folder = os.environ[SUBMISSION_VARIABLE]
            self._submission = Submission(folder)
            sys.path.append(folder)
        return versions

    def _import(self, body: dict[str, Any]) -> bool:
        """Import a module; whether calls for any card can be recorded here."""
        watching = self._recorder.importing() if self._recorder is not None else contextlib.nullcontext()
        try:
            with watching:
                self._files().load(body["module"])
        except MissingError:
            raise
        except BaseException as error:
            raise RaisedError from error
        return self._recorder is not None and self._recorder.imported(self._recorded_elsewhere)

    def _recorded_elsewhere(self, body: dict[str, Any]) -> tuple[str, Json, list[Any]]:
        return self._told(lambda: _written("result", {"value": self._record(body)}))

    def _call(self, body: dict[str, Any], arguments: Arguments) -> tuple[Json, list[Any]]:
        function, bound = self._bound(body)
        options = Options(**body["options"])
        arguments.name({**bound, "cotangents": options.cotangents}, options.mutable)
        # The last call's buffers live until this call's are allocated, so that no address comes twice in a row.
        small = sum(guard.size for guard in arguments.guarded) <= KEPT_BYTES
        self._kept = arguments if small else None
        return calls.perform(
            function,
            body["args"],
            body["kwargs"],
            arguments,
            options,
            device=self._device,
            with_torch=self._runtime != "numpy",
        )

    def _signature(self, body: dict[str, Any]) -> list[dict[str, str | None]]:
        try:
            return parameters(self._files().function(body["module"], body["function"]))
        except (TypeError, ValueError) as error:
            raise SignatureError(f"`{body['function']}` doesn't tell its parameters.") from error
        except MissingError:
            raise
        except Exception as error:  # the text of a default value is the submission's code
            raise RaisedError from error

    def _function(self, body: dict[str, Any]) -> Any:
        """The function that a request names."""
        try:
            return self._files().function(body["module"], body["function"])
        except MissingError:
            raise
        except Exception as error:  # a module's __getattr__ may do anything
            raise RaisedError from error

    def _bound(self, body: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The function that a request names, and its arguments by parameter."""
        try:
            function = self._function(body)
            return function, self._files().bind(body["function"], function, body["args"], body["kwargs"])
        except (MissingError, SignatureError):
            raise
        except Exception as error:  # a module's __getattr__ or a function's __signature__ may do anything
            raise RaisedError from error

    def _record(self, body: dict[str, Any]) -> Any:
        call = self._recorder.call(body)
        with self._recorder.importing():
            function = self._function(body)
        try:
            self._files().bind(body["function"], function, call.args, call.kwargs)
            return call.record(function)
        except (Answered, ContractError, SignatureError):
            raise
        except BaseException as error:
            raise RaisedError from error

    def _cuda_compile(self, body: dict[str, Any]) -> Any:
        return import_module(f"{__package__}.cuda_compile").run(body["source"], body["capabilities"])

    def _cuda_device(self, body: dict[str, Any]) -> Any:
        return import_module(f"{__package__}.cuda_launch").describe()

    def _cuda_launch(self, body: dict[str, Any]) -> Any:
        return import_module(f"{__package__}.cuda_launch").run(body["cubin"], body["launches"])

    def _cuda_time(self, body: dict[str, Any]) -> Any:
        return import_module(f"{__package__}.cuda_launch").time(**body)

    def _time(self, name: str, body: dict[str, Any]) -> Any:
        """One request to the timers; see `timers.Timers`."""
        if self._executor is not None:
            return self._executor.time(name, body)
        if self._timers is None:
            timers = import_module(f"{__package__}.timers")
            self._timers = timers.Timers(self._runtime, self._device, self._function)
        return getattr(self._timers, name)(**body)

    def _files(self) -> Submission:
        if self._submission is None:
            raise RuntimeError("a request that needs a submission, in a worker that was started without one")
        return self._submission

    def _describe(self, error: BaseException) -> dict[str, Any]:
        if self._submission is None:
            return {"type": type(error).__name__, "text": str(error), "where": "", "frames": [], "memory": False}
        return self._submission.describe(error)

    def _stub(self, ref: HostRef) -> Any:
        return make_stub(ref, self._ask)

    def _ask(self, number: int, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One method call on an object of the judge's."""
        leaves = calls.ResultLeaves([], MAX_BYTES[self._device], with_torch=self._runtime != "numpy")
        with self._lock:
            count = self._host_calls + 1
            call = {"n": count, "object": number, "method": method, "args": list(args), "kwargs": kwargs}
            try:
                self._channel.send("host_call", self._request, call, encoder=Encoder(leaves))
            except (UnsendableError, ContractError) as error:  # nothing was sent
                raise TypeError(f"{method}: {error}") from error
            self._host_calls = count
            frame = self._channel.receive()
            answer = frame.value(_plain_leaf)
        if frame.kind == "host_refused":
            raise HostRefusedError(answer)
        if frame.kind != "host_result" or frame.id != self._request:
            raise WireError(f"a {frame.kind} where the answer of a hosted object was due")
        return answer


def _written(kind: str, reply: dict[str, Any]) -> tuple[str, Json, list[Any]]:
    encoder = Encoder()
    return kind, encoder.encode(reply, kind), encoder.buffers


def _plain_leaf(leaf: Leaf) -> Any:
    """An array that the judge's object answers with; a tensor's parts become a tensor."""
    if leaf.kind != "tensor":
        return numpy_value(leaf)
    from .tensors import GuardedTensor

    return GuardedTensor(leaf).value
