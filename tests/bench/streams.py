"""The writing part of a client process: batches down streams, by one of three kinds of writers.

    waits for each answer      ``pipelined=False``               latencies of single writes
    sends ahead                ``pipelined=True``                the highest rate
    sends ahead at a pace      ``pipelined=True, per_s=200``     latencies under a given load

By default every server gets the same plain Flight calls: each stream has one thread, and a
pipelined stream one more for its answers. With ``shipped=True`` the client library writes, with its
defaults (:mod:`tests.bench.shipped`). Connections, tables and first batches precede the clock.
Times are from the machine's monotonic clock and are comparable between processes. A paced writer's
latencies count from the time the batch was due, so that a stall is charged for all batches due
meanwhile.
"""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as fl

from tests.bench.rows import HOUR_US, flight_batches, in_hour, make_batches

if TYPE_CHECKING:
    from ingester.client import AckLevel
    from tests.bench.shipped import ShippedStream

_WINDOW = 512
_WINDOW_BYTES = 24 << 20
"""Bytes of unacknowledged batches of one stream: enough to keep any server busy."""


@dataclass(frozen=True, slots=True)
class PutJob:
    """Batches of ``rows`` rows down ``streams`` streams into one table."""

    flight: str
    table: str
    rows: int
    streams: int
    seconds: float
    max_rows: int = 1 << 50
    """Per stream; the first limit that is reached ends it."""
    pipelined: bool = True
    seed: int = 0
    per_s: float = 0.0
    """Batches due per second and stream; 0 for as many as the server accepts."""
    flights: bool = False
    """Whether the rows are the demo's flights instead of :data:`tests.bench.rows.SCHEMA`."""
    hours: int = 0
    """Successive batches lie in successive hours, this many in turn; 0 for all within one day."""
    origin: str = ""
    """Batches carry sequences of origins named after this, the seed and the stream's number."""
    state_bytes: int = 0
    """With an origin: the size of the state that each batch carries; 0 for none."""
    tls_ca: str = ""
    """The file with the certificate of the server's CA, for TLS."""
    token: str = ""
    """The token of each call, where the server requires one."""
    shipped: bool = False
    """Whether the client library writes, with its defaults, instead of plain Flight calls."""
    timed: bool = False
    """Whether the arrival times of a shipped client's answers are wanted; each costs a call."""
    ack: AckLevel | None = None
    """The level that a shipped client asks for; None for the table's."""
    at_random: bool = False
    """Whether a shipped client's batches are due at random times, between a half and one and a
    half of the pace apart."""


@dataclass(frozen=True, slots=True)
class PutResult:
    """The result of all streams of a process; ``latencies`` (s) unless pipelined without a pace."""

    rows: int
    batches: int
    began: float
    ended: float
    latencies: npt.NDArray[np.float64]
    answered: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """Unordered arrival times of all answers; empty where writers wait for each answer."""


class WritingStream:
    """One open DoPut stream whose table exists and whose first batch is acknowledged."""

    def __init__(self, job: PutJob, number: int) -> None:
        self._job = job
        self._next = _batches(job, number)
        self._origin = f"{job.origin}-{job.seed}-{number}" if job.origin else ""
        self._sequence = 0
        first = next(self._next)
        self._window = max(4, min(_WINDOW, _WINDOW_BYTES // first.nbytes))
        trusted = {"tls_root_certs": Path(job.tls_ca).read_bytes()} if job.tls_ca else {}
        self._client = fl.connect(job.flight, **trusted)
        self._open(first.schema)
        self._write(first)
        self._answer()
        self.sent = 0
        self.ended = 0.0
        self.due: list[float] = []
        self.answered: list[float] = []
        self.latencies: list[float] = []
        self.failure: BaseException | None = None

    def _open(self, schema: pa.Schema) -> None:
        path = fl.FlightDescriptor.for_path("bench", self._job.table)
        if self._origin:
            command = {"type": "write", "namespace": "bench", "table": self._job.table}
            text = json.dumps({**command, "origin": self._origin})
            path = fl.FlightDescriptor.for_command(text)
        bearer = f"Bearer {self._job.token}".encode()
        headers = [(b"authorization", bearer)] if self._job.token else []
        options = fl.FlightCallOptions(headers=headers)
        self._writer, self._reader = self._client.do_put(path, schema, options)
        self._room = threading.Semaphore(self._window)
        self._over = False

    def run(self) -> None:
        """Write until the time or the rows are used up and every batch is acknowledged."""
        try:
            if self._job.pipelined:
                self._pipeline(time.monotonic())
            else:
                self._take_turns()
                self.ended = time.monotonic()
                self._writer.done_writing()
                self._writer.close()
            self._client.close()
            answers = len(self.answered) or len(self.latencies)
            if answers != self.sent:
                raise AssertionError(f"{self.sent} batches sent, {answers} answered")
            if self._job.per_s:
                pairs = zip(self.answered, self.due, strict=True)
                self.latencies = [answered - due for answered, due in pairs]
        except BaseException as exc:
            self.failure = exc

    def _take_turns(self) -> None:
        until = time.monotonic() + self._job.seconds
        began = time.monotonic()
        while began < until and self.sent * self._job.rows < self._job.max_rows:
            self._write(next(self._next))
            self._answer()
            self.sent += 1
            ended = time.monotonic()
            self.latencies.append(ended - began)
            began = ended

    def _pipeline(self, began: float) -> None:
        answers = threading.Thread(target=self._read_answers)
        answers.start()
        until = began + self._job.seconds
        most = max(1, self._job.max_rows // self._job.rows)
        write, batches, per_s = self._write, self._next, self._job.per_s
        if not self._origin:
            write = self._writer.write_batch
        try:
            while self.sent < most and time.monotonic() < until and not self._over:
                if per_s:
                    self._wait_until(began + self.sent / per_s)
                self._room.acquire()
                write(next(batches))
                self.sent += 1
            self._writer.done_writing()
        finally:
            answers.join()
            self.ended = time.monotonic()
        # Raises the server's error, if any.
        self._writer.close()

    def _write(self, batch: pa.RecordBatch) -> None:
        if not self._origin:
            self._writer.write_batch(batch)
            return
        self._sequence += 1
        checkpoint = ""
        if self._job.state_bytes:
            state = base64.b64encode(b"%0*d" % (self._job.state_bytes, self._sequence)).decode()
            checkpoint = f',"checkpoint":{{"partition":"{self._origin}","state":"{state}"}}'
        said = f'{{"sequence":{self._sequence}{checkpoint}}}'  # json.dumps would lower the rate
        self._writer.write_with_metadata(batch, said.encode())

    def _wait_until(self, due: float) -> None:
        self.due.append(due)
        if (early := due - time.monotonic()) > 0:
            time.sleep(early)

    def _read_answers(self) -> None:
        answered, now = self.answered, time.monotonic
        try:
            while self._reader.read() is not None:
                answered.append(now())
                self._room.release()
        except fl.FlightError:
            pass  # the writer raises it, too
        finally:
            self._over = True
            self._room.release()

    def _answer(self) -> None:
        if self._reader.read() is None:
            # Raises the server's reason, if it gave one.
            self._writer.close()
            raise AssertionError("the server ended the stream")


def _batches(job: PutJob, number: int) -> Iterator[pa.RecordBatch]:
    """The batches of a stream: a few prepared ones, repeated."""
    count = max(2, min(64, 100_000 // job.rows))
    seed = job.seed * 1_000 + number
    if job.flights:
        return itertools.cycle(flight_batches(job.rows, count, seed))
    if not job.hours:
        return itertools.cycle(make_batches(job.rows, count, seed))
    made = make_batches(job.rows, count, seed, within_us=HOUR_US)
    # Streams begin at different hours, and each passes through all of them.
    begin = seed * 7_919 % job.hours
    return (in_hour(made[n % count], (begin + n) % job.hours) for n in itertools.count())


def prepare(job: PutJob) -> list[WritingStream] | list[ShippedStream]:
    """Open the streams of a job."""
    if job.shipped:
        return [_shipped(job, number) for number in range(job.streams)]
    return [WritingStream(job, number) for number in range(job.streams)]


def _shipped(job: PutJob, number: int) -> ShippedStream:
    # Other systems have environments of their own, which lack what the client library needs.
    from tests.bench.shipped import ShippedStream

    return ShippedStream(
        job.flight,
        job.table,
        _batches(job, number),
        seconds=job.seconds,
        most_batches=max(1, job.max_rows // job.rows),
        pipelined=job.pipelined,
        gaps=_gaps(job, number) if job.per_s else None,
        timed=job.timed or job.per_s > 0,
        ack=job.ack,
    )


def _gaps(job: PutJob, number: int) -> Iterator[float]:
    """The seconds between the times at which a stream's batches are due."""
    if not job.at_random:
        return itertools.chain([0.0], itertools.repeat(1 / job.per_s))
    random = Random(job.seed * 1_000 + number)
    return (random.uniform(0.5, 1.5) / job.per_s for _ in itertools.count())


def write(streams: list[WritingStream] | list[ShippedStream], job: PutJob) -> PutResult:
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
        answered=np.array([each for stream in streams for each in stream.answered]),
    )
