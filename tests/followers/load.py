"""Load on three tables, from threads that survive kills of the daemon.

events    appended in many small batches, partitioned; columns are added over time
accounts  keyed: upserts and deletes; a column is added
moved     keyed and replicated: inserts, updates, moved keys, deletes, in transactions
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from ingester.client import Client, ClientError, RetryPolicy, SyncColumn
from ingester.client.errors import InvalidRequest

NAMESPACE = "n"
TABLES = ("events", "accounts", "moved")
PATIENT = RetryPolicy(for_s=120.0)
IDS = 400


class Load:
    """Writers that run within a ``with`` block."""

    def __init__(self, endpoint: str, other: str, seed: int) -> None:
        self._endpoint = endpoint
        self._seed = seed
        self._stop = threading.Event()
        self.written = dict.fromkeys(TABLES, 0)
        self.error: BaseException | None = None
        makers = (
            (self._events, endpoint),
            (self._accounts, endpoint),
            (self._moved, endpoint),
            (self._events_elsewhere, other),
        )
        self._threads = [
            threading.Thread(target=self._kept, args=(run, at, number), daemon=True)
            for number, (run, at) in enumerate(makers)
        ]

    def create(self) -> None:
        """Create the tables."""
        with Client(self._endpoint, retry=PATIENT) as client:
            plain = pa.schema([("id", pa.int64()), ("v", pa.string())])
            client.create_table(NAMESPACE, "events", plain, partition_by=["bucket(3, id)"])
            for table, parts in (("accounts", ["bucket(2, id)"]), ("moved", None)):
                client.create_table(NAMESPACE, table, plain, primary_key=["id"], partition_by=parts)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(150.0)
            assert not thread.is_alive(), "a writer does not end"
        if self.error is not None:
            raise self.error

    def _kept(
        self, run: Callable[[Client, random.Random], None], endpoint: str, number: int
    ) -> None:
        try:
            with Client(endpoint, retry=PATIENT) as client:
                run(client, random.Random(self._seed * 10 + number))
        except BaseException as exc:
            self.error = exc

    def _events(self, client: Client, rng: random.Random) -> None:
        next_id, columns = 0, 0
        while not self._stop.is_set():
            count = rng.randint(1, 300)
            ids = range(next_id, next_id + count)
            rows: dict[str, list[object]] = {"id": list(ids), "v": [f"v{i}" for i in ids]}
            if rng.random() < 0.02 and columns < 5:
                columns += 1
            for number in range(columns):
                rows[f"c{number}"] = [float(i) for i in ids]
            batches = pa.table(rows).to_reader(max_chunksize=rng.randint(1, 50))
            client.write(NAMESPACE, "events", batches)
            self.written["events"] += count
            next_id += count
            self._stop.wait(rng.random() * 0.02)

    def _events_elsewhere(self, client: Client, rng: random.Random) -> None:
        next_id = 10_000_000
        while not self._stop.is_set():
            ids = list(range(next_id, next_id + rng.randint(1, 30)))
            client.write(NAMESPACE, "events", pa.table({"id": ids, "v": ["elsewhere"] * len(ids)}))
            next_id = ids[-1] + 1
            self._stop.wait(rng.random() * 0.2)

    def _accounts(self, client: Client, rng: random.Random) -> None:
        turn = 0
        while not self._stop.is_set():
            turn += 1
            ids = rng.sample(range(IDS), rng.randint(1, 40))
            if rng.random() < 0.3:
                client.delete(NAMESPACE, "accounts", pa.table({"id": ids}))
            else:
                rows: dict[str, list[object]] = {"id": list(ids), "v": [f"t{turn}"] * len(ids)}
                if turn > 200:
                    rows["w"] = [turn] * len(ids)
                client.write(NAMESPACE, "accounts", pa.table(rows))
            self.written["accounts"] += len(ids)
            self._stop.wait(rng.random() * 0.02)

    def _moved(self, client: Client, rng: random.Random) -> None:
        """Replicate changes of a table; resend those that the daemon lacks."""
        stream = client.sync(NAMESPACE, "source")
        there: set[int] = set()
        sequence = 0
        while not self._stop.is_set():
            sequence += 1
            batch, there = _changes(rng, there, sequence)
            while True:
                try:
                    columns = [
                        SyncColumn("old_pk", "id"),
                        SyncColumn("new_pk", "id"),
                        SyncColumn("value", "v"),
                    ]
                    stream.send("moved", columns, batch, begin=True, sequence=sequence)
                    break
                except InvalidRequest:
                    raise
                except ClientError:
                    time.sleep(0.1)
                    with suppress(ClientError):
                        known = stream.standing().memory_sequence
                        if known is not None and known >= sequence:
                            break
            self.written["moved"] += batch.num_rows
            self._stop.wait(rng.random() * 0.03)


def _changes(rng: random.Random, there: set[int], sequence: int) -> tuple[pa.RecordBatch, set[int]]:
    """Return a transaction's changes, each key at most once, and the keys present after it."""
    there, used = set(there), set[int]()
    old: list[int | None] = []
    new: list[int | None] = []
    for _ in range(rng.randint(1, 10)):
        key, other = rng.randrange(IDS), rng.randrange(IDS)
        if {key, other} & used:
            continue
        used |= {key, other}
        if key not in there:
            change: tuple[int | None, int | None] = (None, key)
        elif rng.random() < 0.3:
            change = (key, None)
        elif rng.random() < 0.5 and other not in there:
            change = (key, other)
        else:
            change = (key, key)
        old.append(change[0])
        new.append(change[1])
        there -= {change[0]} if change[0] is not None else set()
        there |= {change[1]} if change[1] is not None else set()
    if not old:
        return _changes(rng, there, sequence)
    values = pa.array([f"s{sequence}"] * len(old))
    arrays = [pa.array(old, pa.int64()), pa.array(new, pa.int64()), values]
    return pa.record_batch(arrays, names=["a", "b", "c"]), there
