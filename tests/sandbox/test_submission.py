"""Calls of a NumPy submission: values, contracts, hosted objects, memory; one worker for the whole file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_submission import small_submission

from grader.sandbox.failures import ContractViolated, ImportFailed, SubmissionRaised
from grader.sandbox.hosting import HostRefusal
from grader.sandbox.submission import Submission
from grader.worker.wire import Record

SOURCE = """
import collections, dataclasses, os, sys, threading, time
import numpy as np

Stats = collections.namedtuple("Stats", "m l")

@dataclasses.dataclass
class Cost:
    flops: int
    bytes: int

@dataclasses.dataclass
class Trap:
    flops: int
    def __getattribute__(self, name): raise RuntimeError("not for you")

class Lazy(np.ndarray):
    def __eq__(self, other): return True

class Equal:
    def __eq__(self, other): return True
    def __array__(self, *a, **k): return np.zeros(3)

def echo(*args, **kwargs): return [a.copy() if isinstance(a, np.ndarray) else a for a in args], kwargs
def scale(x, *, factor=2.0): return x * factor
def layout(x): return x.strides, x.flags.writeable, x.ctypes.data % 64, type(x) is np.ndarray
def address(x): return x.ctypes.data
def around(x): return np.array([x.base[x.ctypes.data - x.base.ctypes.data - 1], x.base[-1], x.base[0]])
def bits(x):
    base = x.base
    start = x.ctypes.data - base.ctypes.data
    return base[start - 64:start].tobytes()
def between(x): return x.base[x.ctypes.data - x.base.ctypes.data:][:64].tobytes()
def stats(x): return Stats(x.max(), 2)
def cost(): return Cost(1, 2)
def trap(): return Trap(1)
def mutate(x): x[0] = 7.0
def mutate_same_value(x): x[0] = x[0]
def nan_for_nan(x): x[0] = -x[0]
def write_before(x): x.base[x.ctypes.data - x.base.ctypes.data - 1] ^= 1; return 0
def write_after(x): x.base[x.ctypes.data - x.base.ctypes.data + x.nbytes] ^= 1; return 0
def write_between(x): np.lib.stride_tricks.as_strided(x, (2,), (8,))[1] = 5.0; return 0
def reshape_input(x): x.shape = (x.size,); return 0
def view(x): return x[1:]
def transposed(x): return {"deep": [x.T]}
def itself(x): return x
def lazy(x): return x.view(Lazy)
def equal(x): return Equal()
def masked(x): return np.ma.masked_array(x)
def matrix(x): return np.asmatrix(x)
def objects(x): return np.array([len, print])
def big_endian(x): return x.astype(">f8")
def unwritten(n): return np.empty(n)
def leave_small(n):
    blocks = [np.ones(n) for _ in range(30)]
    return len(blocks)
def unwritten_small(n):
    return [np.empty(n) for _ in range(8)]
def warn(x): return np.log(x)
def silent(x):
    with np.errstate(all="ignore"): return np.log(x)
def total(blocks): return sum(float(b.sum()) for b in blocks)
def gather(blocks): return float(np.concatenate([b for b in blocks]).sum())
def listed(blocks): return np.concatenate(list(blocks))
def twice(blocks): return total(blocks), total(blocks)
def misuse(blocks): return blocks.rewind()
def misuse_arguments(blocks): return blocks.next_block(1, 2, 3)
def misuse_value(blocks): return blocks.next_block(Equal())
def recover(blocks):
    try:
        blocks.next_block(Equal())
    except TypeError:
        return float(blocks.next_block().sum())
class Signed:
    @property
    def __signature__(self): raise RuntimeError("no signature")
    def __call__(self): return 1
signed = Signed()
def swallow(blocks):
    try:
        blocks.next_block(-1)
    except RuntimeError as error:
        return str(error)
def hbm(machine):
    tile = machine.load("q", 0, rows=2)
    machine.store("o", tile * 2)
    return machine.capacity
def nested(machine):
    machine.hbm.store("o", machine.hbm.load("q", 3, rows=2))
    return machine.rows
def forge_memory(blocks):
    import tracemalloc
    answer = gather(blocks)
    tracemalloc.get_traced_memory = lambda: (0, 0)
    calls = sys.modules["grader_worker.calls"]
    calls.tracemalloc = type("T", (), {"get_traced_memory": lambda *a: (0, 0), "stop": lambda *a: None})()
    return answer
"""


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submission]:
    with small_submission(tmp_path_factory.mktemp("submission"), SOURCE) as found:
        yield found


def test_call_values_arrive_and_return_equal(submission: Submission) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    args, kwargs = submission.call("echo", x, 3, "é", None, [1, (2.5,)], flag=True, big=2**90)
    assert np.array_equal(args[0], x)
    assert args[0].dtype == np.float32
    assert args[1:] == [3, "é", None, [1, (2.5,)]]
    assert kwargs == {"flag": True, "big": 2**90}


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "complex128"]
)
def test_call_honest_function_of_any_dtype_keeps_the_contract(submission: Submission, dtype: str) -> None:
    x = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    for layout in (x, x.T, x[:, ::2], np.broadcast_to(x[:1], (4, 3))):
        (copied,), _ = submission.call("echo", layout)
        assert copied.dtype == x.dtype
        assert np.array_equal(copied, layout)


def test_call_keyword_only_argument_is_bound(submission: Submission) -> None:
    assert submission.call("scale", np.ones(2), factor=3.0).tolist() == [3.0, 3.0]


def test_call_strided_array_keeps_its_layout(submission: Submission) -> None:
    x = np.arange(24.0).reshape(4, 6)
    assert submission.call("layout", x.T) == ((8, 48), True, 0, True)
    assert submission.call("layout", x[:, ::2])[0] == (48, 16)
    assert submission.call("layout", np.broadcast_to(x[:1], (4, 6)))[0] == (0, 8)
    assert np.array_equal(submission.call("echo", x[::2, 1::2])[0][0], x[::2, 1::2])


def test_call_same_argument_lies_at_a_fresh_address(submission: Submission) -> None:
    addresses = [submission.call("address", np.ones(5)) for _ in range(12)]
    assert all(a != b for a, b in pairwise(addresses))
    assert len(set(addresses)) > 6


def test_call_argument_is_surrounded_by_nan_or_canary(submission: Submission) -> None:
    assert set(submission.call("bits", np.ones(3))) == {0xFF}
    assert set(submission.call("bits", np.ones(3, np.int64))) == {0x5A}
    assert np.isnan(np.frombuffer(submission.call("bits", np.ones(3)), np.float16)).all()
    gaps = np.frombuffer(submission.call("between", np.ones((4, 2))[:, :1]), np.float64)
    assert np.isnan(gaps).tolist() == [False, True] * 4 or np.isnan(gaps)[1::2].sum() >= 3


def test_call_records_come_back_by_field(submission: Submission) -> None:
    m, l = submission.call("stats", np.ones(3))  # noqa: E741 - the names of the field
    assert (m, l) == (1.0, 2)
    cost = submission.call("cost")
    assert isinstance(cost, Record)
    assert cost.as_dict() == {"flops": 1, "bytes": 2}


@pytest.mark.parametrize("function", ["mutate", "nan_for_nan"])
def test_call_that_changes_its_input_breaks_the_contract(submission: Submission, function: str) -> None:
    with pytest.raises(ContractViolated, match="changed its input `x`"):
        submission.call(function, np.array([np.nan, 1.0]))


def test_call_that_may_change_its_input_returns_what_it_holds(submission: Submission) -> None:
    changed = submission.mutating_call("mutate", np.zeros(2), mutable=("x",))
    assert changed.value is None
    assert changed.arguments["x"].tolist() == [7.0, 0.0]
    with pytest.raises(ContractViolated, match="wrote outside its input `x`"):
        submission.mutating_call("write_after", np.zeros(2), mutable=("x",))


@pytest.mark.parametrize("function", ["write_before", "write_after", "write_between"])
def test_call_that_writes_beside_its_input_breaks_the_contract(submission: Submission, function: str) -> None:
    x = np.zeros((4, 2))[:, 0] if function == "write_between" else np.zeros(4)
    with pytest.raises(ContractViolated, match="wrote outside its input `x`"):
        submission.call(function, x)


@pytest.mark.parametrize("function", ["mutate_same_value", "reshape_input"])
def test_call_that_leaves_values_alone_keeps_the_contract(submission: Submission, function: str) -> None:
    assert submission.call(function, np.ones((2, 2))) in (None, 0)


@pytest.mark.parametrize("function", ["view", "transposed", "itself"])
def test_call_that_returns_its_input_breaks_the_contract(submission: Submission, function: str) -> None:
    with pytest.raises(ContractViolated, match=r"the result.* is a view of the input `x`"):
        submission.call(function, np.ones((3, 3)))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("lazy", "is a Lazy; expected exactly numpy.ndarray"),
        ("equal", "is a answer.Equal; expected exactly"),
        ("masked", "is a MaskedArray"),
        ("matrix", "is a matrix"),
        ("objects", "dtype object"),
        ("big_endian", "dtype >f8"),
    ],
)
def test_call_result_of_another_class_breaks_the_contract(submission: Submission, function: str, words: str) -> None:
    with pytest.raises(ContractViolated, match=words):
        submission.call(function, np.ones((2, 2)))


def test_call_result_that_raises_when_read_is_the_submissions_failure(submission: Submission) -> None:
    with pytest.raises(SubmissionRaised, match="RuntimeError: not for you"):
        submission.call("trap")


@pytest.mark.parametrize("count", [2, 20, 100, 1000, 100_000])
def test_call_unwritten_result_shows(submission: Submission, count: int) -> None:
    submission.call("scale", np.ones(count))  # the right answer, freed just before
    value = submission.call("unwritten", count)
    assert not np.isclose(value, 2.0).any()
    assert not np.isclose(value, 0.0, atol=1e-30).any()


def test_call_unwritten_small_results_are_nan(submission: Submission) -> None:
    submission.call("leave_small", 20)  # more blocks than NumPy keeps: the others go back to malloc
    blocks = submission.call("unwritten_small", 20)
    assert not any(np.isfinite(block).any() and np.abs(block).max() < 1e30 for block in blocks)


def test_call_forbidden_warning_fails_with_its_text(submission: Submission) -> None:
    with pytest.raises(SubmissionRaised, match="RuntimeWarning: divide by zero") as caught:
        submission.call("warn", np.zeros(2), forbid_warnings=True)
    assert caught.value.type_name == "RuntimeWarning"
    assert submission.call("warn", np.zeros(2)).tolist() == [-np.inf, -np.inf]
    assert submission.call("silent", np.zeros(2), forbid_warnings=True).tolist() == [-np.inf, -np.inf]


def test_call_missing_function_names_what_is_there(submission: Submission) -> None:
    with pytest.raises(ImportFailed, match=r"answer.py has no function `scal`. Defined there: .*Did you mean scale\?"):
        submission.call("scal")


def test_call_wrong_signature_shows_the_expected_call(submission: Submission) -> None:
    with pytest.raises(SubmissionRaised, match=r"`scale\(x, \*, factor=2.0\)` can't be called as `scale\(…, fac=…\)`"):
        submission.call("scale", np.ones(2), fac=1)


def test_signature_names_parameters(submission: Submission) -> None:
    assert submission.signature("scale") == [
        {"name": "x", "kind": "positional_or_keyword", "default": None},
        {"name": "factor", "kind": "keyword_only", "default": "2.0"},
    ]


# Hosted objects


class Stream:
    """A stream of blocks of ones."""

    def __init__(self, count: int, width: int = 4) -> None:
        self._left = count
        self._width = width

    def next_block(self, skip: int = 0) -> np.ndarray[Any, Any] | None:
        if skip < 0:
            raise HostRefusal("a stream can't go back")
        self._left -= 1
        return np.ones(self._width) if self._left >= 0 else None


def test_host_stream_is_iterated_and_counted(submission: Submission) -> None:
    blocks = submission.host(Stream(10), ("next_block",))
    assert submission.call("total", blocks) == 40.0
    assert blocks.calls["next_block"] == 11


class Batches:
    """Ten numbers, in lists of four."""

    def __init__(self) -> None:
        self._left = [np.full(1, float(number)) for number in range(10)]

    def next_blocks(self) -> list[np.ndarray[Any, Any]]:
        taken, self._left = self._left[:4], self._left[4:]
        return taken


def test_host_stream_of_several_blocks_a_message_is_iterated_in_order(submission: Submission) -> None:
    blocks = submission.host(Batches(), ("next_blocks",))
    assert np.array_equal(submission.call("listed", blocks), np.arange(10.0))
    assert blocks.calls["next_blocks"] == 4
    assert submission.call("twice", submission.host(Batches(), ("next_blocks",))) == (45.0, 0.0)


def test_host_stream_read_twice_is_empty_the_second_time(submission: Submission) -> None:
    assert submission.call("twice", submission.host(Stream(3), ("next_block",))) == (12.0, 0.0)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("misuse", "AttributeError: 'Stream' object has no attribute 'rewind'"),
        ("misuse_arguments", r"HostRefusedError: next_block\(.*\).*: too many positional arguments"),
        ("misuse_value", "TypeError: next_block: .* is a answer.Equal"),
    ],
)
def test_host_misuse_is_the_submissions_failure(submission: Submission, function: str, words: str) -> None:
    with pytest.raises(SubmissionRaised, match=words):
        submission.call(function, submission.host(Stream(1), ("next_block",)))


def test_host_call_that_was_never_sent_does_not_spoil_the_next(submission: Submission) -> None:
    assert submission.call("recover", submission.host(Stream(1), ("next_block",))) == 4.0


def test_call_signature_that_raises_is_the_submissions_failure(submission: Submission) -> None:
    with pytest.raises(SubmissionRaised, match="RuntimeError: no signature"):
        submission.call("signed")


def test_host_refusal_reaches_the_submission(submission: Submission) -> None:
    assert submission.call("swallow", submission.host(Stream(1), ("next_block",))) == "a stream can't go back"


class Machine:
    """Two methods and an attribute, as lab 3 hosts them."""

    capacity = 64

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}

    def load(self, name: str, first: int, rows: int) -> np.ndarray[Any, Any]:
        return np.full((rows, 2), float(first))

    def store(self, name: str, tile: np.ndarray[Any, Any]) -> None:
        self.stored[name] = tile


def test_host_object_with_methods_and_attributes_gets_what_crossed(submission: Submission) -> None:
    machine = Machine()
    assert submission.call("hbm", submission.host(machine, ("load", "store"), ("capacity",))) == 64
    assert machine.stored["o"].tolist() == [[0.0, 0.0], [0.0, 0.0]]


class Computer:
    """An object whose attribute is a hosted object itself."""

    rows = 2

    def __init__(self, hbm: object) -> None:
        self.hbm = hbm


def test_host_object_within_a_hosted_object_is_reached(submission: Submission) -> None:
    machine = Machine()
    inner = submission.host(machine, ("load", "store"))
    assert submission.call("nested", submission.host(Computer(inner), (), ("hbm", "rows"))) == 2
    assert machine.stored["o"].tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert inner.calls == {"load": 1, "store": 1}


class Broken:
    def next_block(self) -> None:
        raise RuntimeError("a fault of the judge's")


def test_host_fault_of_the_judge_is_raised_as_it_is_and_the_next_call_works(submission: Submission) -> None:
    with pytest.raises(RuntimeError, match="a fault of the judge's"):
        submission.call("total", submission.host(Broken(), ("next_block",)))
    assert submission.call("cost").flops == 1


# Memory

BLOCK = 1 << 17
BLOCKS = 64


def test_measured_call_stream_in_constant_memory_reports_a_block(submission: Submission) -> None:
    found = submission.measured_call("total", submission.host(Stream(BLOCKS, BLOCK), ("next_block",)))
    assert found.value == BLOCK * BLOCKS
    assert found.peak_bytes_source == "allocations"
    assert 8 * BLOCK <= found.peak_bytes < 8 * 8 * BLOCK


def test_measured_call_gathered_stream_reports_all_blocks(submission: Submission) -> None:
    found = submission.measured_call("gather", submission.host(Stream(BLOCKS, BLOCK), ("next_block",)))
    assert found.peak_bytes >= 8 * BLOCK * BLOCKS


def test_measured_call_forged_count_is_contradicted_from_outside(submission: Submission) -> None:
    found = submission.measured_call("forge_memory", submission.host(Stream(BLOCKS, BLOCK), ("next_block",)))
    assert found.peak_bytes_source == "process"
    assert found.peak_bytes >= 8 * BLOCK * BLOCKS


def test_read_file_stays_inside_the_submission(submission: Submission) -> None:
    content = submission.read_file("answer.py")
    assert content is not None
    assert b"def gather" in content
    assert submission.read_file("absent.csv") is None
    assert submission.read_file("../../etc/passwd") is None
    assert submission.read_file("/etc/passwd") is None
    with pytest.raises(ContractViolated, match=r"answer.py is larger than 10 bytes"):
        submission.read_file("answer.py", max_bytes=10)


def test_peak_bytes_is_seen_from_outside(submission: Submission) -> None:
    submission.call("cost")
    assert submission.peak_bytes() > 4 << 20


def test_submission_numpy_runtime_never_loads_torch(tmp_path: Path) -> None:
    source = "import sys\nbefore = 'torch' in sys.modules\ndef loaded(): return before, 'torch' in sys.modules\n"
    with small_submission(tmp_path, source) as found:
        assert found.call("loaded") == (False, False)
