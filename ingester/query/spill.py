"""Rows of a released buffer on local disk, for readers that were in the middle of it.

Law of this file: rows stand in log order, cut into parts as they are sent. The file has lost its
name as soon as it is written, so it is gone with its last reader, and with the process whatever
happens. It is read part by part, not mapped: mapped pages would count as the daemon's memory.
"""

from __future__ import annotations

import os
import threading
import uuid
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from ingester.buffer import Chunk
from ingester.query.parts import cut

SYNC_EVERY_BYTES = 4 << 20


class SpillFile:
    """A spilled buffer, open for reading by position. Threads."""

    def __init__(
        self, file: pa.NativeFile, starts: list[int], offsets: list[int], nbytes: int
    ) -> None:
        self._file = file
        self._starts = starts
        self._offsets = offsets
        self._lock = threading.Lock()
        self.nbytes = nbytes
        self.closed = False

    def at(self, row: int) -> tuple[int, pa.RecordBatch]:
        """The part that holds a row: its first row's number, and its rows."""
        index = bisect_right(self._starts, row) - 1
        begin, end = self._offsets[index], self._offsets[index + 1]
        with self._lock:
            data = self._file.read_at(end - begin, begin)
        batch = pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()
        return self._starts[index], batch

    def close(self) -> None:
        """Give the disk space back."""
        with self._lock:
            self.closed = True
            self._file.close()


def write_spill(folder: Path, chunks: Sequence[Chunk]) -> SpillFile:
    """Write a buffer's rows to a nameless file in ``folder``.

    Raises:
        OSError: the disk is full or broken; nothing is left behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{uuid.uuid4().hex}.arrow"
    starts: list[int] = []
    offsets = [0]
    try:
        with path.open("wb", buffering=0) as file:
            synced_to = 0
            for chunk in chunks:
                row = chunk.start
                for part in cut(chunk.batch):
                    starts.append(row)
                    offsets.append(offsets[-1] + file.write(_encoded(part)))
                    row += part.num_rows
                    if offsets[-1] - synced_to > SYNC_EVERY_BYTES:
                        # Not for durability: a sync of the log would have to wait for all of it.
                        os.fdatasync(file.fileno())
                        synced_to = offsets[-1]
        return SpillFile(pa.OSFile(str(path), "rb"), starts, offsets, offsets[-1])
    finally:
        path.unlink(missing_ok=True)


def _encoded(part: pa.RecordBatch) -> pa.Buffer:
    """A stream of its own for each part: buffers may have grown columns on the way."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, part.schema) as writer:
        writer.write_batch(part)
    return sink.getvalue()


def empty_spill_folder(folder: Path) -> None:
    """Remove what a crash between a file's creation and its unlinking has left."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.arrow"):
        path.unlink()
