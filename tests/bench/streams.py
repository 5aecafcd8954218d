"""What a client process does: write batches down some streams, or read an answer to its end.

Law of this file: the same plain Flight calls for every server, one thread per stream and one more
for the answers of a pipelined one. Connections, tables and first batches come before the clock
starts. Times are of the machine's monotonic clock, so that those of several processes compare.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as fl

from tests.bench.rows import SCHEMA, make_batches

_WINDOW = 512
_WINDOW_BYTES = 24 << 20
"""Batches of one stream that may wait for their answers: enough to keep any server busy."""


@dataclass(frozen=True, slots=True)
class PutJob:
    """Batches of ``rows`` rows down ``streams`` streams into one table."""

    flight: str
    table: str
    rows: int
    streams: int
    seconds: float
    max_rows: int
    """Per stream; whatever ends first."""
    pipelined: bool
    seed: int


@dataclass(frozen=True, slots=True)
class PutResult:
    """What all streams of a process did; ``latencies`` (s) where each answer was waited for."""

    rows: int
    batches: int
    began: float
    ended: float
    latencies: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScanJob:
    """One answer, read to its end."""

    flight: str
    ticket: bytes


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What came, and how many seconds the first batch and all of it took."""

    rows: int
    first_s: float
    seconds: float


class WritingStream:
    """One open DoPut stream whose table exists and whose first batch is answered."""

    def __init__(self, job: PutJob, number: int) -> None:
        self._job = job
        count = max(2, min(64, 100_000 // job.rows))
        self._batches = make_batches(job.rows, count, seed=job.seed * 1_000 + number)
        window = max(4, min(_WINDOW, _WINDOW_BYTES // self._batches[0].nbytes))
        self._room = threading.Semaphore(window)
        self._client = fl.connect(job.flight)
        path = fl.FlightDescriptor.for_path("bench", job.table)
        self._writer, self._reader = self._client.do_put(path, SCHEMA)
        self._writer.write_batch(self._batches[0])
        self._answer()
        self.sent = 0
        self._answers = 0
        self._over = False
        self.ended = 0.0
        self.latencies: list[float] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Write until the time or the rows are used up and everything is answered."""
        try:
            if self._job.pipelined:
                self._pipeline()
            else:
                self._take_turns()
                self.ended = time.monotonic()
                self._writer.done_writing()
                self._read_answers()
            # Raises what the server refused, if it did.
            self._writer.close()
            self._client.close()
            if self._answers != self.sent:
                raise AssertionError(f"{self.sent} batches sent, {self._answers} answered")
        except BaseException as exc:
            self.failure = exc

    def _take_turns(self) -> None:
        until = time.monotonic() + self._job.seconds
        began = time.monotonic()
        while began < until and self.sent * self._job.rows < self._job.max_rows:
            self._writer.write_batch(self._batches[self.sent % len(self._batches)])
            self._answer()
            self.sent += 1
            self._answers += 1
            ended = time.monotonic()
            self.latencies.append(ended - began)
            began = ended

    def _pipeline(self) -> None:
        answers = threading.Thread(target=self._read_answers)
        answers.start()
        until = time.monotonic() + self._job.seconds
        most, batches = max(1, self._job.max_rows // self._job.rows), self._batches
        write, count = self._writer.write_batch, len(self._batches)
        try:
            while self.sent < most and time.monotonic() < until and not self._over:
                self._room.acquire()
                write(batches[self.sent % count])
                self.sent += 1
            self._writer.done_writing()
        finally:
            answers.join()
            self.ended = time.monotonic()

    def _read_answers(self) -> None:
        while self._reader.read() is not None:
            self._answers += 1
            self._room.release()
        self._over = True
        self._room.release()

    def _answer(self) -> None:
        if self._reader.read() is None:
            # Raises the reason, if the server gave one.
            self._writer.close()
            raise AssertionError("the server ended the stream")


def prepare(job: PutJob) -> list[WritingStream]:
    """The open streams of a job."""
    return [WritingStream(job, number) for number in range(job.streams)]


def write(streams: list[WritingStream], job: PutJob) -> PutResult:
    """Run all streams at once, to the end."""
    began = time.monotonic()
    threads = [threading.Thread(target=stream.run) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stream in streams:
        if stream.failure is not None:
            raise stream.failure
    batches = sum(stream.sent for stream in streams)
    return PutResult(
        rows=batches * job.rows,
        batches=batches,
        began=began,
        ended=max(stream.ended for stream in streams),
        latencies=np.array([each for stream in streams for each in stream.latencies]),
    )


def scan(job: ScanJob) -> ScanResult:
    """Read an answer and forget it batch by batch."""
    with fl.connect(job.flight) as client:
        began = time.monotonic()
        reader = client.do_get(fl.Ticket(job.ticket))
        rows, first_s = 0, 0.0
        for batch in _batches(reader):
            first_s = first_s or time.monotonic() - began
            rows += batch.num_rows
        return ScanResult(rows, first_s, time.monotonic() - began)


def _batches(reader: Any) -> Any:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        batch: pa.RecordBatch = chunk.data
        yield batch
