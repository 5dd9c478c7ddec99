"""Frames over a socket, with a peer that keeps the rules and with one that doesn't."""

from __future__ import annotations

import array
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from grader.worker.channel import MAX_HEADER_BYTES, Channel, ClosedError, DeadlineError
from grader.worker.wire import ProtocolError, UnsendableError

MIB = 1 << 20
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    """The judge's channel (limit 8 MiB) and the raw socket of its peer."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        yield Channel(ours, max_bytes=8 * MIB), theirs


def soon(seconds: float = 30.0) -> float:
    """A deadline; the one that isn't named is never met: what is read has been sent before, or the peer is gone."""
    return time.monotonic() + seconds


def frame(header: Any, tail: bytes = b"", *, magic: bytes = b"GRD1", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return magic + struct.pack("<I", len(text) if length is None else length) + text + tail


def plain(**change: Any) -> dict[str, Any]:
    return {"k": "result", "i": 7, "b": None, "p": 0, "f": False, "s": []} | change


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_channel_large_and_small_messages_come_back_equal(pair: tuple[Channel, socket.socket]) -> None:
    judge, raw = pair
    worker = Channel(raw, max_bytes=8 * MIB)
    for size in (0, 1, 1000, MIB // 8, MIB // 8 + 1, MIB - 8):
        value = {"x": np.arange(size, dtype=np.float64), "name": "é"}
        sender = threading.Thread(target=worker.send, args=("result", 3, value))
        sender.start()
        received = judge.receive(soon())
        sender.join()
        assert (received.kind, received.id) == ("result", 3)
        assert np.array_equal(received.value()["x"], value["x"])
    assert not judge.has_input()


def test_channel_message_over_the_limit_is_not_sent(pair: tuple[Channel, socket.socket]) -> None:
    judge, _ = pair
    with pytest.raises(UnsendableError, match="at most 8388608 may cross"):
        judge.send("call", 1, np.zeros(2 * MIB))
    with pytest.raises(UnsendableError, match="Return numbers in an array"):
        judge.send("call", 1, ["x" * MAX_HEADER_BYTES])


def test_channel_without_memfds_sends_inline(
    pair: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(27, "File too large")

    judge, raw = pair
    monkeypatch.setattr(os, "ftruncate", refuse)
    value = np.arange(MIB // 2, dtype=np.float64)
    sender = threading.Thread(target=Channel(raw).send, args=("result", 1, value))
    sender.start()
    assert np.array_equal(judge.receive(soon()).value(), value)
    sender.join()


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        frame(plain(), magic=b"GRD2"),
        frame(plain(), length=0xFFFFFFFF),
        frame(plain(), length=MAX_HEADER_BYTES + 1),
        frame(b"\x80\x04\x95pickle"),
        frame(b"[" * 200_000),
        frame(b'{"a":' * 100_000),
        frame(b"[1]"),
        frame(b'{"k": NaN}'),
        frame(b'{"p": ' + b"9" * 10_000 + b"}"),
        frame(plain(k=3)),
        frame(plain(i="7")),
        frame(plain(i=True)),
        frame(plain(p=-1)),
        frame(plain(p=8 * MIB + 1)),
        frame(plain(p=1.5)),
        frame(plain(p=1 << 80)),
        frame(plain(f=1)),
        frame(plain(s=None)),
        frame(plain(s=[[0, 1]])),
        frame(plain(p=8, s=[[0, -1]]), b"x" * 8),
        frame(plain(p=8, s=[[-64, 8]]), b"x" * 8),
        frame(plain(p=8, s=[[1, 4]]), b"x" * 8),
        frame(plain(p=8, s=[[0, 9]]), b"x" * 8),
        frame(plain(p=8, s=[["0", 8]]), b"x" * 8),
        frame(plain(s=[[0, 0]] * 5000)),
        frame(plain(f=True, p=64)),
        frame(plain(p=128, s=[[0, 128], [0, 128]]), b"x" * 128),
        frame(plain(p=128, s=[[64, 64], [0, 64]]), b"x" * 128),
    ],
    ids=range(29),
)
def test_channel_hostile_bytes_are_refused(pair: tuple[Channel, socket.socket], data: bytes) -> None:
    judge, raw = pair
    sender = threading.Thread(target=raw.sendall, args=(data,))
    sender.start()
    with pytest.raises(ProtocolError):
        judge.receive(soon())
    judge.close()
    raw.close()
    sender.join()


def test_channel_good_frame_of_the_hostile_tests_is_accepted(pair: tuple[Channel, socket.socket]) -> None:
    judge, raw = pair
    raw.sendall(frame(plain(p=8, s=[[0, 8]]), b"x" * 8))
    assert judge.receive(soon()).buffers[0].tobytes() == b"x" * 8


@pytest.mark.parametrize("part", [b"", b"GR", frame(plain())[:20], frame(plain(p=8, s=[[0, 8]]), b"xxx")])
def test_channel_half_a_frame_meets_the_deadline(pair: tuple[Channel, socket.socket], part: bytes) -> None:
    judge, raw = pair
    raw.sendall(part)
    with pytest.raises(DeadlineError):
        judge.receive(soon(0.1))


def test_channel_trickled_frame_meets_the_deadline(pair: tuple[Channel, socket.socket]) -> None:
    judge, raw = pair
    stop = threading.Event()

    def trickle() -> None:
        for byte in frame(plain())[:-1]:  # however slow the reader is, the frame is never whole
            if stop.wait(0.02):
                return
            raw.sendall(bytes([byte]))

    sender = threading.Thread(target=trickle)
    sender.start()
    with pytest.raises(DeadlineError):
        judge.receive(soon(0.15))
    stop.set()
    sender.join()


@pytest.mark.parametrize("size", [1000, MIB // 10])
def test_channel_peer_that_never_reads_meets_the_deadline(pair: tuple[Channel, socket.socket], size: int) -> None:
    judge, _ = pair

    def send_without_end() -> None:
        while True:
            judge.send("call", 1, np.zeros(size), deadline=soon(0.1))

    with pytest.raises(DeadlineError, match="doesn't read"):
        send_without_end()


def test_channel_peer_that_hung_up_is_closed(pair: tuple[Channel, socket.socket]) -> None:
    judge, raw = pair
    raw.sendall(b"GRD1")
    raw.close()
    with pytest.raises(ClosedError):
        judge.receive(soon())
    with pytest.raises(ClosedError):
        judge.send("call", 1, None, deadline=soon())


def test_channel_peer_process_that_left_the_socket_to_a_child_is_closed() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(120)\n"
    with ours, theirs:
        process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        exit_fd = os.pidfd_open(process.pid)
        try:
            with pytest.raises(ClosedError, match="process ended"):
                Channel(ours, peer_exit_fd=exit_fd).receive(soon(60))
        finally:
            os.close(exit_fd)
            os.killpg(process.pid, 9)
            process.wait()


# Descriptors


def memfd(content: bytes, seals: int = SEALS) -> int:
    descriptor = os.memfd_create("x", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def send_with(raw: socket.socket, data: bytes, *descriptors: int) -> None:
    raw.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])


MEMFD_FRAME = frame(plain(p=64, f=True, s=[[0, 64]]))


def test_channel_sealed_memfd_is_copied(pair: tuple[Channel, socket.socket]) -> None:
    judge, raw = pair
    descriptor = memfd(bytes(range(64)))
    send_with(raw, MEMFD_FRAME, descriptor)
    os.close(descriptor)
    before = open_descriptors()
    assert judge.receive(soon()).buffers[0].tobytes() == bytes(range(64))
    assert open_descriptors() <= before


@pytest.mark.parametrize(
    "case", ["no seals", "no write seal", "no shrink seal", "short", "long", "fifo", "memory", "file"]
)
def test_channel_descriptor_that_could_change_is_refused_and_closed(
    pair: tuple[Channel, socket.socket], case: str, tmp_path: Any
) -> None:
    judge, raw = pair
    path = tmp_path / "file"
    if case == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(bytes(64))
    descriptor = {
        "no seals": lambda: memfd(bytes(64), 0),
        "no write seal": lambda: memfd(bytes(64), fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW),
        "no shrink seal": lambda: memfd(bytes(64), fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW),
        "short": lambda: memfd(bytes(63)),
        "long": lambda: memfd(bytes(65)),
        "fifo": lambda: os.open(path, os.O_RDWR),
        "memory": lambda: os.open("/proc/self/mem", os.O_RDONLY),
        "file": lambda: os.open(path, os.O_RDONLY),
    }[case]()
    send_with(raw, MEMFD_FRAME, descriptor)
    os.close(descriptor)
    before = open_descriptors()
    with pytest.raises(ProtocolError, match=r"memfd|regular file"):
        judge.receive(soon())
    assert open_descriptors() <= before


@pytest.mark.parametrize("count", [2, 16, 17, 200])
def test_channel_flood_of_descriptors_is_refused_and_closed(pair: tuple[Channel, socket.socket], count: int) -> None:
    judge, raw = pair
    descriptor = memfd(bytes(64))
    send_with(raw, MEMFD_FRAME, *[descriptor] * count)
    os.close(descriptor)
    before = len(open_descriptors())
    with pytest.raises(ProtocolError, match="descriptors"):
        judge.receive(soon())
    assert len(open_descriptors()) <= before


def test_channel_descriptor_nobody_declared_is_refused(pair: tuple[Channel, socket.socket]) -> None:
    judge, raw = pair
    descriptor = memfd(bytes(64))
    send_with(raw, frame(plain()), descriptor)
    os.close(descriptor)
    with pytest.raises(ProtocolError, match="1 descriptors in a frame that declares 0"):
        judge.receive(soon())
