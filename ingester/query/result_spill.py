"""Rows that an answer of a keyed table has merged and sends later: on local disk, not in memory.

Law of this file: what answers hold in memory between two parts is counted, so that admission knows
of it: the keys by which newer rows hide older ones, and rows only where they are few, or the disk
has no room for them, or answers have :data:`MOST_FILES` there. Files of answers never take more
than a share of what is free there.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pyarrow as pa
import structlog

from ingester.buffer import Chunk
from ingester.query.buffer_spill import RowsFile
from ingester.query.parts import PART_BYTES, cut, sent_bytes

log = structlog.get_logger(__name__)

FEW_BYTES = 2 * PART_BYTES
DISK_SHARE = 4
"""Files of answers take at most one in so many of the disk's free bytes: the log needs them."""
MOST_FILES = 256
"""The most files at a time, each with a descriptor."""


class ResultSpill:
    """Keeps the rows of answers until they are sent. Any thread.

    Args:
        folder: for their files; None where they stay in memory.
        on_written: gets the bytes of each file, in the thread that has written it.
    """

    def __init__(
        self,
        folder: Path | None = None,
        on_written: Callable[[int], object] = lambda nbytes: None,
    ) -> None:
        self.folder = folder
        self.nbytes = 0
        """The bytes that answers hold in memory."""
        self.files = 0
        """The number of files that answers have on disk."""
        self.file_bytes = 0
        """The bytes of these files, at most."""
        self._on_written = on_written
        self._lock = threading.Lock()

    @contextmanager
    def held(self, nbytes: int) -> Iterator[None]:
        """Count these bytes as held inside the block."""
        self.count(nbytes)
        try:
            yield
        finally:
            self.count(-nbytes)

    def count(self, nbytes: int) -> None:
        """Count so many bytes more, or less."""
        with self._lock:
            self.nbytes += nbytes

    def written(self, batches: Sequence[pa.RecordBatch]) -> tuple[RowsFile | None, int]:
        """Write a file of these rows, with the bytes to give back; None where memory is better."""
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
        """Count a file that has gone, of so many bytes."""
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
            # What others write just now may be free yet: counted with what is there already.
            if self.files >= MOST_FILES or (self.file_bytes + nbytes) * DISK_SHARE > free:
                return False
            self.files += 1
            self.file_bytes += nbytes
            return True


def _stay_in_memory(why: OSError) -> None:
    log.warning("merged rows stay in memory", error=str(why), runbook="spill-failed")


class SpilledResult:
    """Rows of one answer that wait to be sent; to be closed by whoever has made it."""

    def __init__(self, spill: ResultSpill, batches: Sequence[pa.RecordBatch]) -> None:
        self._spill = spill
        self._rows = sum(batch.num_rows for batch in batches)
        self._file, self._file_bytes = spill.written(batches)
        # Not even a slice of none of their rows: it would hold all.
        self._batches = list(batches) if self._file is None else []
        self._nbytes = sum(batch.nbytes for batch in self._batches)
        spill.count(self._nbytes)

    def parts(
        self, reading: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> Iterator[pa.RecordBatch]:
        """Give all rows, each time as many as make a part.

        Args:
            reading: what the disk is read in.
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
        """Let the rows go: they are sent, or nobody wants them any more."""
        nbytes, self._nbytes = self._nbytes, 0
        self._spill.count(-nbytes)
        if self._file is not None and not self._file.closed:
            self._file.close()
            self._spill.give_back(self._file_bytes)
