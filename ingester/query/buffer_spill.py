"""Spills of released buffers, for readers in the middle of one, on local disk.

    RowsFile      a keyed table's rows, in log order, cut into parts as they are sent
    OrderFile     which row of the buffer each row of its files is: four bytes a row
    RowSelection  those of a file's rows that the reader has not sent yet, by that order

Law of this file: a file has lost its name as soon as it is written, so it is gone with its last
reader, and with the process whatever happens. It is read piece by piece, not mapped: mapped pages
would count as the daemon's memory.
"""

from __future__ import annotations

import os
import threading
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from ingester.buffer import BufferHandle, Chunk
from ingester.buffer.handle import Arrivals
from ingester.query.parts import cut

_FOLDER_MODE = 0o750
_private = partial(os.open, mode=0o600)


class _Nameless:
    """A file without a name, read by position, by any thread."""

    def __init__(self, folder: Path, pieces: Iterable[pa.Buffer]) -> None:
        folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        path = folder / f"{uuid.uuid4().hex}.spill"
        try:
            with open(path, "xb", opener=_private) as file:
                for piece in pieces:
                    file.write(piece)
            self._file = pa.OSFile(str(path), "rb")
        finally:
            path.unlink(missing_ok=True)
        self._lock = threading.Lock()
        self.closed = False
        self.nbytes: int = self._file.size()

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes from ``begin`` to ``end``."""
        with self._lock:
            data: bytes = self._file.read_at(end - begin, begin)
        return data

    def close(self) -> None:
        """Give the disk space back."""
        with self._lock:
            self.closed = True
            self._file.close()


class RowsFile(_Nameless):
    """Holds the rows of a spilled buffer."""

    def __init__(self, folder: Path, chunks: Sequence[Chunk]) -> None:
        self._starts: list[int] = []
        self._offsets = [0]
        super().__init__(folder, self._encoded(chunks))

    def at(self, row: int) -> tuple[int, pa.RecordBatch]:
        """Return the part that holds a row: its first row's number, and its rows."""
        index = bisect_right(self._starts, row) - 1
        data = self.read(self._offsets[index], self._offsets[index + 1])
        batch = pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()
        return self._starts[index], batch

    def _encoded(self, chunks: Sequence[Chunk]) -> Iterator[pa.Buffer]:
        """Encode each part as a stream of its own: buffers may have grown columns on the way."""
        for chunk in chunks:
            row = chunk.start
            for part in cut(chunk.batch):
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, part.schema) as writer:
                    writer.write_batch(part)
                encoded = sink.getvalue()
                self._starts.append(row)
                self._offsets.append(self._offsets[-1] + encoded.size)
                row += part.num_rows
                yield encoded


class OrderFile(_Nameless):
    """Holds the order in which the rows of a buffer's files arrived, file after file."""

    def __init__(self, folder: Path, arrivals: Sequence[Arrivals]) -> None:
        super().__init__(folder, (pa.py_buffer(each) for each in arrivals))

    def at(self, row: int, rows: int) -> Arrivals:
        """Return the buffer's numbers of ``rows`` rows of the files, from their ``row`` on."""
        width = np.dtype(np.uint32).itemsize
        return np.frombuffer(self.read(row * width, (row + rows) * width), np.uint32)


class RowSelection:
    """The rows of one of a buffer's files whose numbers in the buffer are in a reader's range.

    Args:
        order: of the rows of all the buffer's files; None where they lie in the buffer's order.
        first: the file's first row among those.
    """

    def __init__(self, order: OrderFile | None, first: int, numbers: range) -> None:
        self._order = order
        self._first = first
        self._numbers = numbers

    def numbers(self, row: int, rows: int) -> Arrivals:
        """Read the buffer's numbers of ``rows`` rows, from the file's ``row`` on."""
        begin = self._first + row
        if self._order is None:
            return np.arange(begin, begin + rows, dtype=np.uint32)
        return self._order.at(begin, rows)

    def of(self, view: pa.RecordBatch, numbers: Arrivals) -> tuple[pa.RecordBatch, bool]:
        """Return the selected ones of the rows with these numbers, and whether they are copies."""
        mask = (numbers >= self._numbers.start) & (numbers < self._numbers.stop)
        if mask.all():
            return view, False
        return view.filter(pa.array(mask)), True


def spill_handle(folder: Path, handle: BufferHandle) -> int:
    """Write to local disk what the readers of a released buffer will need; return the bytes.

    Runs in a thread. Without room on the disk the rows stay in memory: the caller tries again, and
    the readers end, or are ended, in the meantime.

    Raises:
        OSError: the disk is full or broken; nothing is left behind.
    """
    assert handle.files is not None
    spill: RowsFile | OrderFile
    if handle.keyed:
        spill = RowsFile(folder, handle.rows.chunks())
    else:
        spill = OrderFile(folder, handle.files.arrivals)
    handle.keep_spill(spill)
    return spill.nbytes


def empty_spill_folder(folder: Path) -> None:
    """Remove files that a crash has left between their creation and their unlinking."""
    folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
    for path in folder.glob("*.spill"):
        path.unlink()
