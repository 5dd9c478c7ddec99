"""Looks at a PNG without a drawing library: is it whole, how large is it, does it show anything?

The picture isn't reconstructed. PNG stores each row as differences to its neighbours (the row filters), so an empty
picture is nearly all zeros, noise is nearly none, and a plot lies between.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_SIDE = 20_000
MAX_PIXEL_BYTES = 256 << 20
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


class PngError(ValueError):
    """The bytes are no PNG that can be read; the message says why, for the student."""


@dataclass(frozen=True)
class PngFacts:
    """What a PNG shows.

    Attributes:
        width, height: pixels.
        ink: part of the stored differences that isn't zero; 0 for a blank picture, near 1 for noise.
        distinct_rows: rows that are stored differently from one another.
    """

    width: int
    height: int
    ink: float
    distinct_rows: int


def inspect_png(data: bytes) -> PngFacts:
    """Facts of a PNG, with every length bounded before anything is unpacked.

    Raises:
        PngError: not a PNG, cut off, damaged, interlaced, or larger than a plot has reason to be.
    """
    if not data.startswith(SIGNATURE):
        raise PngError("it doesn't begin with a PNG signature")
    header, packed = _chunks(data)
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    sized = 0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE
    if not sized or colour not in CHANNELS or depth not in (1, 2, 4, 8, 16):
        raise PngError(f"its header is not one of a picture ({width} x {height}, colour type {colour})")
    if interlaced:
        raise PngError("it is interlaced; save it without")
    row_bytes = 1 + (width * CHANNELS[colour] * depth + 7) // 8
    total = row_bytes * height
    if total > MAX_PIXEL_BYTES:
        raise PngError(f"its pixels take {total >> 20} MiB, more than {MAX_PIXEL_BYTES >> 20} MiB")
    try:
        raw = zlib.decompressobj().decompress(packed, total)
    except zlib.error as error:
        raise PngError(f"its pixel data is damaged ({error})") from error
    if len(raw) != total:
        raise PngError(f"its pixel data ends after {len(raw)} of {total} bytes")
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(height, row_bytes)
    return PngFacts(width, height, float((rows[:, 1:] != 0).mean()), len({row.tobytes() for row in rows}))


def _chunks(data: bytes) -> tuple[bytes, bytes]:
    """The header's 13 bytes and the joined pixel data; each chunk's checksum is verified."""
    header, packed, position = b"", [], len(SIGNATURE)
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        body = data[position + 8 : position + 8 + length]
        end = position + 12 + length
        if end > len(data) or struct.unpack_from(">I", data, end - 4)[0] != zlib.crc32(kind + body):
            raise PngError(f"its {kind.decode('ascii', 'replace')} chunk is cut off or damaged")
        if kind == b"IHDR":
            header = body
        elif kind == b"IDAT":
            packed.append(body)
        elif kind == b"IEND":
            break
        position = end
    else:
        raise PngError("it has no end (IEND chunk)")
    if len(header) != 13 or not packed:
        raise PngError("it has no header or no pixel data")
    return header, b"".join(packed)
