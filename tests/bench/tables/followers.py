"""Tables "followers…": a first fill of a DuckDB file, and the lag of a follower.

The fill is compared with DuckDB's own ``CREATE TABLE AS`` from the same Parquet files, in turns,
each into a new file that is checkpointed and closed at the end. The lag is measured for batches
at a given pace: from the call that writes one until a reader can find it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from ingester.client import Client
from ingester.followers import Follower, FollowOptions
from ingester.followers.duckdb_sink import DuckDBDatabase, DuckDBSink
from ingester.followers.sink import FollowedTable, Rows
from tests.bench.effort import Bench
from tests.bench.report import Cell, Table, Target
from tests.bench.requests import fill
from tests.bench.requests import persist as persist_now
from tests.bench.rows import SCHEMA, make_batches
from tests.bench.samples import Samples, percentile
from tests.drivers.daemon import ROOT, Daemon

NAME = "followers"
_NAMESPACE = "bench"
_BATCH_ROWS = 10_000
_PACE_ROWS_S = 100_000
_PACE = _PACE_ROWS_S / _BATCH_ROWS
_KEYS = 1_000_000
_LIVE = pa.schema([*SCHEMA, ("id", pa.int64()), ("batch", pa.int64())])
_OPTIONS = FollowOptions(wait_s=1.0)


def run(bench: Bench) -> list[Table]:
    """Measure the rates of the first fill and the lag of a live copy."""
    return [_fills(bench), _lags(bench)]


def _fills(bench: Bench) -> Table:
    rows = bench.effort.follower_rows
    table = Table(
        NAME,
        f"Followers: the first fill of a DuckDB file, {rows:,} rows in files",
        ["who", "rows/s", "of CREATE TABLE AS"],
    )
    ours: list[float] = []
    theirs: list[float] = []
    with bench.daemon(persist__target_file_bytes="32MiB") as daemon:
        fill(daemon, "t", rows, _BATCH_ROWS)
        persist_now(daemon, "t")
        files = daemon.data_dir / "store" / _NAMESPACE / "t" / "v1" / "data"
        for number in range(bench.effort.follower_repeats):
            bench.say(f"fill {number}")
            folder = bench.new_folder()
            theirs.append(rows / _created(files, folder / "theirs.duckdb", rows))
            ours.append(rows / _followed(daemon, folder / "ours.duckdb", rows))
    plain, followed = Samples(tuple(theirs), "/s"), Samples(tuple(ours), "/s")
    table.add(who="CREATE TABLE AS", rows__s=plain, of_CREATE_TABLE_AS=plain.over(plain))
    table.add(who="follower", rows__s=followed, of_CREATE_TABLE_AS=followed.over(plain))
    table.targets.append(Target("first fill, of CREATE TABLE AS", 0.6, followed.over(plain)))
    return table


def _created(files: Path, path: Path, rows: int) -> float:
    """Return the seconds that DuckDB alone takes."""
    began = time.perf_counter()
    with duckdb.connect(str(path)) as connection:
        source = f"read_parquet('{files}/**/*.parquet', hive_partitioning = false)"
        connection.execute(f"CREATE TABLE t AS SELECT * FROM {source}")
        found = connection.execute("SELECT count(*) FROM t").fetchall()
    seconds = time.perf_counter() - began
    assert found == [(rows,)]
    return seconds


def _followed(daemon: Daemon, path: Path, rows: int) -> float:
    """Return the seconds until a follower has the whole table."""
    began = time.perf_counter()
    database = DuckDBDatabase(path)
    follower = Follower(daemon.flight, database.sink, options=_OPTIONS)
    follower.follow(_NAMESPACE, "t")
    with follower:
        follower.wait_current(600)
        seconds = time.perf_counter() - began
    database.close()
    with duckdb.connect(str(path), read_only=True) as reader:
        assert reader.execute("SELECT count(*) FROM t").fetchall() == [(rows,)]
    return seconds


class _Timed(DuckDBSink):
    """Records when each batch was in the copy: when its transaction had committed."""

    def __init__(
        self, database: DuckDBDatabase, table: FollowedTable, arrived: dict[int, float]
    ) -> None:
        super().__init__(database, table)
        self._arrived = arrived
        self._put: set[int] = set()

    def put(self, rows: Rows) -> None:
        """Put the rows and record their batches."""
        super().put(rows)
        self._put.update(rows.batch["batch"].unique().to_pylist())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Record the time after the transaction."""
        with super().transaction():
            yield
        self._arrived.update(dict.fromkeys(self._put, time.perf_counter()))
        self._put.clear()


def _lags(bench: Bench) -> Table:
    table = Table(
        f"{NAME}-lag",
        f"Followers: from the call that writes a row until it is in the copy; {_PACE_ROWS_S:,}"
        f" rows/s in batches of {_BATCH_ROWS:,}",
        ["table", "batches", "p50", "p99", "a reader opens it, p50", "p99 of that"],
        notes=[
            "in the copy: committed and checkpointed, and the file free for readers",
            "a reader in another process opens, counts and closes the file twice a second",
        ],
    )
    for keyed, read in ((False, False), (True, False), (True, True)):
        kind = "with a primary key" if keyed else "appended"
        bench.say(kind)
        waits, openings = _waits(bench, keyed, read)
        p50, p99 = (Samples((percentile(waits, share),), "s") for share in (0.5, 0.99))
        cells: dict[str, Cell] = {}
        if read:
            for share, name in ((0.5, "a reader opens it, p50"), (0.99, "p99 of that")):
                cells[name] = Samples((percentile(openings, share),), "s")
        else:
            table.targets.append(Target(f"lag of a follower, {kind}, p99", 1.5, p99, below=True))
        table.add(table=kind, batches=len(waits), p50=p50, p99=p99, **cells)
    return table


def _waits(bench: Bench, keyed: bool, read: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return each batch's lag, and how long a reader waited meanwhile to open the copy."""
    arrived: dict[int, float] = {}
    openings: list[float] = []
    seconds = bench.effort.follower_live_s
    path = bench.new_folder() / "live.duckdb"
    with bench.daemon() as daemon, Client(daemon.flight) as client:
        client.create_table(
            _NAMESPACE, "t", _LIVE, primary_key=["id"] if keyed else None, partition_by=[]
        )
        database = DuckDBDatabase(path)
        follower = Follower(
            daemon.flight, lambda of: _Timed(database, of, arrived), options=_OPTIONS
        )
        follower.follow(_NAMESPACE, "t")
        with follower:
            follower.wait_current(60)
            reader = _reader(path, seconds) if read else None
            sent = _write(client, max(2, int(seconds * _PACE)))
            while len(arrived) < len(sent):
                # Another thread does this: there is no event to wait for.
                time.sleep(0.05)
                follower.wait_current(60)
            if reader is not None:
                openings = json.loads(reader.communicate()[0])
        database.close()
    waits = np.array([arrived[number] - at for number, at in sent.items()])
    return waits, np.array(openings)


def _reader(path: Path, seconds: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.bench.copy_reader", str(path), str(seconds)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


def _write(client: Client, batches: int) -> dict[int, float]:
    """Write batches at the pace and return the start time of each."""
    random = np.random.default_rng(1)
    sent: dict[int, float] = {}
    with client.writer(_NAMESPACE, "t", _LIVE) as writer:
        began = time.perf_counter()
        for number, batch in enumerate(make_batches(_BATCH_ROWS, batches, 0)):
            ids = pa.array(random.choice(_KEYS, _BATCH_ROWS, replace=False))
            numbers = pa.array(np.full(_BATCH_ROWS, number))
            rows = pa.RecordBatch.from_arrays([*batch.columns, ids, numbers], schema=_LIVE)
            time.sleep(max(0.0, began + number / _PACE - time.perf_counter()))
            sent[number] = time.perf_counter()
            writer.write(rows)
    return sent
