"""Rows on local disk: released buffers that snapshots still need, and merged answers.

:func:`spill_handle` writes what the readers of a released buffer need. :class:`ResultSpill` keeps
the merged rows of keyed answers until they are sent: on disk, or in memory when they are few, the
disk is short of space, or answers already have :data:`MOST_FILES` files. Everything held in memory
is counted, so that admission sees it (tests/query/test_spill.py).
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import structlog

from ingester.buffer import BufferHandle, Chunk
from ingester.buffer.handle import Arrivals
from ingester.query.parts import PART_BYTES, cut, sent_bytes

_FOLDER_MODE = 0o750
_private = partial(os.open, mode=0o600)


class _Nameless:
    """An unlinked file, read by position. Thread-safe."""

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
        """Return the bytes ``begin..end-1``."""
        with self._lock:
            data: bytes = self._file.read_at(end - begin, begin)
        return data

    def close(self) -> None:
        """Free the disk space."""
        with self._lock:
            self.closed = True
            self._file.close()


class RowsFile(_Nameless):
    """The rows of a spilled buffer."""

    def __init__(self, folder: Path, chunks: Sequence[Chunk]) -> None:
        self._starts: list[int] = []
        self._offsets = [0]
        super().__init__(folder, self._encoded(chunks))

    def at(self, row: int) -> tuple[int, pa.RecordBatch]:
        """Return the stored batch that contains a row, with the number of its first row."""
        index = bisect_right(self._starts, row) - 1
        data = self.read(self._offsets[index], self._offsets[index + 1])
        batch = pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()
        return self._starts[index], batch

    def _encoded(self, chunks: Sequence[Chunk]) -> Iterator[pa.Buffer]:
        """Write each batch as a stream of its own, because buffers may have gained columns
        meanwhile.
        """
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
    """The arrival order of a buffer's rows, by the order of the rows in its files."""

    def __init__(self, folder: Path, arrivals: Sequence[Arrivals]) -> None:
        super().__init__(folder, (pa.py_buffer(each) for each in arrivals))

    def at(self, row: int, rows: int) -> Arrivals:
        """Return the buffer row numbers of ``rows`` file rows, starting at file row ``row``."""
        width = np.dtype(np.uint32).itemsize
        return np.frombuffer(self.read(row * width, (row + rows) * width), np.uint32)


class RowSelection:
    """The rows of one of a buffer's files that are in a reader's range.

    Args:
        order: arrival order of the rows in all of the buffer's files; None if the files keep it.
        first: the position of the file's first row in that order.
    """

    def __init__(self, order: OrderFile | None, first: int, numbers: range) -> None:
        self._order = order
        self._first = first
        self._numbers = numbers

    def numbers(self, row: int, rows: int) -> Arrivals:
        """Return the buffer row numbers of ``rows`` rows, starting at the file's row ``row``."""
        begin = self._first + row
        if self._order is None:
            return np.arange(begin, begin + rows, dtype=np.uint32)
        return self._order.at(begin, rows)

    def of(self, view: pa.RecordBatch, numbers: Arrivals) -> tuple[pa.RecordBatch, bool]:
        """Return those of the rows that are in range, and whether they are copies."""
        mask = (numbers >= self._numbers.start) & (numbers < self._numbers.stop)
        if mask.all():
            return view, False
        return view.filter(pa.array(mask)), True


def spill_handle(folder: Path, handle: BufferHandle) -> int:
    """Write what the readers of a released buffer need to local disk; return the bytes.

    Runs in a thread. If the disk is full, the rows stay in memory: the caller retries while
    readers finish or expire.

    Raises:
        OSError: the disk is full or failing; nothing is left behind.
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
    """Remove files that a crash left between creation and unlinking."""
    folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
    for path in folder.glob("*.spill"):
        path.unlink()


log = structlog.get_logger(__name__)

FEW_BYTES = 2 * PART_BYTES
DISK_SHARE = 4
"""Answers may take this fraction of the free disk space; the log needs the rest."""
MOST_FILES = 256
"""Limit on open files, because each needs a descriptor."""


class ResultSpill:
    """Keeps merged rows until they are sent. Thread-safe.

    Args:
        folder: where the files go; None keeps all rows in memory.
        on_written: called with the size of each file, in the thread that wrote it.
    """

    def __init__(
        self,
        folder: Path | None = None,
        on_written: Callable[[int], object] = lambda nbytes: None,
    ) -> None:
        self.folder = folder
        self.nbytes = 0
        """Bytes that answers hold in memory."""
        self.files = 0
        """Number of files that answers have on disk."""
        self.file_bytes = 0
        """Upper bound of the size of these files."""
        self._on_written = on_written
        self._lock = threading.Lock()

    @contextmanager
    def held(self, nbytes: int) -> Iterator[None]:
        """Count bytes as held inside the block."""
        self.count(nbytes)
        try:
            yield
        finally:
            self.count(-nbytes)

    def count(self, nbytes: int) -> None:
        """Add to the bytes held; negative subtracts."""
        with self._lock:
            self.nbytes += nbytes

    def written(self, batches: Sequence[pa.RecordBatch]) -> tuple[RowsFile | None, int]:
        """Write these rows to a file; return it with its counted bytes, or None to keep them in
        memory.
        """
        nbytes = sum(sent_bytes(batch) for batch in batches)
        if self.folder is None or nbytes <= FEW_BYTES or not self._take(self.folder, nbytes):
            return None, 0
        chunks, row = [], 0
        for batch in batches:
            chunks.append(Chunk(row, batch, 0, sent_bytes(batch), 0))
            row += batch.num_rows
        made: RowsFile | None = None
        try:
            made = RowsFile(self.folder, chunks)
        except OSError as exc:
            _stay_in_memory(exc)
        finally:
            if made is None:
                self.give_back(nbytes)
        if made is not None:
            self._on_written(made.nbytes)
        return made, nbytes

    def give_back(self, nbytes: int) -> None:
        """Stop counting a removed file of this size."""
        with self._lock:
            self.files -= 1
            self.file_bytes -= nbytes

    def _take(self, folder: Path, nbytes: int) -> bool:
        try:
            folder.mkdir(0o750, parents=True, exist_ok=True)
            free = shutil.disk_usage(folder).free
        except OSError as exc:
            _stay_in_memory(exc)
            return False
        with self._lock:
            # Files being written may still appear as free space, so they are counted too.
            if self.files >= MOST_FILES or (self.file_bytes + nbytes) * DISK_SHARE > free:
                return False
            self.files += 1
            self.file_bytes += nbytes
            return True


def _stay_in_memory(why: OSError) -> None:
    log.warning("merged rows stay in memory", error=str(why), runbook="spill-failed")


class SpilledResult:
    """Merged rows of one answer that are not sent yet. The creator closes it."""

    def __init__(self, spill: ResultSpill, batches: Sequence[pa.RecordBatch]) -> None:
        self._spill = spill
        self._rows = sum(batch.num_rows for batch in batches)
        self._file, self._file_bytes = spill.written(batches)
        # Not even an empty slice of the rows is kept: it would keep all of them alive.
        self._batches = list(batches) if self._file is None else []
        self._nbytes = sum(batch.nbytes for batch in self._batches)
        spill.count(self._nbytes)

    def parts(
        self, reading: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows in pieces of at most one part.

        Args:
            reading: context in which the disk is read.
        """
        if self._file is None:
            for batch in self._batches:
                yield from cut(batch)
            return
        row = 0
        while row < self._rows:
            with reading():
                part = self._file.at(row)[1]
            row += part.num_rows
            yield part
            del part

    def close(self) -> None:
        """Drop the rows."""
        nbytes, self._nbytes = self._nbytes, 0
        self._spill.count(-nbytes)
        if self._file is not None and not self._file.closed:
            self._file.close()
            self._spill.give_back(self._file_bytes)
