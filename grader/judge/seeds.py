"""Where random inputs come from: one key, and a stream of its own for every draw.

With the instructor's secret the inputs are the same for every student of a batch and can be replayed; without one a
random key serves a single run and is named in the report afterwards. The key never reaches a worker.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from grader.errors import UsageError
from grader.files import removed_unless_whole
from grader.machine import unwritable
from grader.report.model import SeedRecord

SECRET_VARIABLE = "GRADE_SECRET"
SECRET_FILE_VARIABLE = "GRADE_SECRET_FILE"
FORBIDDEN_MODE = stat.S_IRWXO | stat.S_IWGRP
LONGEST_SECRET = 4096
SHORTEST_SECRET = 16
"""Bytes. The report carries a hash of the key, so a short secret could be guessed from it."""


@dataclass(frozen=True)
class Seeds:
    """The key of a run."""

    key: bytes = field(repr=False)
    source: Literal["secret", "random"]

    @classmethod
    def random(cls) -> Seeds:
        return cls(secrets.token_bytes(32), "random")

    @classmethod
    def replay(cls, key_hex: str) -> Seeds:
        """The seeds of an earlier run without a secret, from the key in its report.

        Raises:
            UsageError: `key_hex` is no hexadecimal text.
        """
        try:
            return cls(bytes.fromhex(key_hex), "random")
        except ValueError as error:
            raise UsageError(f"A key is hexadecimal text, found {key_hex!r}.", hint="Copy `seed.key`.") from error

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Seeds:
        """The secret in $GRADE_SECRET or in the file that $GRADE_SECRET_FILE names, else a random key.

        Raises:
            UsageError: both are set, the file can't be read or others may read it, or the secret is too short.
        """
        environ = os.environ if environ is None else environ
        text, file = environ.get(SECRET_VARIABLE), environ.get(SECRET_FILE_VARIABLE)
        if text is not None and file is not None:
            raise UsageError(f"{SECRET_VARIABLE} and {SECRET_FILE_VARIABLE} are both set.", hint="Keep one of them.")
        if text is None and file is None:
            return cls.random()
        named, secret = SECRET_VARIABLE, (text or "").encode()
        if file is not None:
            named = f"{SECRET_FILE_VARIABLE} ({file})"
            secret = _read_private(Path(file), named)
        # Editors end a file with a newline; the same secret must mean the same inputs either way.
        secret = secret.strip()
        if len(secret) < SHORTEST_SECRET:
            raise UsageError(
                f"{named} holds {len(secret)} bytes, expected at least {SHORTEST_SECRET}.",
                hint="Make one with `grade secret new`.",
            )
        return cls(secret, "secret")

    def rng(self, lab_id: str, check_id: str, test: str, call: int) -> np.random.Generator:
        """The generator of one draw.

        The name of the test is part of it, so a test that ends early doesn't shift the inputs of the next.
        """
        label = "\0".join((lab_id, check_id, test, str(call))).encode()
        digest = hmac.new(self.key, label, hashlib.sha256).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))

    def record(self) -> SeedRecord:
        """What the report says: which key it was, and the key itself when nothing else knows it."""
        return SeedRecord(
            source=self.source,
            key_id=hashlib.sha256(self.key).hexdigest()[:16],
            key=self.key.hex() if self.source == "random" else None,
        )


def _read_private(path: Path, named: str) -> bytes:
    """The content of a file that only its owner, and at most a group, may read.

    Raises:
        UsageError: it can't be read, or everybody may.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(LONGEST_SECRET + 1)
    except OSError as error:
        raise UsageError(f"{named} cannot be read ({error.strerror}).") from error
    # Windows has no such modes: there the file's access list decides.
    if os.name == "posix" and mode & FORBIDDEN_MODE:
        raise UsageError(
            f"{named} may be read or changed by others (mode {stat.S_IMODE(mode):04o}), so it's no secret.",
            hint=f"chmod 600 {shlex.quote(str(path))}, and make a new one if students share this machine.",
        )
    if len(secret) > LONGEST_SECRET:
        raise UsageError(f"{named} is larger than {LONGEST_SECRET} bytes.", hint="Name the file of the secret.")
    return secret


def write_secret(path: Path) -> Seeds:
    """Make a new secret in a new file of mode 0600; its seeds.

    Raises:
        UsageError: the file is there already, or can't be written.
    """
    text = secrets.token_hex(32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with removed_unless_whole(path), os.fdopen(handle, "w", encoding="ascii") as file:
            os.chmod(path, 0o600)
            file.write(text + "\n")
    except FileExistsError as error:
        raise UsageError(
            f"{path} is there already; another secret would mean other hidden inputs.",
            hint="Name another file, or move that one away.",
        ) from error
    except OSError as error:
        raise unwritable(str(path), error, hint="Name another file.") from error
    return Seeds(text.encode(), "secret")
