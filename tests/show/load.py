"""The clients that write and read during the faults, and their knowledge.

A batch counts as acknowledged only once its answer has arrived. A client sees retries and no
errors: an error raised by the library is a fault, regardless of the daemons' faults.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random

import numpy as np
import pyarrow as pa

from ingester.client import Client, Writer
from tests.drivers.waiting import until
from tests.show.keyed import KeyedTable, Place

NAMESPACE, TABLE = "show", "events"
SCHEMA = pa.schema([("writer", pa.int32()), ("n", pa.int64()), ("value", pa.float64())])
ROWS = 500
"""Rows of a batch."""
LOOKS_BACK = 20 * ROWS
PERSIST_S = 60.0
PIPELINED = 8
"""Unacknowledged batches of a writer."""


@dataclass
class Timed:
    """When calls ended and how long they took, in seconds."""

    calls: list[tuple[float, float]] = field(default_factory=list)

    def note(self, seconds: float) -> None:
        """Record a call that was just answered."""
        self.calls.append((time.monotonic(), seconds))


class Load:
    """Writers and readers; each is a thread with its own client.

    Attributes:
        wrong: Faults, which no client should see.
        every_s: Between two batches of a writer; 0 for as fast as they are accepted.
        generation: Raised by :meth:`reconnect`.
        seen: The generation of each thread's client.
        losses: The number of lost disks and of completed resends. A query during which it changes
            is not judged.
        keyed: The table with a primary key.
    """

    def __init__(self, place: Place, *, writers: int, readers: int) -> None:
        self.wrong: list[str] = []
        self.every_s = 0.0
        self.generation = 0
        self.seen: dict[str, int] = {}
        self.losses = 0
        self.writes, self.queries = Timed(), Timed()
        connect = place.client
        self.writers = [Source(self, number, connect) for number in range(writers)]
        self.keyed = KeyedTable(self, place)
        self._stop = threading.Event()
        works = [(f"writer {each.number}", each.work) for each in self.writers]
        works += [(f"reader {n}", Reader(self, n, connect).work) for n in range(readers)]
        works += [("blocks", self.keyed.blocks.work), ("replica", self.keyed.replica.work)]
        works.append(("keyed reader", self.keyed.work))
        self._threads = [
            threading.Thread(target=self._guarded, args=work, name=work[0]) for work in works
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def reconnect(self) -> None:
        """Make every thread create a new client of the current daemons, and wait for that."""
        self.generation += 1
        until(
            lambda: bool(self.wrong) or all(n == self.generation for n in self.seen.values()),
            "all to have new clients",
            patience_s=120,
        )

    def stop(self) -> None:
        """Let every thread complete its current work and end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(150)
            if thread.is_alive():
                self.wrong.append(f"{thread.name}: has not ended after 150 s")

    @property
    def stopped(self) -> bool:
        """Whether the load is ending."""
        return self._stop.is_set()

    def goes_on(self, generation: int) -> bool:
        """Whether a client of that generation is still current."""
        return not self.stopped and self.generation == generation

    def wait(self, seconds: float) -> None:
        """Wait, unless the load ends."""
        self._stop.wait(max(0.0, seconds))

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged rows."""
        return sum(each.acknowledged for each in self.writers)

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as exc:
            self.wrong.append(f"{name}: {type(exc).__name__}: {exc}"[:500])


class Source:
    """A writer with an origin: its rows 0, 1, 2, … Every third writer keeps unflushed rows.

    Attributes:
        acknowledged: Number of acknowledged rows.
        may_miss_below: Readers do not check rows below this: they may have been on a lost disk.
    """

    def __init__(self, load: Load, number: int, connect: Callable[[], Client]) -> None:
        self.number = number
        self.keeps = number % 3 == 0
        self.acknowledged = 0
        self.may_miss_below = 0
        self.durable = 0
        self._load = load
        self._connect = connect

    @property
    def origin(self) -> str:
        """Its name at the daemons."""
        return f"source-{self.number}"

    def work(self) -> None:
        """Write until the load ends."""
        while not self._load.stopped:
            generation = self._load.generation
            with self._connect() as client:
                with client.writer(
                    NAMESPACE,
                    TABLE,
                    SCHEMA,
                    origin=self.origin,
                    first_sequence=self.acknowledged // ROWS + 1,
                    max_unanswered=PIPELINED,
                    keep_until_durable=self.keeps,
                ) as writer:
                    self._load.seen[self.origin] = generation
                    self._write(writer, generation)
                if self.keeps and not self._load.stopped:
                    # A new writer does not keep the unflushed rows of a closed one.
                    client.persist(NAMESPACE, TABLE, timeout_s=PERSIST_S)

    def _write(self, writer: Writer, generation: int) -> None:
        due = time.monotonic()
        while self._load.goes_on(generation):
            began = time.monotonic()
            answer = writer.write(self._batch()).result()
            self.acknowledged += ROWS
            self.durable = max(self.durable, (answer.durable_sequence or 0) * ROWS)
            self._load.writes.note(time.monotonic() - began)
            # A delayed writer does not catch up, so the load stays the same.
            due = max(due + self._load.every_s, began)
            self._load.wait(due - time.monotonic())

    def _batch(self) -> pa.RecordBatch:
        numbers = np.arange(self.acknowledged, self.acknowledged + ROWS)
        writers = np.full(ROWS, self.number, np.int32)
        return pa.record_batch([writers, numbers, numbers * 0.5], schema=SCHEMA)


class Reader:
    """Queries the newest rows of one writer after another, and checks that all are present."""

    def __init__(self, load: Load, number: int, connect: Callable[[], Client]) -> None:
        self._load = load
        self._connect = connect
        self._random = Random(number)
        self._name = f"reader-{number}"

    def work(self) -> None:
        """Read until the load ends."""
        while not self._load.stopped:
            generation = self._load.generation
            with self._connect() as client:
                self._load.seen[self._name] = generation
                while self._load.goes_on(generation):
                    self._look(client)
                    self._load.wait(0.2)

    def _look(self, client: Client) -> None:
        source = self._random.choice(self._load.writers)
        upto = source.acknowledged
        if upto == 0:
            return
        losses, first = self._load.losses, self._first(source, upto)
        at, began = datetime.now(UTC), time.monotonic()
        asked = [("writer", "=", source.number), ("n", ">=", first)]
        found = client.query(NAMESPACE, TABLE, ["n"], asked)["n"].to_numpy()
        took_s = time.monotonic() - began
        self._load.queries.note(took_s)
        if self._load.losses != losses or self._first(source, upto) > first:
            return  # a disk was lost meanwhile
        counts = np.bincount(found[found >= first] - first, minlength=max(0, upto - first))
        if (counts[: upto - first] != 1).any() or (counts > 1).any():
            missing = int((counts[: upto - first] == 0).sum())
            again = client.query(NAMESPACE, TABLE, ["n"], [*asked, ("n", "<", upto)]).num_rows
            self._load.wrong.append(
                f"{source.origin}: of rows {first} to {upto - 1} a query lacked {missing} and had"
                f" {int((counts > 1).sum())} more than once; the next one found {again}; it was"
                f" asked at {at:%H:%M:%S.%f} UTC and took {took_s:.3f} s"
            )

    @staticmethod
    def _first(source: Source, upto: int) -> int:
        """The first of a source's newest rows that must be present."""
        return max(source.may_miss_below, upto - LOOKS_BACK, 0)
