"""Table "postgres_load": the lag of a copy of PostgreSQL's tables.

The load is pgbench at a share of the rate that the same server reached just before without a
replicator. The lag is the time from the commit of a row at the source until a query of the
daemon returns it, and so includes the pause between two queries.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import psycopg2
import pyarrow.flight as fl

from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.samples import Samples, percentile
from tests.drivers.wire import ARROW_AND_FLIGHT, query
from tests.postgres.cluster import Cluster, serve
from tests.postgres.replicating import replicating

NAME = "postgres_load"
_NAMESPACE = "bench"
_SHARE = 0.8
_CLIENTS = 4
_PROBE_S = 0.05
_WITHIN_S = 300.0
_SERVER = {"fsync": "on", "shared_buffers": "512MB", "max_wal_size": "4GB", "timezone": "UTC"}
_SLOT = (
    "SELECT (pg_current_wal_insert_lsn() - confirmed_flush_lsn)::bigint"
    " FROM pg_replication_slots WHERE slot_name = 'ingester'"
)


def run(bench: Bench) -> list[Table]:
    """Measure the lag under load, and the log that the slot retains."""
    with serve(bench.new_folder(), settings=_SERVER) as cluster:
        return [_load(bench, cluster)]


def _load(bench: Bench, cluster: Cluster) -> Table:
    effort = bench.effort
    table = Table(
        NAME,
        f"PostgreSQL: pgbench of {_CLIENTS} clients at {_SHARE:.0%} of what the source gives,"
        f" {effort.postgres_load_s:g} s",
        [
            "source alone",
            "asked",
            "given",
            "of asked",
            "lag p50",
            "lag p99",
            "slot at most",
            "slot at its end",
            "equal after",
        ],
        notes=["lag: from a row's commit at the source until a query of the daemon has it"],
    )
    _pgbench(cluster, "--initialize", f"--scale={effort.postgres_load_scale}", "--quiet")
    cluster.run(
        "ALTER TABLE pgbench_history ADD COLUMN hid bigserial PRIMARY KEY",
        "CREATE TABLE probe (id bigint PRIMARY KEY)",
        "CHECKPOINT",
    )
    seconds = f"--time={max(1, round(effort.postgres_load_s))}"
    load = (f"--client={_CLIENTS}", "--jobs=1", "--no-vacuum", seconds)
    bench.say("the source alone")
    most = _tps(_pgbench(cluster, *load))
    folder = bench.new_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (
        bench.daemon(replication__max_lag="5s") as daemon,
        replicating(cluster.dsn, daemon.flight, _NAMESPACE, folder) as replicator,
    ):
        probe = _Probe(cluster, daemon.flight)
        _until(probe.exists, "the first copies", lambda: replicator.said)
        bench.say(f"at {_SHARE * most:.0f} transactions/s")
        with probe:
            given = _tps(_pgbench(cluster, *load, f"--rate={_SHARE * most:.0f}"))
            ended = time.perf_counter()
            held = probe.slot()
        _until(probe.caught_up, "the rest", lambda: replicator.said)
        behind = time.perf_counter() - ended
    lags = np.array(probe.lags)
    asked = Samples((_SHARE * most,), "/s")
    slot = [Samples((float(each),), "B") for each in (max([*probe.held, held]), held)]
    p99 = Samples((percentile(lags, 0.99),), "s")
    table.add(
        source_alone=Samples((most,), "/s"),
        asked=asked,
        given=Samples((given,), "/s"),
        of_asked=Samples((given,), "/s").over(asked),
        lag_p50=Samples((percentile(lags, 0.5),), "s"),
        lag_p99=p99,
        slot_at_most=slot[0],
        slot_at_its_end=slot[1],
        equal_after=Samples((behind,), "s"),
    )
    table.targets.append(Target("lag p99 under pgbench at 80 %", 5.0, p99, below=True))
    return table


class _Probe:
    """Commits a row now and then, detects when the daemon has it, and samples the slot."""

    def __init__(self, cluster: Cluster, endpoint: str) -> None:
        self.lags: list[float] = []
        self.held: list[int] = []
        self._cluster = cluster
        self._client = fl.connect(endpoint)
        self._connection = psycopg2.connect(cluster.dsn)
        self._connection.autocommit = True
        self._committed: dict[int, float] = {}
        self._over = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._commit, self._see)]

    def slot(self) -> int:
        """Bytes of the log that the slot retains."""
        with self._connection.cursor() as cursor:
            cursor.execute(_SLOT)
            [(held,)] = cursor.fetchall()
        return int(held)

    def exists(self) -> bool:
        """Whether all tables have been copied."""
        tables = ("probe", "pgbench_accounts", "pgbench_history")
        with suppress(*ARROW_AND_FLIGHT):
            for table in tables:
                query(self._client, (_NAMESPACE, table), limit=1)
            return True
        return False

    def caught_up(self) -> bool:
        """Whether the daemon has as many history rows as the source."""
        [(rows,)] = self._cluster.run("SELECT count(*) FROM pgbench_history")
        found = query(self._client, (_NAMESPACE, "pgbench_history"), columns=["hid"])
        return bool(found.num_rows == rows)

    def _commit(self) -> None:
        number = 0
        while not self._over.wait(_PROBE_S):
            number += 1
            with self._connection.cursor() as cursor:
                cursor.execute("INSERT INTO probe VALUES (%s)", (number,))
            self._committed[number] = time.perf_counter()
            self.held.append(self.slot())

    def _see(self) -> None:
        seen = 0
        while not (self._over.is_set() and seen >= len(self._committed)):
            newest = query(self._client, (_NAMESPACE, "probe"))["id"].to_pylist()
            now = time.perf_counter()
            for number in range(seen + 1, max(newest, default=0) + 1):
                # A query may return the row before its own commit has been reported here.
                self.lags.append(max(0.0, now - self._committed.get(number, now)))
                seen = number
            self._over.wait(0.01)
            if self._over.is_set():
                time.sleep(0.01)

    def __enter__(self) -> _Probe:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def _pgbench(cluster: Cluster, *arguments: str) -> str:
    process = cluster.pgbench(*arguments)
    said, _ = process.communicate(timeout=_WITHIN_S)
    assert process.returncode == 0, said
    return said.decode()


def _tps(said: str) -> float:
    found = re.search(r"tps = ([\d.]+)", said)
    assert found is not None, said
    return float(found[1])


def _until(happened: Callable[[], bool], what: str, said: Callable[[], str]) -> None:
    give_up_at = time.monotonic() + _WITHIN_S
    while not happened():
        assert time.monotonic() < give_up_at, f"waited for {what}: {said()[-2000:]}"
        time.sleep(0.05)


__all__ = ["NAME", "run"]
