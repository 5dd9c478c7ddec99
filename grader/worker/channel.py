"""Messages over a socket: framing, deadlines, descriptors.

A frame is a 4-byte magic, the length of a JSON header (u32, little endian, at most 1 MiB), the header, and the
message's buffers: inline, or as one sealed memfd when they are large. Either side may face a peer that sends
anything, so every length is bounded before it's believed, every wait has a deadline, and the bytes of a memfd are
copied only when no seal is missing that would let its owner shrink or rewrite it meanwhile.
"""

from __future__ import annotations

import array
import errno
import fcntl
import json
import os
import select
import socket
import stat
import struct
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from .codec import Decoder, Encoder, no_ref
from .wire import (
    BUFFER_ALIGNMENT,
    MAX_BUFFERS,
    MAX_BYTES,
    Bytes,
    Json,
    LeafReader,
    ProtocolError,
    RefReader,
    UnsendableError,
    WireError,
    numpy_value,
)

MAGIC = b"GRD1"
MAX_HEADER_BYTES = 1 << 20
MAX_INLINE_BYTES = 1 << 20
"""Larger buffers go by memfd. A receiver takes inline buffers of any allowed size: a worker whose RLIMIT_FSIZE is
smaller than its answer can't fill a memfd."""
MAX_DESCRIPTORS = 16
READ_AHEAD_BYTES = 1 << 16
SPIN_S = 100e-6
"""How long to look for an answer before sleeping: the round trip of a hosted object is shorter than a wake-up."""
BUSY_VARIABLE = "GRADE_BUSY"
"""Set in a worker whose core others wait for: it sleeps at once."""
MAX_PIECES = 32
"""Buffers that are sent without a copy; a system call takes a bounded number of pieces."""

REQUIRED_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
PREFIX = struct.Struct("<4sI")


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} isn't JSON")


_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_loads = json.JSONDecoder(parse_constant=_no_constant).decode
_SOL_SOCKET, _SCM_RIGHTS, _CTRUNC = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS), int(socket.MSG_CTRUNC)
_RECEIVE_FLAGS = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
_monotonic, _empty = time.monotonic, np.empty
_close, _write, _preadv, _fstat, _getseals = os.close, os.write, os.preadv, os.fstat, fcntl.fcntl


class ClosedError(WireError):
    """The peer is gone: end of file, a reset, or its process ended."""


class DeadlineError(WireError):
    """The deadline passed while waiting for the peer, possibly in the middle of a frame."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A received message, its value not read yet.

    Attributes:
        kind: what the message is, e.g. ``call`` or ``result``.
        id: number that ties a reply to its request.
    """

    kind: str
    id: int
    body: Json
    buffers: list[Bytes]

    def value(self, leaf_to: LeafReader = numpy_value, ref_to: RefReader = no_ref, *, expand: bool = False) -> Any:
        """Decode the body (see `wire.Decoder`).

        Raises:
            ProtocolError: it is malformed.
        """
        return Decoder(self.buffers, leaf_to, ref_to, expand=expand).decode(self.body)


class Channel:
    """One end of the conversation.

    Args:
        sock: a connected AF_UNIX stream socket; it becomes non-blocking.
        max_bytes: limit on the buffers of one message, either way.
        peer_exit_fd: a pidfd that becomes readable when the peer's process ended; needed where a child of the peer
            may hold the socket open.
        spin_s: how long to look for an answer before sleeping; zero where other work waits for the core.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        max_bytes: int = MAX_BYTES["cpu"],
        peer_exit_fd: int | None = None,
        spin_s: float = SPIN_S,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._recvmsg_into, self._sendmsg = sock.recvmsg_into, sock.sendmsg
        self._buffer = memoryview(bytearray(READ_AHEAD_BYTES))
        self._ahead = bytearray()
        self._max_bytes = max_bytes
        self._peer_exit_fd = peer_exit_fd
        self._spin_s = spin_s
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(sock.fileno(), select.POLLIN)
        self._writable.register(sock.fileno(), select.POLLOUT)
        if peer_exit_fd is not None:
            self._readable.register(peer_exit_fd, select.POLLIN)
            self._writable.register(peer_exit_fd, select.POLLIN)

    def close(self) -> None:
        self._sock.close()

    def has_input(self) -> bool:
        """Whether something arrived that nobody has read."""
        fd = self._sock.fileno()
        return bool(self._ahead) or any(
            ready == fd and event & select.POLLIN for ready, event in self._readable.poll(0)
        )

    # Sending

    def send(
        self,
        kind: str,
        number: int,
        value: Any = None,
        *,
        deadline: float | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        """Send one message.

        Args:
            deadline: on the monotonic clock; None waits for ever.

        Raises:
            UnsendableError: the value can't cross or is too large; nothing was sent.
            DeadlineError: the peer doesn't read.
            ClosedError: the peer is gone.
        """
        encoder = encoder or Encoder()
        self.send_written(kind, number, encoder.encode(value, kind), encoder.buffers, deadline=deadline)

    def send_written(
        self, kind: str, number: int, body: Json, buffers: list[Bytes], *, deadline: float | None = None
    ) -> None:
        """Send a message whose value an encoder has written down already; raises as `send` does."""
        spans, total = _layout(buffers)
        if total > self._max_bytes:
            raise UnsendableError(f"{total} bytes of arrays; at most {self._max_bytes} may cross in one message")
        memfd = _sealed_memfd(buffers, spans, total) if total > MAX_INLINE_BYTES else None
        try:
            tree = {"k": kind, "i": number, "b": body, "p": total, "f": memfd is not None, "s": spans}
            header = _dumps(tree).encode("ascii")
            if len(header) > MAX_HEADER_BYTES:
                raise UnsendableError(
                    f"{len(header)} bytes of text and plain values; at most {MAX_HEADER_BYTES} may cross. "
                    "Return numbers in an array"
                )
            head = PREFIX.pack(MAGIC, len(header)) + header
            inline = [] if memfd is not None else _pieces(buffers, spans, total)
            self._send_all([head, *inline], deadline, memfd)
        finally:
            if memfd is not None:
                _close(memfd)

    def _send_all(
        self, pieces: list[bytes | bytearray | Bytes], deadline: float | None, descriptor: int | None
    ) -> None:
        """Send the pieces one after the other, the descriptor with the first."""
        views = [memoryview(piece) for piece in pieces]  # type: ignore[arg-type]
        while views:
            ancillary = []
            if descriptor is not None:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
            try:
                sent = self._sendmsg(views, ancillary)
            except BlockingIOError:
                self._wait(self._writable, deadline, "the peer doesn't read")
                continue
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.ECONNRESET, errno.EBADF):
                    raise ClosedError("the peer closed the connection") from error
                raise
            descriptor = None
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    # Receiving

    def receive(self, deadline: float | None = None) -> Frame:
        """The next message. Descriptors that came with it are closed before this returns or raises.

        Raises:
            ProtocolError: the bytes aren't a frame of ours, or break a bound.
            DeadlineError, ClosedError: see `send`.
        """
        descriptors: list[int] = []
        try:
            prefix = self._take(PREFIX.size, deadline, descriptors)
            magic, length = PREFIX.unpack(prefix)
            if magic != MAGIC or length > MAX_HEADER_BYTES:
                raise ProtocolError(f"bytes that aren't a frame ({prefix!r})")
            header = _parse(self._take(length, deadline, descriptors))
            kind, number, body, total, by_memfd, spans = _checked(header, self._max_bytes)
            payload = _empty(total, np.uint8)
            if not by_memfd:
                self._fill(memoryview(payload), deadline, descriptors)  # type: ignore[arg-type]
            if len(descriptors) != int(by_memfd):
                raise ProtocolError(f"{len(descriptors)} descriptors in a frame that declares {int(by_memfd)}")
            if by_memfd:
                _copy_sealed(descriptors[0], payload)
            return Frame(kind, number, body, [payload[offset : offset + size] for offset, size in spans])
        finally:
            for descriptor in descriptors:
                _close(descriptor)

    def _take(self, size: int, deadline: float | None, descriptors: list[int]) -> bytes:
        """The next `size` bytes, a small number. Reads ahead: most frames arrive whole in one system call."""
        if not self._ahead and not self._spin_s:
            # The answer is hardly ever there already: asking for it first would be a call for nothing.
            self._wait(self._readable, deadline, "no complete reply came")
        while len(self._ahead) < size:
            count = self._receive_some(self._buffer, deadline, descriptors)
            self._ahead += self._buffer[:count]
        taken = bytes(self._ahead[:size])
        del self._ahead[:size]
        return taken

    def _fill(self, view: memoryview, deadline: float | None, descriptors: list[int]) -> None:
        """Fill `view` with the next bytes, without a second copy of those that haven't been read ahead."""
        ready = min(len(self._ahead), len(view))
        view[:ready] = self._ahead[:ready]
        del self._ahead[:ready]
        view = view[ready:]
        while view:
            view = view[self._receive_some(view, deadline, descriptors) :]

    def _receive_some(self, view: memoryview, deadline: float | None, descriptors: list[int]) -> int:
        """Read at least one byte into `view`, and note the descriptors that came along.

        Raises:
            ProtocolError: too many descriptors. DeadlineError, ClosedError: see `send`.
        """
        while True:
            try:
                count, ancillary, flags, _ = self._recvmsg_into([view], _ANCILLARY_BYTES, _RECEIVE_FLAGS)
                break
            except BlockingIOError:
                self._wait(self._readable, deadline, "no complete reply came")
            except ConnectionResetError as error:
                raise ClosedError("the peer closed the connection") from error
        for level, kind, content in ancillary:
            if level == _SOL_SOCKET and kind == _SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                descriptors.extend(fds)
        if int(flags) & _CTRUNC or len(descriptors) > MAX_DESCRIPTORS:
            raise ProtocolError("more descriptors than a frame may carry")
        if count == 0:
            raise ClosedError("the peer closed the connection")
        return count

    def _wait(self, poll: select.poll, deadline: float | None, problem: str) -> None:
        """Wait until the socket is ready.

        Raises:
            DeadlineError: it isn't in time. ClosedError: the peer's process ended and left nothing to read.
        """
        socket_fd = self._sock.fileno()
        if self._spin_s:
            spin_until = _monotonic() + self._spin_s
            while _monotonic() < spin_until:
                if poll.poll(0):
                    break
        while True:
            left = None if deadline is None else deadline - _monotonic()
            if left is not None and left <= 0:
                raise DeadlineError(problem)
            ready = poll.poll(None if left is None else left * 1000 + 0.5)
            if any(fd == socket_fd for fd, _ in ready):
                return
            if ready:
                raise ClosedError("the peer's process ended")


def _layout(buffers: list[Bytes]) -> tuple[list[list[int]], int]:
    """Offset and size of each buffer in one aligned block, and the block's size."""
    spans: list[list[int]] = []
    end = 0
    for buffer in buffers:
        start = -(-end // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
        spans.append([start, buffer.size])
        end = start + buffer.size
    return spans, end


def _pieces(buffers: list[Bytes], spans: list[list[int]], total: int) -> list[bytes | bytearray | Bytes]:
    """The aligned block in pieces: the buffers themselves and what lies between them, or a copy where they are many."""
    if len(buffers) > MAX_PIECES:
        return [_joined(buffers, spans, total)]
    pieces: list[bytes | bytearray | Bytes] = []
    end = 0
    for buffer, (offset, size) in zip(buffers, spans, strict=True):
        if offset > end:
            pieces.append(bytes(offset - end))
        if size:
            pieces.append(buffer)
        end = offset + size
    return pieces


def _joined(buffers: list[Bytes], spans: list[list[int]], total: int) -> bytearray:
    block = bytearray(total)
    for buffer, (offset, size) in zip(buffers, spans, strict=True):
        block[offset : offset + size] = memoryview(buffer)  # type: ignore[arg-type]
    return block


def _sealed_memfd(buffers: list[Bytes], spans: list[list[int]], total: int) -> int | None:
    """A memfd that holds the buffers and can't change any more; None where it can't be made (then they go inline)."""
    if not hasattr(os, "memfd_create"):
        return None
    descriptor = os.memfd_create("buffers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, total)
        for buffer, (offset, _) in zip(buffers, spans, strict=True):
            view = memoryview(buffer)  # type: ignore[arg-type]
            os.lseek(descriptor, offset, os.SEEK_SET)
            while view:
                view = view[_write(descriptor, view) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, REQUIRED_SEALS | fcntl.F_SEAL_SEAL)
    except OSError:  # RLIMIT_FSIZE, or /dev/shm's memory is used up: the socket has no such limit
        _close(descriptor)
        return None
    return descriptor


def _copy_sealed(descriptor: int, payload: Bytes) -> None:
    """Fill `payload` from a memfd that its sender can't change any more.

    Read, never mapped: a read of a hole costs no memory, and a descriptor that isn't what it claims to be can't raise
    SIGBUS here.

    Raises:
        ProtocolError: it isn't a regular memfd of that size with the seals against shrinking, growing and writing.
    """
    status = _fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size != payload.size:
        raise ProtocolError(f"a descriptor that isn't a regular file of {payload.size} bytes")
    try:
        seals = _getseals(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError("a descriptor that isn't a memfd") from error
    if seals & REQUIRED_SEALS != REQUIRED_SEALS:
        raise ProtocolError("a memfd whose seals would let it change while it's read")
    view = memoryview(payload)  # type: ignore[arg-type]
    offset = 0
    while offset < payload.size:
        count = _preadv(descriptor, [view[offset:]], offset)
        if count == 0:
            raise ProtocolError("a memfd that ends early")
        offset += count


def _parse(header: bytes) -> dict[str, Json]:
    try:
        tree = _loads(header.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a header that isn't JSON ({type(error).__name__})") from error
    if type(tree) is not dict:
        raise ProtocolError("a header that isn't an object")
    return tree


def _checked(header: dict[str, Json], max_bytes: int) -> tuple[str, int, Json, int, bool, list[tuple[int, int]]]:
    kind, number, total, by_memfd, spans = (header.get(key) for key in "kipfs")
    if type(kind) is not str or type(number) is not int or type(by_memfd) is not bool or type(spans) is not list:
        raise ProtocolError("a header with fields of a wrong type")
    if type(total) is not int or not 0 <= total <= max_bytes:
        raise ProtocolError(f"a message of {total!r:.40} bytes; at most {max_bytes} may cross")
    if len(spans) > MAX_BUFFERS:
        raise ProtocolError(f"{len(spans)} buffers in one message")
    checked = []
    end = 0
    for span in spans:
        if type(span) is not list or len(span) != 2 or not all(type(part) is int and part >= 0 for part in span):
            raise ProtocolError(f"a buffer at {span!r:.60}")
        if span[0] + span[1] > total or span[0] % BUFFER_ALIGNMENT:
            raise ProtocolError(f"a buffer at {span!r:.60} in a block of {total} bytes")
        # Each byte once: a small message could stand for any number of bytes otherwise.
        if span[0] < end:
            raise ProtocolError(f"a buffer at {span!r:.60} that overlaps the one before it")
        end = span[0] + span[1]
        checked.append((span[0], span[1]))
    return kind, number, header.get("b"), total, by_memfd, checked
