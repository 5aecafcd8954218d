"""The log of a killed process, which tests cut, flip and recover byte by byte."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from tests.wal.driving import payloads, recovered_records, segment_files, write_killed
from wal import LogDamaged, LogSettings, LogTooNew
from wal.format import SEGMENT_HEADER_BYTES, segment_name

WRITTEN = [b"%03d" % i * (i * 7 % 40) for i in range(30)]


@functools.cache
def killed_log() -> bytes:
    """A segment in which each of `WRITTEN` was acknowledged alone; its process was killed."""
    with tempfile.TemporaryDirectory() as folder:
        trio.run(
            lambda: write_killed(
                Path(folder), *WRITTEN, settings=LogSettings(segment_bytes=1 << 14)
            )
        )
        (file,) = segment_files(Path(folder))
        return file.read_bytes()


@functools.cache
def ends() -> list[int]:
    """Where each record of `killed_log` ends."""
    offsets, offset = [], SEGMENT_HEADER_BYTES
    for payload in WRITTEN:
        offset += 40 + -(-len(payload) // 8) * 8
        offsets.append(offset)
    return offsets


@contextmanager
def folder_with(**segments: bytes) -> Iterator[Path]:
    """A folder with segments ``_1=..., _2=...``."""
    folder = Path(tempfile.mkdtemp())
    try:
        for name, data in segments.items():
            (folder / segment_name(int(name[1:]))).write_bytes(data)
        yield folder
    finally:
        shutil.rmtree(folder)


def recover(folder: Path) -> list[bytes]:
    """The payloads that a start finds in ``folder``."""

    async def read() -> list[bytes]:
        return payloads((await recovered_records(folder))[1])

    return trio.run(read)


def recover_or_refuse(folder: Path) -> list[bytes] | LogDamaged | LogTooNew:
    """The same, or the error that refuses the start."""
    try:
        return recover(folder)
    except (LogDamaged, LogTooNew) as exc:
        return exc
