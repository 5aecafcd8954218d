"""Several writers send the same flights into each table at once, and every answer is counted.

Each writer is one pipelined stream with an origin of its own and sequences from 1. Few batches of
a stream wait for their answer at a time, so that the measured times are the daemon's and not those
of the client's own queue.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial

import msgspec
import pyarrow as pa

from ingester.client import Ack, Client

from .source import share_of

NAMESPACE = "nyc"
UNANSWERED = 2
TICK_S = 0.1


class DemoTable(msgspec.Struct, frozen=True):
    """A table of the demo and how it is partitioned."""

    table: str
    partition_by: str


TARGETS = (
    DemoTable("flights_by_day", "day(time_hour)"),
    DemoTable("flights_by_carrier", "identity(carrier)"),
)


class Load(msgspec.Struct, frozen=True):
    """The load: by how many writers per table rows are sent, in batches of how many."""

    writers: int = 4
    batch_rows: int = 500


class Interrupted(Exception):
    """A writer was told to stop before its last batch."""


class Meter:
    """The rows sent to one table, and those acknowledged. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits_s: list[float] = []
        self.sent_rows = 0
        """The number of rows that were handed to the writers so far."""
        self.acknowledged_rows = 0
        """The number of rows that have their answer."""
        self.newest: pa.RecordBatch | None = None
        """The batch that was acknowledged last."""
        self.finished_at = 0.0
        """The time when the last answer came, by ``time.perf_counter``."""

    def sending(self, batch: pa.RecordBatch) -> Callable[[Ack], None]:
        """Count ``batch`` as sent; what is returned takes its answer."""
        with self._lock:
            self.sent_rows += batch.num_rows
        return partial(self._answered, batch, time.perf_counter())

    def wait_ms(self, share: float) -> float:
        """The time within which ``share`` of the batches were acknowledged, in milliseconds."""
        with self._lock:
            ordered = sorted(self._waits_s)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def _answered(self, batch: pa.RecordBatch, sent_at: float, ack: Ack) -> None:
        if ack.exception() is not None:
            return  # the writer raises it
        now = time.perf_counter()
        with self._lock:
            self.acknowledged_rows += batch.num_rows
            self._waits_s.append(now - sent_at)
            self.newest = batch
            self.finished_at = now


class Streaming:
    """The writers of all tables, started; one :class:`Meter` per table in ``meters``."""

    def __init__(self, client: Client, flights: pa.Table, load: Load) -> None:
        self._client = client
        self._flights = flights
        self._pace = load
        self._stop = threading.Event()
        self.meters = {target.table: Meter() for target in TARGETS}
        self._pool = ThreadPoolExecutor(load.writers * len(TARGETS), "writer")
        self.started_at = time.perf_counter()
        # Table by table for each writer, so that no table's writers all start after another's.
        self._running: set[Future[None]] = {
            self._pool.submit(self._write, target.table, writer)
            for writer in range(load.writers)
            for target in TARGETS
        }

    @property
    def acknowledged_rows(self) -> int:
        """Rows acknowledged so far, in all tables."""
        return sum(meter.acknowledged_rows for meter in self.meters.values())

    @property
    def seconds(self) -> float:
        """The time from the start to the last answer so far."""
        return max(m.finished_at for m in self.meters.values()) - self.started_at

    def wait_tick(self) -> bool:
        """Whether writers still write, after a tenth of a second or when one has ended.

        Raises:
            ClientError: what a writer failed with.
        """
        ended, self._running = wait(self._running, TICK_S, FIRST_COMPLETED)
        for writer in ended:
            writer.result()
        return bool(self._running)

    def end(self) -> None:
        """Stop what still writes and wait until it has."""
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def _write(self, table: str, number: int) -> None:
        meter, load = self.meters[table], self._pace
        with self._client.writer(
            NAMESPACE,
            table,
            self._flights.schema,
            origin=f"demo-{table}-{number}",
            first_sequence=1,
            max_unanswered=UNANSWERED,
        ) as writer:
            for batch in share_of(self._flights, number, load.writers, load.batch_rows):
                if self._stop.is_set():
                    raise Interrupted(f"writer {number} of {table} was stopped")
                answered = meter.sending(batch)
                writer.write(batch).add_done_callback(answered)
