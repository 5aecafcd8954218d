"""Rows that an answer of a keyed table has merged and sends later: on local disk, not in memory.

Law of this file: what answers hold in memory between two parts is counted, so that admission knows
of it: the keys by which newer rows hide older ones, and rows only where they are few or the disk
has no room.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import structlog

from ingester.buffer import Chunk
from ingester.query.parts import PART_BYTES, sent_bytes, window
from ingester.query.spill import RowsFile

log = structlog.get_logger(__name__)

FEW_BYTES = 2 * PART_BYTES


class Aside:
    """Puts rows aside for answers. Any thread.

    Args:
        folder: for their files; None where they stay in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.nbytes = 0
        """What answers hold in memory."""
        self._lock = threading.Lock()

    @contextmanager
    def held(self, nbytes: int) -> Iterator[None]:
        """Count these bytes meanwhile."""
        self.count(nbytes)
        try:
            yield
        finally:
            self.count(-nbytes)

    def count(self, nbytes: int) -> None:
        """So much more, or less."""
        with self._lock:
            self.nbytes += nbytes


class RowsAside:
    """Rows of one answer that wait to be sent; to be closed by whoever has put them there."""

    def __init__(self, aside: Aside, batch: pa.RecordBatch) -> None:
        self._aside = aside
        self._file = _written(aside.folder, batch)
        self._batch = batch if self._file is None else batch.slice(0, 0)
        self._nbytes = batch.nbytes if self._file is None else 0
        self._rows = batch.num_rows
        aside.count(self._nbytes)

    def parts(self) -> Iterator[pa.RecordBatch]:
        """All of them, each time as many as make a part."""
        row = 0
        while row < self._rows:
            if self._file is None:
                part = window(self._batch, row, self._rows).batch
            else:
                part = self._file.at(row)[1]
            row += part.num_rows
            yield part
            del part

    def close(self) -> None:
        """Nobody wants them any more."""
        nbytes, self._nbytes = self._nbytes, 0
        self._aside.count(-nbytes)
        if self._file is not None:
            self._file.close()


def _written(folder: Path | None, batch: pa.RecordBatch) -> RowsFile | None:
    nbytes = sent_bytes(batch)
    if folder is None or nbytes <= FEW_BYTES:
        return None
    try:
        return RowsFile(folder, [Chunk(0, batch, 0, nbytes, 0)])
    except OSError as exc:
        log.warning("merged rows stay in memory", error=str(exc), runbook="spill-failed")
        return None
