"""A submission as a hidden test sees it: functions to call, behind the boundary.

Workers start on the first use of a mode, and anew after a crash, a timeout or a breach of the protocol. What the
submission raises, prints or returns arrives here as data only.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from grader.course import Lab, Record
from grader.errors import GraderError
from grader.machine import ONE_THREAD
from grader.sandbox.client import WorkerClient
from grader.sandbox.executor import Executor
from grader.sandbox.failures import ContractViolated, SubmissionRaised, TimedOut, WorkerFailure
from grader.sandbox.hosting import Hosted, Hosts
from grader.sandbox.launch import LaunchSpec, launch
from grader.sandbox.levels import Isolation
from grader.sandbox.outcomes import Gradients, Measured, Mutated, Traced
from grader.sandbox.recorded import Described, Recorded
from grader.sandbox.timed import TimedWorker
from grader.sandbox.worker_process import LaunchedWorker
from grader.worker.channel import BUSY_VARIABLE
from grader.worker.tape import InvalidTape, validate
from grader.worker.traffic_model import Traffic
from grader.worker.wire import Tensor

if TYPE_CHECKING:
    from grader.profiles import HardwareProfile
    from grader.sandbox.stage import Staged

Device = Literal["cpu", "cuda"]
Runtime = Literal["numpy", "torch", "triton"]
TIMING_MODULES = {"numpy": ("timing",), "torch": ("timing", "timing_torch"), "triton": ("timing", "timing_torch")}
RUN = "run"
RECORD = "record"
TIME = "time"
MAX_ARTIFACT_BYTES = 64 << 20
_MALLOC = {"tcache_count": 0, "mmap_threshold": 4 << 20, "trim_threshold": 32 << 20}
POISON = {
    "MALLOC_PERTURB_": "1",
    "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in _MALLOC.items()),
}
"""malloc hands out bytes of 0xFE, NaN in float16 and huge in every other float type; without its cache of a thread,
whose blocks come as they were freed. Arrays up to 4 MiB come from a heap that isn't given back between calls: pages
that the kernel clears anew for each temporary were a tenth of a lab02 submission's time."""
HELD_BYTES = 4 << 20
"""What earlier calls may have left resident in a worker whose memory is measured: the lists of NumPy and malloc, code
that ran for the first time. Far below the slack that the view from outside has anyway."""
MEASURE_SLACK_BYTES = 16 << 20
"""How far the process may grow beyond what its allocations say before the allocations aren't believed."""


MAX_TAPE_BYTES = 3 << 18
"""A message to the executor has room for a mebibyte beside its arrays, the inputs' descriptions included."""


@dataclass
class _Mode:
    """One worker's settings, the worker while it runs, and the imports that failed (they aren't tried again).

    Attributes:
        resident_bytes: of the worker's main process, after the last import.
        shared: it records calls for other cards than its own too.
    """

    env: dict[str, str]
    device: Device
    runtime: Runtime
    modules: tuple[str, ...] = ()
    target: dict[str, Any] | None = None
    client: WorkerClient | None = None
    loaded: set[str] = field(default_factory=set)
    resident_bytes: int = 0
    shared: bool = False
    failed: dict[str, WorkerFailure] = field(default_factory=dict)


def _on_cpu(value: Any) -> Any:
    """A tensor argument where a worker without a GPU can take it: the interpreter runs on the CPU."""
    return replace(value, device="cpu") if isinstance(value, Tensor) else value


class Submission:
    """One staged submission of one lab.

    Args:
        staged: the submission's folder, as `grader.sandbox.stage.stage` made it.
        device: where tensors live and tapes run; on `cpu` they run in Triton's interpreter.
        target: the hardware profile that recorders answer for.
        patience: how many calls of one function may reach their limit before it isn't called any more; None for any
            number. A class with a few endless loops in it would otherwise wait for each of them at every check.
        busy: other submissions are graded on the same cores meanwhile.

    Attributes:
        default_timeout_s: limit on a call of the check that is being judged; None for the lab's.
        recording: functions that are recorded and executed, by name, and what their launchers may do.
    """

    def __init__(
        self,
        staged: Staged,
        lab: Lab,
        isolation: Isolation,
        device: Device = "cpu",
        target: HardwareProfile | None = None,
        *,
        launcher: Callable[[LaunchSpec], LaunchedWorker] = launch,
        patience: int | None = None,
        busy: bool = False,
    ) -> None:
        self.device: Device = device
        self.lab = lab
        self.target = target
        self.versions: dict[str, str] = {}
        self.default_timeout_s: float | None = None
        self._staged = staged
        self._isolation = isolation
        self._launcher = launcher
        self._patience = patience
        self._busy = busy
        self._timeouts: Counter[tuple[str, str]] = Counter()
        self._modes: dict[str, _Mode] = {}
        self._executors: dict[Device, Executor] = {}
        self.recording: dict[str, Record] = dict(lab.record)
        self._profiles: dict[str, HardwareProfile] = {}
        self._module = next((name for name in lab.files.edit if name.endswith(".py")), lab.files.edit[0])
        self._module = self._module.removesuffix(".py").replace("/", ".")
        self._last: WorkerClient | None = None
        self._warming: threading.Thread | None = None

    def __enter__(self) -> Submission:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm(self) -> None:
        """Begin to start what recorded calls need, the submission's import included; returns at once."""
        if self.recording and self._warming is None and self.target is not None and self.target.sm is not None:
            self.executor(self.device).warm()
            ahead = partial(self._import_ahead, self.target)
            self._warming = threading.Thread(target=ahead, name="recorder-start", daemon=True)
            self._warming.start()

    def _import_ahead(self, target: HardwareProfile) -> None:
        # What goes wrong is met again, and told, by the first call.
        with contextlib.suppress(WorkerFailure, GraderError):
            self._ready(self._recorder(target), self._module)

    def _warmed(self) -> None:
        """Wait for what `warm` began."""
        if self._warming is not None and self._warming is not threading.current_thread():
            self._warming.join()
            self._warming = None

    def close(self) -> None:
        """End every worker. A later call would start them again."""
        self._warmed()
        for mode in self._modes.values():
            if mode.client is not None:
                mode.client.close()
                mode.client = None
        for executor in self._executors.values():
            executor.close()

    @property
    def isolation(self) -> Isolation:
        """The boundary that its workers run behind; compile workers take the same."""
        return self._isolation

    @property
    def module(self) -> str:
        """Where functions are looked for unless a call says otherwise: the first file that the student edits."""
        return self._module

    # Calls

    def call(
        self,
        function: str,
        /,
        *args: Any,
        module: str | None = None,
        timeout_s: float | None = None,
        forbid_warnings: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Call a function of the submission with fresh, guarded copies of the arguments.

        Arrays come back as arrays, tensors as `Tensor`, named tuples and dataclasses as `Record`; a type that the lab
        doesn't ask for is for the test to refuse.

        Args:
            module: name without ``.py``; the first file that the student edits by default.
            timeout_s: instead of the lab's limit on a call.
            forbid_warnings: fail the call if it emits a warning.

        Raises:
            WorkerFailure: of the class that says how the call ended.
        """
        options = {"warnings": True} if forbid_warnings else {}
        reply = self._perform(function, args, kwargs, module, timeout_s, options)
        warned = reply.get("warnings") or []
        if warned:
            name, _, text = str(warned[0]).partition(": ")
            raise SubmissionRaised(name, f"{text} (`{function}` must not warn)")
        return reply["value"]

    def traced_call(
        self,
        function: str,
        /,
        *args: Any,
        module: str | None = None,
        timeout_s: float | None = None,
        interpreted: bool = False,
        mutable: tuple[str, ...] = (),
        **kwargs: Any,
    ) -> Traced:
        """As `call`, and the traffic of the Triton kernels that ran; tensors are known by parameter name.

        Args:
            mutable: parameters that may be changed in place; what they hold afterwards is in `Traced.arguments`.
            interpreted: run in Triton's interpreter on CPU tensors also where `device` is a GPU, on which launches
                are seen and bytes aren't.

        Raises:
            WorkerFailure: see `call`.
        """
        options: dict[str, Any] = {"trace": True, **({"mutable": mutable} if mutable else {})}
        reply = self._perform(function, args, kwargs, module, timeout_s, options, interpreted=interpreted)
        traced = self._traced(reply, function)
        return replace(traced, arguments=self._table(reply, "mutated", function)) if mutable else traced

    @staticmethod
    def _traced(reply: dict[str, Any], function: str) -> Traced:
        try:
            traffic = Traffic.from_wire(reply["traffic"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ContractViolated(f"The traffic of `{function}` was not a record of the tracer's.") from error
        return Traced(reply["value"], traffic)

    def interpreted_call(
        self,
        function: str,
        /,
        *args: Any,
        reversed_programs: bool = False,
        module: str | None = None,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """As `call` in Triton's interpreter on CPU tensors, also where `device` is a GPU.

        Args:
            reversed_programs: run the programs of every launch from the last to the first: a GPU promises no order.
        """
        options = {"reversed": True} if reversed_programs else {}
        return self._perform(function, args, kwargs, module, timeout_s, options, interpreted=True)["value"]

    def mutating_call(
        self,
        function: str,
        /,
        *args: Any,
        mutable: tuple[str, ...],
        module: str | None = None,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> Mutated:
        """As `call`, where the parameters named in `mutable` may be changed in place."""
        reply = self._perform(function, args, kwargs, module, timeout_s, {"mutable": mutable})
        return Mutated(reply["value"], self._table(reply, "mutated", function))

    def gradient_call(
        self,
        function: str,
        /,
        *args: Any,
        cotangents: list[Tensor | None],
        module: str | None = None,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> Gradients:
        """As `call`, then a backward pass from `cotangents` (one a result, in order; None for none)."""
        reply = self._perform(function, args, kwargs, module, timeout_s, {"cotangents": cotangents})
        return Gradients(reply["value"], self._table(reply, "gradients", function))

    def measured_call(
        self, function: str, /, *args: Any, module: str | None = None, timeout_s: float | None = None, **kwargs: Any
    ) -> Measured:
        """As `call`, and the peak of memory that it took, in a worker that holds no more than its imports.

        The worker's count of its allocations is exact and forgeable; the kernel's view from outside is coarse and not.
        The outside view decides when it's far above the claim.
        """
        mode = self._plain_mode((*args, *kwargs.values()))
        client = self._ready(mode, module or self._module)
        before = client.launched.reset_peak()
        if before > self._modes[mode].resident_bytes + HELD_BYTES:
            # Memory that earlier calls left resident could be used again without a trace.
            self._discard(mode)
            client = self._ready(mode, module or self._module)
            before = client.launched.reset_peak()
        # Where the mark can't be reset, only growth beyond it is seen.
        before = max(before, client.launched.resident_peak_bytes())
        reply = self._perform(function, args, kwargs, module, timeout_s, {"measure": True})
        resident = max(client.launched.resident_peak_bytes() - before, 0)
        claimed = reply.get("peak_bytes")
        if type(claimed) is not int or claimed < 0:
            raise ContractViolated(f"The memory that `{function}` took was not reported as a number.")
        if resident > 2 * claimed + MEASURE_SLACK_BYTES:
            return Measured(reply["value"], resident, "process", resident)
        return Measured(reply["value"], claimed, "allocations", resident)

    def signature(self, function: str, module: str | None = None) -> list[dict[str, str | None]]:
        """Name, kind and default (as text) of each parameter.

        Raises:
            WorkerFailure: the function isn't there or doesn't tell.
        """
        name = module or self._module
        client = self._ready(self._plain_mode(()), name)
        body = {"module": name, "function": function}
        shown = client.request(
            "signature", body, timeout_s=self.lab.limits.call_s, doing=f"reading the signature of `{function}`"
        )
        if type(shown) is not list or not all(type(item) is dict for item in shown):
            raise ContractViolated(f"The signature of `{function}` was not reported as a list.")
        return shown

    def timed(self, function: str, module: str | None = None) -> TimedWorker:
        """A fresh worker in which `function` is to be timed; this submission's other workers end, so that nothing of
        it runs beside.

        Raises:
            WorkerFailure: the module can't be imported.
        """
        self.close()
        limits = self.lab.limits
        client = self._ready(TIME, module or self._module)
        call_s = self.default_timeout_s or limits.call_s
        return TimedWorker(client, function, timeout_s=call_s, warm_s=max(limits.compile_s, call_s))

    def host(
        self, target: object, methods: tuple[str, ...], attributes: tuple[str, ...] = (), *, tensors: bool = False
    ) -> Hosted:
        """Offer an object of the judge's as an argument: its methods are called here, its attributes are copied.

        With a method `next_block` the submission can iterate over it; None ends the iteration. With `next_blocks` it
        can too: that answers a list of the next few, which cross together, and an empty one at the end.

        Args:
            tensors: its methods take or give tensors of torch.
        """
        return Hosted(target, methods, attributes, tensors=tensors)

    # The rest

    def read_file(self, name: str, max_bytes: int = MAX_ARTIFACT_BYTES) -> bytes | None:
        """A file of the staged submission; None if it isn't there.

        Raises:
            ContractViolated: it's larger than `max_bytes`.
        """
        root = Path(self._staged.path).resolve()
        path = root / name
        if not path.is_file() or not path.resolve().is_relative_to(root):
            return None
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ContractViolated(f"{name} is larger than {max_bytes} bytes.")
        return content

    def peak_bytes(self) -> int:
        """Most memory that the worker of the last call held, as seen from outside, libraries included; 0 before one."""
        return self._last.launched.peak_bytes() if self._last is not None else 0

    @property
    def output(self) -> bytes:
        """What the submission printed in the worker of the last call, bounded; never to be parsed."""
        return self._last.launched.output.data if self._last is not None else b""

    def _perform(
        self,
        function: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        module: str | None,
        timeout_s: float | None,
        options: dict[str, Any],
        *,
        interpreted: bool = False,
    ) -> dict[str, Any]:
        """One call.

        Args:
            interpreted: a recorded function runs on CPU tensors in Triton's interpreter, whatever `device` is.
        """
        name = module or self._module
        timeouts = self._timeouts[name, function]
        if self._patience is not None and timeouts >= self._patience:
            raise TimedOut(f"`{function}` didn't answer within its limit {timeouts} times before, so it wasn't called.")
        if interpreted and self.device != "cpu":
            args, kwargs = tuple(map(_on_cpu, args)), {key: _on_cpu(value) for key, value in kwargs.items()}
        try:
            if function in self.recording:
                device: Device = "cpu" if interpreted else self.device
                reply = self._taped(function, args, kwargs, name, timeout_s, options, device)
            else:
                reply = self._plainly(function, args, kwargs, name, timeout_s, options)
        except TimedOut:
            self._timeouts[name, function] += 1
            raise
        if type(reply) is not dict or "value" not in reply:
            raise ContractViolated(f"`{function}` answered without a value.")
        return reply

    def _taped(
        self,
        function: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        module: str,
        timeout_s: float | None,
        options: dict[str, Any],
        device: Device,
    ) -> dict[str, Any]:
        given = dict(options)
        mutable, cotangents = given.pop("mutable", ()), given.pop("cotangents", ())
        recorded = self.record(
            function,
            *args,
            module=module,
            timeout_s=timeout_s,
            cotangents=cotangents,
            mutable=mutable,
            device=device,
            **kwargs,
        )
        run = recorded.run_heaviest if given.get("trace") else recorded.run
        return run(mutable=mutable, **given)

    def record(
        self,
        function: str,
        /,
        *args: Any,
        profile: HardwareProfile | None = None,
        module: str | None = None,
        timeout_s: float | None = None,
        cotangents: Sequence[Tensor | None] = (),
        mutable: tuple[str, ...] = (),
        device: Device | None = None,
        **kwargs: Any,
    ) -> Recorded:
        """Run a launcher on tensors without data and return the tape of what it did.

        Args:
            profile: whose card the tensors and `torch.cuda` answer for; this submission's by default.
            cotangents: gradients of the results, for a function whose backward is recorded as well.
            mutable: parameters that the call may change.
            device: where the tape is to run; this submission's by default.

        Raises:
            WorkerFailure: the launcher raised, or did what its lab doesn't allow.
        """
        rules = self.recording[function]
        described = Described(rules.parameters, rules.known)
        given, named = described.call(args, kwargs)
        wanted = [
            None if item is None else described.tensor(f"cotangent {n}", item) for n, item in enumerate(cotangents)
        ]
        executor = self.executor(device or self.device)
        executor.warm()
        target = profile or self.target
        if target is None or target.sm is None:
            raise ValueError("recording needs the hardware profile of a GPU")
        name = module or self._module
        limit_s = timeout_s or self.default_timeout_s or self.lab.limits.call_s
        client = self._recorder_of(target, name)
        tape = client.request(
            "record",
            {
                "module": name,
                "function": function,
                "args": given,
                "kwargs": named,
                "cotangents": wanted,
                "rules": rules.model_dump(mode="json"),
                "target": target.model_dump(mode="json"),
                "parameters": list(rules.parameters),
                "mutable": list(mutable),
            },
            timeout_s=limit_s,
            doing=f"calling `{function}`",
        )
        try:
            validate(tape)
        except InvalidTape as problem:
            raise ContractViolated(f"What `{function}` did was recorded out of form: {problem}") from problem
        if (size := len(json.dumps(tape))) > MAX_TAPE_BYTES:
            most = f"at most {MAX_TAPE_BYTES} can be run"
            raise ContractViolated(f"What `{function}` did takes {size} bytes to write down; {most}.")
        return Recorded(
            function,
            tape,
            tuple(described.inputs),
            rules.model_dump(mode="json"),
            executor,
            limit_s,
            tuple(cotangents),
        )

    def executor(self, device: Device) -> Executor:
        """What runs this submission's tapes on a device."""
        if device not in self._executors:
            self._executors[device] = Executor(
                self._isolation, self.lab.limits, device, self.target, launcher=self._launcher, busy=self._busy
            )
        return self._executors[device]

    def _recorder_of(self, target: HardwareProfile, module: str) -> WorkerClient:
        """A worker that records calls of that module for a card: that of our own card where it can do for others."""
        if self.target is not None and self.target.sm is not None and target.name != self.target.name:
            client = self._ready(self._recorder(self.target), module)
            if self._modes[self._recorder(self.target)].shared:
                return client
        return self._ready(self._recorder(target), module)

    def _recorder(self, target: HardwareProfile) -> str:
        """Name of the mode whose worker records for that card."""
        mode = f"{RECORD}:{target.name}"
        self._profiles[mode] = target
        return mode

    def _plainly(
        self,
        function: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        timeout_s: float | None,
        options: dict[str, Any],
    ) -> dict[str, Any]:
        client = self._ready(self._plain_mode((*args, *kwargs.values())), name)
        hosts = Hosts()
        body = {
            "module": name,
            "function": function,
            "args": [hosts.replace(value) for value in args],
            "kwargs": {key: hosts.replace(value) for key, value in kwargs.items()},
            "options": options,
        }
        reply: dict[str, Any] = client.request(
            "call",
            body,
            timeout_s=timeout_s or self.default_timeout_s or self.lab.limits.call_s,
            doing=f"calling `{function}`",
            hosts=hosts,
        )
        return reply

    def _plain_mode(self, arguments: Sequence[Any]) -> str:
        """Name of the mode for a call that isn't recorded; in a lab with kernels it loads no more than it takes."""
        if self.lab.runtime != "triton":
            return RUN
        tensors = any(isinstance(item, Tensor) or (isinstance(item, Hosted) and item.tensors) for item in arguments)
        return f"{RUN}:{'torch' if tensors else 'numpy'}"

    @staticmethod
    def _table(reply: dict[str, Any], key: str, function: str) -> dict[str, Any]:
        table = reply.get(key)
        if type(table) is not dict:
            raise ContractViolated(f"`{function}` answered without `{key}`.")
        return table

    def _ready(self, mode_name: str, module: str) -> WorkerClient:
        """A running worker of that mode with the module imported."""
        self._warmed()
        mode = self._modes.setdefault(mode_name, self._new_mode(mode_name))
        if module in mode.failed:
            # Every raise would add its frames, and what they hold, to those of all before.
            raise mode.failed[module].with_traceback(None)
        if mode.client is None or mode.client.closed:
            mode.client, mode.loaded = self._start(mode), set()
        self._last = mode.client
        if module not in mode.loaded:
            try:
                mode.shared = mode.client.request(
                    "import",
                    {"module": module},
                    timeout_s=self.lab.limits.import_s,
                    doing=f"importing {module}.py",
                    phase="import",
                )
            except WorkerFailure as failure:
                mode.failed[module] = failure
                raise
            mode.loaded.add(module)
            mode.resident_bytes = mode.client.launched.resident_bytes()
        return mode.client

    def _new_mode(self, name: str) -> _Mode:
        kind, _, detail = name.partition(":")
        env = {} if kind == TIME else dict(POISON)  # poison costs time at every allocation
        runtime: Runtime = self.lab.runtime
        if kind == RECORD:
            return _Mode({}, "cpu", runtime, ("record.service",), self._profiles[name].model_dump(mode="json"))
        if kind == RUN and detail:
            runtime = cast(Runtime, detail)
        if runtime == "numpy":
            # Small products: threads cost more than they bring, most of all while other submissions are graded, and
            # one thread adds in one order on every machine.
            env |= ONE_THREAD
        return _Mode(env, self.device, runtime, TIMING_MODULES[runtime] if kind == TIME else ())

    def _start(self, mode: _Mode) -> WorkerClient:
        spec = LaunchSpec(
            isolation=self._isolation,
            limits=self.lab.limits,
            stage=Path(self._staged.path),
            runtime=mode.runtime,
            device=mode.device,
            env={**mode.env, BUSY_VARIABLE: "1"} if self._busy else mode.env,
        )
        client = WorkerClient(self._launcher(spec), self.lab.limits, mode.device, busy=self._busy)
        try:
            self.versions = client.start(
                mode.runtime, mode.device, submission=True, modules=mode.modules, target=mode.target
            )
        except BaseException:
            client.close()
            raise
        return client

    def _discard(self, mode_name: str) -> None:
        mode = self._modes.get(mode_name)
        if mode is not None and mode.client is not None:
            mode.client.close()
            mode.client = None
