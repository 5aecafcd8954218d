"""The reading part of a client process: it reads an answer to its end, repeatedly if asked.

Batches are counted and discarded; the connection is made before the clock starts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl


@dataclass(frozen=True, slots=True)
class ScanJob:
    """An answer, read to its end by ``readers`` threads with their own connections."""

    flight: str
    ticket: bytes
    readers: int = 1


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Totals of all readers, the seconds to the slowest one's first batch, and to the end.

    ``began`` and ``ended`` are times of the machine's monotonic clock.
    """

    rows: int
    first_s: float
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """From the first reader's request to the last one's end."""
        return self.ended - self.began


def scan(job: ScanJob) -> ScanResult:
    """Read an answer and discard it batch by batch, in one thread per reader.

    Raises:
        BaseException: The error of the first reader that failed.
    """
    readers = [_Reader(job) for _ in range(job.readers)]
    threads = [threading.Thread(target=reader.run) for reader in readers]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for reader in readers:
        if reader.failure is not None:
            raise reader.failure
    rows = sum(reader.rows for reader in readers)
    return ScanResult(rows, max(r.first_s for r in readers), began, time.monotonic())


class _Reader:
    """One connection, one answer."""

    def __init__(self, job: ScanJob) -> None:
        self._client = fl.connect(job.flight)
        self._ticket = fl.Ticket(job.ticket)
        self.rows = 0
        self.first_s = 0.0
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Read to the end."""
        began = time.monotonic()
        try:
            with self._client:
                for batch in _batches(self._client.do_get(self._ticket)):
                    self.first_s = self.first_s or time.monotonic() - began
                    self.rows += batch.num_rows
        except BaseException as exc:
            self.failure = exc


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        batch: pa.RecordBatch = chunk.data
        yield batch
