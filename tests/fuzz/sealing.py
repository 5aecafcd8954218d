"""Corrects checksums of malformed bytes, so that the code behind the checksum is reached.

A checksum detects bit rot but not an attacker, so all code behind it must be robust as well.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from persist.manifest.files import MAGIC
from wal.format import RECORD_HEADER_BYTES, RECORD_MAGIC, SEGMENT_HEADER_BYTES


def sealed_segment(data: bytes, number: int) -> bytes:
    """Return a segment of this number with right checksums in its header and every record."""
    out = bytearray(data)
    if len(out) >= SEGMENT_HEADER_BYTES:
        struct.pack_into("<Q", out, 16, number)
        struct.pack_into("<I", out, 508, crc32c(bytes(out[:508])))
    at = SEGMENT_HEADER_BYTES
    while at + RECORD_HEADER_BYTES <= len(out):
        magic, _, length = struct.unpack_from("<IIQ", out, at)
        if magic != RECORD_MAGIC:
            at += 8
            continue
        start = at + RECORD_HEADER_BYTES
        struct.pack_into("<I", out, at + 32, crc32c(bytes(out[start : start + length])))
        placed = struct.pack("<QQ", number, at) + bytes(out[at : at + 36])
        struct.pack_into("<I", out, at + 36, crc32c(placed))
        at = start + (-(-length // 8) * 8 if start + length <= len(out) else 0)
    return bytes(out)


def sealed_snapshot(data: bytes) -> bytes:
    """Return a snapshot with a right checksum over any content."""
    if len(data) < 12:
        return data
    return MAGIC + struct.pack("<I", crc32c(data[12:])) + data[12:]


def sealed_changelog(data: bytes) -> bytes:
    """Return a changelog whose uid does not depend on the content: version 4 instead of 8."""
    first, newline, rest = data.partition(b"\n")
    uid = first[-36:-4]
    return first[:-36] + uid[:12] + b"4" + uid[13:] + first[-4:] + newline + rest
