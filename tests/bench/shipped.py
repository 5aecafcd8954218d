"""A stream of batches by the shipped client, with its defaults, as users write.

The same jobs, measured in the same way, as by the plain Flight calls of
:mod:`tests.bench.streams`. A writer that waits takes ``write(…).result()`` in turns; one that sends
ahead leaves the window, the repeats and the threads to the library.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from ingester.client import Ack, AckLevel, Client


class ShippedStream:
    """One open writer whose table exists and whose first batch is acknowledged."""

    def __init__(
        self,
        flight: str,
        table: str,
        batches: Iterator[pa.RecordBatch],
        *,
        seconds: float,
        most_batches: int,
        pipelined: bool,
        gaps: Iterator[float] | None,
        timed: bool,
        ack: AckLevel | None,
    ) -> None:
        """``gaps`` are the seconds between the times at which batches are due, the first since the
        start; None for as fast as the server accepts. ``ack`` is None for the table's level.
        """
        self._batches = batches
        self._seconds, self._most = seconds, most_batches
        self._pipelined, self._gaps, self._timed = pipelined, gaps, timed
        self._client = Client(flight)
        first = next(batches)
        self._writer = self._client.writer("bench", table, first.schema, ack=ack)
        self._writer.write(first).result()
        self.sent = 0
        self.ended = 0.0
        self.answered: list[float] = []
        self.latencies: list[float] = []
        self.failure: BaseException | None = None
        self._due: list[float] = []

    def run(self) -> None:
        """Write until the time or the batches are used up and every batch is acknowledged."""
        try:
            began = time.monotonic()
            if self._pipelined:
                self._send_ahead(began)
            else:
                self._take_turns(began)
            self.ended = time.monotonic()
            self._writer.close()
            self._client.close()
            if self._gaps is not None:
                pairs = zip(self.answered, self._due, strict=True)
                self.latencies = [answered - due for answered, due in pairs]
        except BaseException as exc:
            self.failure = exc

    def _take_turns(self, began: float) -> None:
        until, write = began + self._seconds, self._writer.write
        while began < until and self.sent < self._most:
            write(next(self._batches)).result()
            self.sent += 1
            ended = time.monotonic()
            self.latencies.append(ended - began)
            began = ended

    def _send_ahead(self, began: float) -> None:
        until, write, due = began + self._seconds, self._writer.write, began
        while time.monotonic() < until and self.sent < self._most:
            if self._gaps is not None:
                due += next(self._gaps)
                self._wait_until(due)
            ack = write(next(self._batches))
            if self._timed:
                ack.add_done_callback(self._note)
            self.sent += 1
        self._writer.flush()

    def _note(self, _ack: Ack) -> None:
        self.answered.append(time.monotonic())

    def _wait_until(self, due: float) -> None:
        self._due.append(due)
        if (early := due - time.monotonic()) > 0:
            time.sleep(early)
