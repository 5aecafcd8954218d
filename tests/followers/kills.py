"""Followers and daemons are killed under load; at the end the file equals the table.

The follower is a process with a DuckDB file. At random moments the follower, the daemon or both
are killed. Another daemon also writes to the appended table and is sometimes killed. Buffers are
flushed every second and kept for one more second, so that a restarted follower often has to
resume from files. Meanwhile tables are pushed; a push is prepared or not, aborted, or rolled
back.
"""

from __future__ import annotations

import functools
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from ingester.client import Client
from ingester.followers import Follower
from ingester.followers.duckdb_sink import DuckDBDatabase
from ingester.pushes.tasks import RegionFailed
from tests.crash.spark import session
from tests.drivers.daemon import ROOT, Daemon
from tests.drivers.ports import steady_flight
from tests.drivers.waiting import until
from tests.followers.load import NAMESPACE, PATIENT, TABLES, Load
from tests.followers.pushes import Pushes


@dataclass
class Report:
    """The counts of kills and pushes, and the rows per table."""

    kills: Counter[str] = field(default_factory=Counter)
    pushes: Counter[str] = field(default_factory=Counter)
    rows: dict[str, int] = field(default_factory=dict)


class Campaign:
    """A daemon, a follower and their load in a folder."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None] = lambda text: None):
        self._file = folder / "copy.duckdb"
        self._log = folder / "follower.stderr"
        self._rng = random.Random(seed)
        self._seed = seed
        self._say = say
        self._pushed = 0
        self._follower: subprocess.Popen[bytes] | None = None
        self._daemon = Daemon.start(
            folder / "d",
            arguments=steady_flight(),
            persist__max_age="1s",
            query__tail_retain="1s",
            memory__limit="512MiB",
        )
        self._store = f"file://{folder / 'd' / 'store'}"
        self._other = Daemon.start(
            folder / "o",
            arguments=steady_flight(),
            id="other",
            store=self._store,
            persist__max_age="1s",
        )

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_follower()
        self._daemon.kill()
        self._other.kill()

    def run(self, kills: int) -> Report:
        """Kill ``kills`` times, then compare the file with the table."""
        report = Report()
        load = Load(self._daemon.flight, self._other.flight, self._seed)
        load.create()
        with load:
            while report.kills.total() < kills:
                self._start_follower()
                if self._rng.random() < 0.5:
                    report.pushes[self._push()] += 1
                time.sleep(self._rng.choice([0.3, 1.0, 2.0, 3.0]) * self._rng.random() + 0.8)
                self._check_follower()
                what = self._rng.choice(["follower", "follower", "daemon", "both"])
                if what != "daemon":
                    self._kill_follower()
                if what != "follower":
                    self._daemon.kill()
                    time.sleep(self._rng.random())
                    self._daemon = self._daemon.again()
                if self._rng.random() < 0.1:
                    self._other.kill()
                    self._other = self._other.again()
                report.kills[what] += 1
                told = f"{report.kills.total()} kills, {dict(report.pushes)} pushes"
                self._say(f"{told}, {load.written} rows written")
        self._kill_follower()
        self._compare(report)
        return report

    def _push(self) -> str:
        """Push a table in one of several ways; return which."""
        self._pushed += 1
        pushes = Pushes(self._daemon, NAMESPACE, self._rng.choice(TABLES))
        record = pushes.made(f"push-{self._pushed}")
        way = self._rng.choice(["prepared", "announced", "unannounced", "given up", "back"])
        if way != "unannounced":
            pushes.region.start_followers(record)
        if way == "prepared":
            until(lambda: not pushes.region.lagging_followers(record), "the follower to confirm")
        if way == "given up":
            assert pushes.region.discard(record)
            return way
        pushes.region.swap(record)
        if way == "back":
            try:
                assert pushes.region.roll_back(record)
            except RegionFailed as exc:
                if "carry" not in str(exc):  # otherwise its rows cannot be carried over
                    raise
                return "not back"
        return way

    def _start_follower(self) -> None:
        if self._follower is None:
            names = [f"{NAMESPACE}/{table}" for table in TABLES]
            command = [sys.executable, "-m", "tests.followers.follower_process"]
            with self._log.open("ab") as stderr:
                self._follower = subprocess.Popen(
                    [*command, self._daemon.flight, str(self._file), *names],
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    cwd=ROOT,
                )

    def _check_follower(self) -> None:
        assert self._follower is not None
        assert self._follower.poll() is None, self._log.read_text()[-4000:]

    def _kill_follower(self) -> None:
        if self._follower is not None:
            self._follower.kill()
            self._follower.wait()
            self._follower = None

    def _compare(self, report: Report) -> None:
        """Compare the file with the daemon's answer, and after a flush with the table's files."""
        with Client(self._other.flight, retry=PATIENT) as client:
            theirs = {done.table: done.manifest_version for done in client.persist()}
        with Client(self._daemon.flight, retry=PATIENT) as client:
            database = DuckDBDatabase(self._file)
            follower = Follower(self._daemon.flight, database.sink)
            for table in TABLES:
                follower.follow(NAMESPACE, table)
            seen = functools.partial(client.describe, NAMESPACE, "events")
            until(
                lambda: (seen().manifest_version or 0) >= (theirs.get("events") or 0),
                "the daemon to see the other one's last commit",
            )
            wanted = {table: rows_of(client.query(NAMESPACE, table)) for table in TABLES}
            with follower:
                follower.wait_current(60.0)
            database.close()
            for table in TABLES:
                assert_equal(table, self._rows_in_file(table), wanted[table])
                report.rows[table] = wanted[table].total()
            for done in client.persist():
                found = client.query(NAMESPACE, done.table, version=done.manifest_version)
                assert_equal(f"{done.table} in files", rows_of(found), wanted[done.table])
            # Only the file has the follower's state.
            assert client.checkpoints() == []

    def compare_with_spark(self) -> None:
        """Compare the file with the tables that Spark reads."""
        from ingester.spark import read_table

        spark = session(self._file.parent)
        try:
            for table in TABLES:
                copied = self._rows_in_file(table)
                # Spark also has the partition columns.
                names = sorted({name for row in copied for name, _ in row})
                found = read_table(spark, self._store, NAMESPACE, table).select(*names).toArrow()
                assert_equal(f"{table} by Spark", rows_of(found), copied)
        finally:
            spark.stop()

    def _rows_in_file(self, table: str) -> Counter[Any]:
        with duckdb.connect(str(self._file), read_only=True) as connection:
            return rows_of(connection.sql(f'SELECT * FROM "{table}"').to_arrow_table())


def rows_of(table: pa.Table) -> Counter[Any]:
    """Return each row as its non-null values."""
    names = sorted(table.column_names)
    return Counter(
        tuple((name, row[name]) for name in names if row[name] is not None)
        for row in table.to_pylist()
    )


def assert_equal(what: str, found: Counter[Any], wanted: Counter[Any]) -> None:
    """Fail with some of the differing rows if the two are not equal."""
    missing, extra = wanted - found, found - wanted
    assert not missing and not extra, (
        f"{what}: {missing.total()} rows are missing, {extra.total()} too many, of"
        f" {wanted.total()}; missing {list(missing)[:3]}, too many {list(extra)[:3]}"
    )
