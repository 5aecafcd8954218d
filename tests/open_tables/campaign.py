"""Readers of published tables while writers write, a compaction runs and the daemon is killed.

    8 writers ──▶ daemon (kill -9 now and then) ──▶ tables ``appended`` and ``keyed``, published
    ``ingester compact`` now and then                        │
    one thread per engine ◀── newest version, pinned versions twice

Each read must return the rows of exactly one manifest version, and a reader never goes back. A
version's rows are known by their number and a sum of hashes, which follow from the manifest and
its files (``Truth``). In the end the newest version has every acknowledged row once.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ingester.client import Client, RetryPolicy
from persist.manifest import Add, Manifest, Remove
from persist.publish.format import FormatName
from persist.store import ObjectStore, open_store
from tests.drivers.daemon import Daemon
from tests.drivers.ports import steady_flight
from tests.drivers.wire import Table
from tests.open_tables.engines import Engine, Place, static_table

WRITERS = 8
TABLES: tuple[Table, ...] = (("open", "appended"), ("open", "keyed"))
SCHEMA = pa.schema([("n", pa.int64()), ("w", pa.int32()), ("v", pa.int64())])
KEYS = 400
"""Keys of each writer in the keyed table."""
CATCHES_UP_WITHIN_S = 60.0


class Sum(NamedTuple):
    """What distinguishes the rows of versions: their number, and a sum of hashes."""

    rows: int
    hashes: int

    def plus(self, other: Sum, sign: int = 1) -> Sum:
        """The sum of both; ``sign`` -1 subtracts."""
        return Sum(self.rows + sign * other.rows, (self.hashes + sign * other.hashes) % (1 << 64))


def sum_of(rows: pa.Table) -> Sum:
    """The sum of rows."""
    with np.errstate(over="ignore"):
        n, v = (rows[name].to_numpy().astype(np.uint64) for name in ("n", "v"))
        mixed = n * np.uint64(0x9E3779B97F4A7C15) ^ v * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed ^= mixed >> np.uint64(29)
        return Sum(len(rows), int((mixed * np.uint64(0xBF58476D1CE4E5B9)).sum()))


class Truth:
    """The sum of each version of a table, from its manifest and files. Any thread may call."""

    def __init__(self, store: ObjectStore, table: Table) -> None:
        self._manifest = Manifest(store, *table)
        self._lock = threading.Lock()
        self._files: dict[str, Sum] = {}
        self.sums: dict[int, Sum] = {0: Sum(0, 0)}

    def head(self) -> int:
        """The newest version, whose sum is known when this returns."""
        with self._lock:
            last = max(self.sums)
            found = self.sums[last]
            newest = self._manifest.head()
            for version in self._manifest.changes(last, newest) if newest > last else ():
                for action in version.actions:
                    if isinstance(action, Add):
                        found = found.plus(self._file(action.path))
                    elif isinstance(action, Remove):
                        found = found.plus(self._files[action.path], -1)
                self.sums[version.version] = found
            return newest

    def _file(self, path: str) -> Sum:
        with self._manifest.store.open(self._manifest.object_path(path)) as source:
            rows = pq.ParquetFile(source).read(["n", "v"])
        self._files[path] = sum_of(rows)
        return self._files[path]


@dataclass(slots=True)
class Told:
    """What a campaign did."""

    seed: int
    did: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def text(self) -> str:
        """A line per kind of work."""
        lines = [f"campaign with seed {self.seed}, {len(self.faults)} faults"]
        return "\n".join([*lines, *(f"  {what}: {n:,}" for what, n in sorted(self.did.items()))])


class Campaign:
    """One run: a daemon that is killed, writers, readers, a compaction."""

    def __init__(self, folder: Path, seconds: float, seed: int) -> None:
        self.told = Told(seed)
        self.random = random.Random(seed)
        self.ends_at = time.monotonic() + seconds
        self.daemon = Daemon.start(
            folder / "data",
            arguments=steady_flight(),
            publish__formats="iceberg,delta",
            publish__interval="100ms",
            persist__max_age="1s",
            memory__limit="512MiB",
        )
        self.url = f"file://{self.daemon.data_dir / 'store'}"
        self.store = open_store(self.url)
        self.truths = {table: Truth(self.store, table) for table in TABLES}
        self.acknowledged: dict[Table, dict[int, int]] = {table: {} for table in TABLES}

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.ends_at

    def fault(self, text: str) -> None:
        """Note a fault, and end soon if there are many."""
        self.told.faults.append(text)
        if len(self.told.faults) > 20:
            self.ends_at = 0.0

    def guarded(self, what: str, work: Callable[[], object]) -> None:
        """Do work in a thread; an error of it is a fault."""
        try:
            work()
        except Exception as exc:
            self.fault(f"{what}: {type(exc).__name__}: {str(exc)[:500]}")

    # ------------------------------------------------------------------------------------- writing

    def client(self) -> Client:
        """A client that outlasts restarts of the daemon."""
        return Client(self.daemon.flight, retry=RetryPolicy(for_s=300.0))

    def create_tables(self) -> None:
        """Create both tables, and publish something before the first reader comes."""
        with self.client() as client:
            appended, keyed = TABLES
            client.create_table(*appended, SCHEMA, partition_by=["identity(w)"])
            client.create_table(*keyed, SCHEMA, primary_key=["n"], partition_by=["bucket(2, n)"])
        self.wait_for_places()

    def wait_for_places(self) -> None:
        """Wait until both tables are published in both formats."""
        give_up_at = time.monotonic() + CATCHES_UP_WITHIN_S
        names = ("metadata/version-hint.text", "_delta_log")
        store = self.daemon.data_dir / "store"
        wanted = [store.joinpath(*table, name) for table in TABLES for name in names]
        while not all(path.exists() for path in wanted):
            if time.monotonic() > give_up_at:
                raise AssertionError("the tables are not published")
            time.sleep(0.05)

    def write(self, writer: int) -> None:
        """Write batches of ten rows; remember each that was acknowledged."""
        chance = random.Random(self.told.seed * 100 + writer)
        table = TABLES[writer % 2]
        with self.client() as client:
            sequence = 0
            while not self.over:
                first = writer * 1_000_000_000
                numbers = (
                    range(first + sequence * 10, first + sequence * 10 + 10)
                    if table[1] == "appended"
                    else [first + n for n in chance.sample(range(KEYS), 10)]
                )
                rows = {n: chance.getrandbits(40) for n in numbers}
                batch = {
                    "n": pa.array(rows, pa.int64()),
                    "w": pa.array([writer] * 10, pa.int32()),
                    "v": pa.array(rows.values(), pa.int64()),
                }
                client.write(*table, pa.record_batch(batch, schema=SCHEMA))
                self.acknowledged[table].update(rows)
                sequence += 1
                self.told.did["batches written"] += 1
                time.sleep(chance.uniform(0.02, 0.2))

    def kill(self) -> None:
        """Kill the daemon now and then, and start it again."""
        while not self.over:
            time.sleep(self.random.uniform(2, 6))
            self.daemon.kill()
            time.sleep(self.random.uniform(0, 0.5))
            self.daemon = self.daemon.again()
            self.told.did["kills"] += 1

    def compact(self) -> None:
        """Run ``ingester compact`` now and then."""
        while not self.over:
            time.sleep(self.random.uniform(3, 8))
            table = self.random.choice(TABLES)
            words = [sys.executable, "-m", "ingester", "compact", self.url, *table]
            done = subprocess.run(words, capture_output=True, text=True, timeout=120)
            self.told.did[f"compactions, exit code {done.returncode}"] += 1
            if done.returncode not in (0, 1):  # 1: left because of conflicts
                self.fault(f"compact: {done.stderr[-500:]}")

    # ------------------------------------------------------------------------------------- reading

    def read(self, engine: Engine) -> None:
        """Read the newest version and pinned ones, in turns."""
        chance = random.Random(f"{self.told.seed} {engine.name}")
        seen: Counter[tuple[FormatName, Table]] = Counter()
        while not self.over:
            format, table = chance.choice(engine.formats), chance.choice(TABLES)
            place = Place(format, f"{self.url}/{table[0]}/{table[1]}")
            self.read_newest(engine, place, table, seen)
            self.read_pinned(engine, place, table, chance)

    def read_newest(
        self,
        engine: Engine,
        place: Place,
        table: Table,
        seen: Counter[tuple[FormatName, Table]],
    ) -> None:
        """Read the newest version: it is one, and none before the last one seen."""
        found = sum_of(engine.rows(place))
        truth, key = self.truths[table], (place.format, table)
        newest = truth.head()
        matching = [n for n in range(seen[key], newest + 1) if truth.sums[n] == found]
        if not matching:
            self.fault(f"{engine.name}, {key}: {found} is no version {seen[key]} to {newest}")
        else:
            seen[key] = matching[0]
        self.told.did[f"newest read by {engine.name}, {place.format}"] += 1

    def read_pinned(
        self, engine: Engine, place: Place, table: Table, chance: random.Random
    ) -> None:
        """Read a published version twice."""
        numbers = published_numbers(place)
        number = chance.choice(numbers[-50:])
        truth = self.truths[table]
        truth.head()
        for _ in range(2):
            found = sum_of(engine.rows(place, number))
            if found != truth.sums[number]:
                told = f"{found}, wanted {truth.sums[number]}"
                self.fault(f"{engine.name}, {place.format}, {table}, version {number}: {told}")
        self.told.did[f"pinned read by {engine.name}, {place.format}"] += 2

    # ------------------------------------------------------------------------------------- the end

    def finish(self, engines: Sequence[Engine]) -> None:
        """Flush, wait until it is published, and look for every acknowledged row."""
        with self.client() as client:
            client.persist()
        for table in TABLES:
            newest = self.truths[table].head()
            self.told.did[f"versions of {table[1]}"] = newest
            for engine in engines:
                for format in engine.formats:
                    place = Place(format, f"{self.url}/{table[0]}/{table[1]}")
                    self.check_last(engine, place, table, newest)

    def check_last(self, engine: Engine, place: Place, table: Table, newest: int) -> None:
        """Check that the newest version has exactly the acknowledged rows."""
        wanted, give_up_at = self.truths[table].sums[newest], time.monotonic() + CATCHES_UP_WITHIN_S
        while sum_of(rows := engine.rows(place)) != wanted and time.monotonic() < give_up_at:
            time.sleep(0.2)
        found = dict(zip(rows["n"].to_pylist(), rows["v"].to_pylist(), strict=True))
        if found != self.acknowledged[table] or len(found) != len(rows):
            lost = len(self.acknowledged[table].keys() - found.keys())
            told = f"{len(rows)} rows, {len(self.acknowledged[table])} acknowledged, {lost} missing"
            self.fault(f"{engine.name}, {place.format}, {table}, in the end: {told}")


def published_numbers(place: Place) -> list[int]:
    """The versions that a format has."""
    if place.format == "iceberg":
        return [snapshot.snapshot_id for snapshot in static_table(place).snapshots()]
    log = (Path(place.path) / "_delta_log").iterdir()
    return sorted({int(path.name[:20]) for path in log if path.name[:20].isdigit()})


def run(folder: Path, engines: Sequence[Engine], seconds: float, seed: int = 0) -> Told:
    """Run a campaign; ``seed`` 0 takes the time."""
    campaign = Campaign(folder, seconds, seed or int(time.time()))
    try:
        campaign.create_tables()
        work = [
            *(("write", partial(campaign.write, n)) for n in range(WRITERS)),
            *((engine.name, partial(campaign.read, engine)) for engine in engines),
            ("kill", campaign.kill),
            ("compact", campaign.compact),
        ]
        threads = [threading.Thread(target=campaign.guarded, args=each) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        campaign.guarded("finish", partial(campaign.finish, engines))
    finally:
        campaign.daemon.kill()
    return campaign.told
