"""A worker's main module for the sandbox tests: runs Python text that the test sends, answers with a repr."""

from __future__ import annotations

import socket
import struct

SOCKET_FD = 3


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise SystemExit(0)
        data += chunk
    return data


def main() -> None:
    """Serve until the judge hangs up."""
    sock = socket.socket(fileno=SOCKET_FD)
    while True:
        (size,) = struct.unpack("!I", _read(sock, 4))
        names: dict[str, object] = {}
        try:
            exec(_read(sock, size).decode(), names)
            answer = repr(names.get("result"))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to know
            answer = f"{type(error).__name__}: {error}"
        encoded = answer.encode()
        sock.sendall(struct.pack("!I", len(encoded)) + encoded)
