"""Several concurrent writers send the same flights to each table and wait for each answer.

Each writer is one stream of the client library with its defaults, which are exactly once.

A look counts a table's rows while writers write, and queries the row that was acknowledged last.
The numbers of rows acknowledged before the query, seen by it, and sent by its end must be in
ascending order (``tests/demo/test_looking.py``).
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from ingester.client import Client

from .source import TIME_COLUMN, share_of

NAMESPACE = "nyc"
TICK_S = 0.05


class DemoTable(msgspec.Struct, frozen=True):
    """A table of the demo and its partitioning."""

    table: str
    partition_by: str


TARGETS = (
    DemoTable("flights_by_month", "month(time_hour)"),
    DemoTable("flights_by_carrier", "identity(carrier)"),
)


class Load(msgspec.Struct, frozen=True):
    """Writers per table and rows per batch."""

    writers: int = 2
    batch_rows: int = 2_000


class Interrupted(Exception):
    """A writer was stopped before its last batch."""


class Meter:
    """Rows sent to one table and acknowledged. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits_s: list[float] = []
        self.sent_rows = 0
        """Rows handed to the writers so far."""
        self.acknowledged_rows = 0
        """Rows acknowledged so far."""
        self.newest: pa.RecordBatch | None = None
        """The batch acknowledged last."""
        self.finished_at = 0.0
        """Time of the last answer, by ``time.perf_counter``."""

    @contextmanager
    def writing(self, batch: pa.RecordBatch) -> Iterator[None]:
        """Count ``batch`` as sent, and as acknowledged at the end of the ``with`` block."""
        with self._lock:
            self.sent_rows += batch.num_rows
        began = time.perf_counter()
        yield
        now = time.perf_counter()
        with self._lock:
            self.acknowledged_rows += batch.num_rows
            self._waits_s.append(now - began)
            self.newest = batch
            self.finished_at = now

    def wait_ms(self, share: float) -> float:
        """The latency quantile at ``share``, in milliseconds."""
        with self._lock:
            ordered = sorted(self._waits_s)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Streaming:
    """The running writers of all tables, with one :class:`Meter` per table in ``meters``."""

    def __init__(self, client: Client, flights: pa.Table, load: Load) -> None:
        self._client = client
        self._flights = flights
        self._load = load
        self._stop = threading.Event()
        self.meters = {target.table: Meter() for target in TARGETS}
        self._pool = ThreadPoolExecutor(load.writers * len(TARGETS), "writer")
        self.started_at = time.perf_counter()
        # Alternating between tables, so that the writers of all tables start together.
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
        """Seconds from the start to the last answer so far."""
        return max(m.finished_at for m in self.meters.values()) - self.started_at

    def wait_tick(self) -> bool:
        """Wait for a moment or until a writer ends. Whether any writer is still running.

        Raises:
            ClientError: A writer failed.
        """
        ended, self._running = wait(self._running, TICK_S, FIRST_COMPLETED)
        for writer in ended:
            writer.result()
        return bool(self._running)

    def end(self) -> None:
        """Stop all writers and wait for them."""
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def _write(self, table: str, number: int) -> None:
        load = self._load
        with self._client.writer(NAMESPACE, table, self._flights.schema) as writer:
            for batch in share_of(self._flights, number, load.writers, load.batch_rows):
                if self._stop.is_set():
                    raise Interrupted(f"writer {number} of {table} was stopped")
                with self.meters[table].writing(batch):
                    writer.write(batch).result()


class WritesNotSeen(Exception):
    """An answer lacks acknowledged rows, or has rows that were never sent."""


class QueryCount(msgspec.Struct, frozen=True):
    """One query's row counts by source, and the rows acknowledged before it."""

    table: str
    acknowledged_before: int
    seen: int
    from_buffer: int
    from_files: int


def look(client: Client, table: str, meter: Meter) -> QueryCount:
    """Count the table's rows while writers write, and find the newest acknowledged row.

    Raises:
        WritesNotSeen: The numbers are not in order, or the row is missing.
    """
    newest = meter.newest
    acknowledged = meter.acknowledged_rows
    rows: Counter[str] = Counter()
    with client.query_stream(NAMESPACE, table, [TIME_COLUMN]) as stream:
        for batch, source in stream:
            rows[source.source] += batch.num_rows
    sent = meter.sent_rows
    seen = rows.total()
    if not acknowledged <= seen <= sent:
        raise WritesNotSeen(
            f"{table}: {acknowledged} rows were acknowledged before the query, it returned {seen}, "
            f"and {sent} were sent by its end"
        )
    if newest is not None and not _holds_last_row(client, table, newest):
        raise WritesNotSeen(f"{table}: the row acknowledged last is not in the answer")
    return QueryCount(table, acknowledged, seen, rows["buffer"], rows["file"])


def _holds_last_row(client: Client, table: str, batch: pa.RecordBatch) -> bool:
    row = batch.slice(batch.num_rows - 1).to_pylist()[0]
    same = [(name, "is null") if v is None else (name, "=", v) for name, v in row.items()]
    return int(client.query(NAMESPACE, table, [TIME_COLUMN], same).num_rows) > 0
