"""The well-behaved tenants: each writes and reads at a steady rate, and records the latencies.

Latencies count from the due time, so that a stall of the daemon is charged to every call it
delayed. The time between calls is random, so that the calls of two tenants coincide neither
always nor never.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pyarrow as pa

from ingester.client import Client, ClientError

SCHEMA = pa.schema(
    [("id", pa.int64()), ("host", pa.string()), ("value", pa.float64()), ("note", pa.string())]
)
TABLE = "events"


@dataclass
class Timed:
    """The seconds of calls of one kind, by phase."""

    took: dict[str, list[float]] = field(default_factory=dict)

    def note(self, phase: str, seconds: float) -> None:
        """Record an answered call."""
        self.took.setdefault(phase, []).append(seconds)

    def percentile(self, phase: str, percent: float) -> float:
        """Return the seconds that this percentage of calls did not exceed."""
        return float(np.percentile(self.took.get(phase, [float("nan")]), percent))


class Tenant:
    """One well-behaved tenant: a thread that writes and one that reads.

    Args:
        connect: Makes a client with the tenant's own token.
        rows: Rows of a batch.
    """

    def __init__(
        self, name: str, connect: Callable[[], Client], *, rows: int, writes_per_s: float
    ) -> None:
        self.name = name
        self.phase = "start"
        self.writes, self.queries = Timed(), Timed()
        self.written = 0
        """Number of acknowledged rows."""
        self.wrong: list[str] = []
        self._connect = connect
        self._rows = rows
        self._every_s = 1.0 / writes_per_s
        self._stop = threading.Event()
        self._random = Random(name)
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"{name} {kind}")
            for kind, work in (("writes", self._write), ("reads", self._read))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both threads, and wait for them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            if thread.is_alive():
                self.wrong.append(f"{thread.name}: did not end within 120 s")

    def _guarded(self, work: Callable[[Client], None]) -> None:
        try:
            with self._connect() as client:
                work(client)
        except Exception as exc:
            self.wrong.append(f"{type(exc).__name__}: {exc}")

    def _write(self, client: Client) -> None:
        with client.writer(self.name, TABLE, SCHEMA) as writer:

            def once() -> None:
                writer.write(self._batch()).result()
                self.written += self._rows

            self._steadily(self.writes, self._every_s, once)

    def _batch(self) -> pa.RecordBatch:
        first = self.written
        ids = np.arange(first, first + self._rows)
        hosts = [f"h{n % 20}" for n in ids]
        notes = [f"note {n}" for n in ids]
        return pa.record_batch([ids, hosts, ids * 0.5, notes], schema=SCHEMA)

    def _read(self, client: Client) -> None:
        def once() -> None:
            known = self.written
            host = f"h{self._random.randrange(20)}"
            newest = [("id", ">=", max(0, known - 5 * self._rows)), ("host", "=", host)]
            found = client.query(self.name, TABLE, ["id", "host"], newest)
            if known and found.num_rows < self._rows // 20:
                self.wrong.append(f"a query found {found.num_rows} rows of {known} written")

        while not self.written and not self._stop.wait(0.05):
            pass
        self._steadily(self.queries, 5 * self._every_s, once)

    def _steadily(self, timed: Timed, every_s: float, call: Callable[[], None]) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            phase = self.phase
            try:
                call()
            except ClientError as exc:
                # Its client has retried for a while: a well-behaved tenant must not see this error.
                self.wrong.append(f"{phase}: {type(exc).__name__}: {exc}")
                return
            else:
                timed.note(phase, time.monotonic() - due)
            due += self._random.uniform(0.5, 1.5) * every_s
            due = max(due, time.monotonic() - 5.0)
            self._stop.wait(max(0.0, due - time.monotonic()))


def check_rows(tenant: Tenant, client: Client) -> None:
    """Record a fault unless every acknowledged row is present once."""
    ids = client.query(tenant.name, TABLE, ["id"]).column("id").to_numpy()
    if len(ids) != tenant.written or len(np.unique(ids)) != len(ids):
        tenant.wrong.append(f"{len(ids)} rows are there, {tenant.written} were acknowledged")


def all_wrong(tenants: Sequence[Tenant]) -> list[str]:
    """Return all faults, each with its tenant."""
    return [f"{tenant.name}: {text}" for tenant in tenants for text in tenant.wrong]
