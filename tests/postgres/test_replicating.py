"""`ingester replicate postgres` on a real server: a copy, then pgbench's load, with kills."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.flight as fl
import pytest
from pyspark.sql import SparkSession

from ingester.spark import read_table
from tests.drivers.daemon import ROOT, Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import act, query
from tests.postgres.cluster import Cluster
from tests.postgres.replicating import steady_daemon

LOAD_S = int(os.environ.get("INGESTER_TEST_PGBENCH_S", "8"))
KILLS = int(os.environ.get("INGESTER_TEST_PGBENCH_KILLS", "2"))
PATIENCE_S = 90.0
ORIGIN = "pgbench"


class Following:
    """A running ``ingester replicate postgres``."""

    def __init__(self, cluster: Cluster, daemon: Daemon, folder: Path, *options: str) -> None:
        self._stderr = (folder / "replicator.stderr").open("ab+")
        command = ["-m", "ingester", "replicate", "postgres", cluster.dsn, "pg", "--json", *options]
        self.process = subprocess.Popen(
            [sys.executable, *command, "--endpoint", daemon.flight],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )

    def said(self) -> str:
        """Return its standard error."""
        self._stderr.seek(0)
        return self._stderr.read().decode()

    def stop(self) -> dict[str, Any]:
        """Stop it by SIGTERM and return the facts that it prints."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, self.said()
        facts: dict[str, Any] = json.loads(out)
        return facts

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._stderr.close()


@contextmanager
def following(cluster: Cluster, daemon: Daemon, folder: Path, *options: str) -> Iterator[Following]:
    follower = Following(cluster, daemon, folder, *options)
    try:
        yield follower
    finally:
        follower.end()


def lsn(cluster: Cluster, what: str) -> int:
    [(position,)] = cluster.run(f"SELECT ({what}) - '0/0'::pg_lsn")
    return int(position)


def flushed(cluster: Cluster) -> int:
    return lsn(
        cluster,
        "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'ingester'",
    )


def active(cluster: Cluster, slot: str) -> bool:
    """Return whether a slot has a reader."""
    query = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
    return bool(cluster.run(query))


def answered(cluster: Cluster, end: int, asked: dt.datetime) -> bool:
    """Return whether a reader has received the log up to ``end`` and replied since ``asked``."""
    query = (
        "SELECT sent_lsn - '0/0'::pg_lsn, reply_time FROM pg_stat_replication"
        # A connection that takes a snapshot has sent nothing.
        " WHERE sent_lsn IS NOT NULL AND reply_time IS NOT NULL"
    )
    return any(sent >= end and at >= asked for sent, at in cluster.run(query))


def test_tables_equal_the_sources_after_a_load_with_kills(
    cluster: Cluster, tmp_path: Path, spark: SparkSession
) -> None:
    initialised = cluster.pgbench("--initialize", "--scale=1", "--quiet")
    said, _ = initialised.communicate(timeout=60)
    assert initialised.returncode == 0, said
    cluster.run("ALTER TABLE pgbench_history ADD COLUMN hid bigserial PRIMARY KEY")
    tables = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
    daemon = steady_daemon(tmp_path / "d", replication__max_lag="2s")
    try:
        with following(cluster, daemon, tmp_path, "--origin", ORIGIN) as follower:
            until(
                lambda: all(f"rows of public.{name}\n" in follower.said() for name in tables),
                "the copies",
                PATIENCE_S,
            )
            load = cluster.pgbench("--client=4", "--jobs=1", f"--time={LOAD_S}", "--no-vacuum")
            for _ in range(KILLS):
                with pytest.raises(subprocess.TimeoutExpired):
                    load.wait(LOAD_S / (KILLS + 1))
                daemon.kill()
                daemon = daemon.again()
            said, _ = load.communicate(timeout=60)
            assert load.returncode == 0, said
            end = lsn(cluster, "SELECT pg_current_wal_insert_lsn()")
            cluster.run("UPDATE pgbench_branches SET filler = 'the end'")
            with fl.connect(daemon.flight) as client:

                def durable() -> int:
                    [facts] = act(client, "origins", origin=ORIGIN)
                    return int(facts["durable_sequence"] or 0)

                until(lambda: durable() > end, "all of it in files", PATIENCE_S)
                until(lambda: flushed(cluster) > end, "the slot to follow", PATIENCE_S)
                facts = follower.stop()
                assert facts["durable"] == facts["sent"]
                assert facts["transactions"] > 100
        url = f"file://{daemon.data_dir}/store"
        for table in tables:
            read = read_table(spark, url, "pg", table)
            found = [tuple(row) for row in read.collect()]
            expected = cluster.run(f"SELECT {', '.join(read.columns)} FROM {table}")
            assert len(found) == len(expected)
            assert set(found) == set(expected)
    finally:
        daemon.kill()


def test_every_kind_of_change_and_type_arrives(cluster: Cluster, tmp_path: Path) -> None:
    cluster.run(
        "CREATE SCHEMA more",
        "CREATE TABLE more.kinds (a int, b text, big text, n numeric(12,3), f float8,"
        " t timestamptz, d date, y bytea, u uuid, o bool, j jsonb, free numeric,"
        " PRIMARY KEY (a, b))",
        "ALTER TABLE more.kinds ALTER COLUMN big SET STORAGE EXTERNAL",
        "INSERT INTO more.kinds VALUES"
        " (1, 'x', repeat('q', 9000), 1.5, 0.1, '2026-11-22 10:00+02',"
        " '2026-11-22', '\\x00ff', '6ecd8c99-4036-403d-bf84-cf8400f67836', true, '{\"k\": 1}', 7)",
    )
    with (
        Daemon.start(tmp_path / "d") as daemon,
        following(
            cluster,
            daemon,
            tmp_path,
            *("--tables", "more.kinds", "--slot", "kinds", "--publication", "kinds"),
        ) as follower,
        fl.connect(daemon.flight) as client,
    ):
        until(lambda: "copied 1 rows" in follower.said(), "the copy", PATIENCE_S)
        cluster.run(
            "INSERT INTO more.kinds (a, b) VALUES (2, 'y'), (3, 'z')",
            # A row with a new key keeps its large value, which the log omits.
            "UPDATE more.kinds SET a = 10, f = 0.25 WHERE a = 1",
            "DELETE FROM more.kinds WHERE a = 2",
            "ALTER TABLE more.kinds ADD COLUMN later int",
            "UPDATE more.kinds SET later = 5 WHERE a = 3",
        )

        def found() -> dict[int, dict[str, Any]]:
            answer = query(client, ("pg", "more.kinds")).to_pylist()
            return {row["a"]: row for row in answer}

        until(lambda: found().get(3, {}).get("later") == 5, "the last change", PATIENCE_S)
        rows = found()
        assert set(rows) == {3, 10}
        moved = rows[10]
        assert (moved["b"], moved["big"], moved["f"]) == ("x", "q" * 9000, 0.25)
        assert moved["n"] == Decimal("1.500")
        assert moved["t"].isoformat() == "2026-11-22T08:00:00+00:00"
        assert moved["d"].isoformat() == "2026-11-22"
        assert (moved["y"], moved["o"], moved["free"]) == (b"\x00\xff", True, "7")
        assert json.loads(moved["j"]) == {"k": 1}
        assert moved["u"] == "6ecd8c99-4036-403d-bf84-cf8400f67836"
        assert rows[3]["big"] is None
        follower.stop()


def test_a_restart_after_an_idle_spell_goes_on_and_copies_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.run("CREATE TABLE quiet (id int PRIMARY KEY)", "INSERT INTO quiet VALUES (1)")
    options = (
        *("--tables", "quiet", "--slot", "quiet", "--publication", "quiet"),
        *("--origin", "quiet"),
    )
    with (
        Daemon.start(tmp_path / "d", replication__max_lag="100ms") as daemon,
        fl.connect(daemon.flight) as client,
    ):

        def keys() -> set[int]:
            return set(query(client, ("pg", "quiet"))["id"].to_pylist())

        # The stream is silent, and the server asks for the reader's position.
        with following(cluster, daemon, tmp_path, *options) as follower:
            until(lambda: "copied 1 rows" in follower.said(), "the copy", PATIENCE_S)
            behind = lsn(cluster, "SELECT pg_current_wal_insert_lsn()")
            [(asked,)] = cluster.run("CHECKPOINT", "SELECT clock_timestamp()")
            until(lambda: answered(cluster, behind, asked), "the answer", PATIENCE_S)
            follower.stop()
        with following(cluster, daemon, tmp_path, *options) as follower:
            until(lambda: active(cluster, "quiet"), "the stream", PATIENCE_S)
            cluster.run("INSERT INTO quiet VALUES (2)")
            until(lambda: keys() == {1, 2}, "the change", PATIENCE_S)
            # The source's log grows without changes of the table.
            cluster.run("CREATE TABLE noise AS SELECT generate_series(1, 20000) AS n", "CHECKPOINT")
            slot = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'quiet'"
            end = lsn(cluster, "SELECT pg_current_wal_insert_lsn()")
            until(lambda: lsn(cluster, slot) >= end, "the slot to pass that", PATIENCE_S)
            follower.stop()
        cluster.run("DELETE FROM quiet WHERE id = 1", "INSERT INTO quiet VALUES (3)")
        with following(cluster, daemon, tmp_path / "d", *options) as follower:
            until(lambda: keys() == {2, 3}, "what came meanwhile", PATIENCE_S)
            assert "copied" not in follower.said()
            follower.stop()
        # Another slot cannot resume there: each start is refused, and the slot is not created.
        again = ("--tables", "quiet", "--slot", "another", "--publication", "quiet")
        for _ in range(2):
            with following(
                cluster, daemon, tmp_path / "d", *again, "--origin", "quiet"
            ) as follower:
                assert follower.process.wait(60) == 1
                assert "choose another --origin" in follower.said()
        made = cluster.run("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'another'")
        assert made == []
        # A missing table is reported, and nothing is created either.
        absent = ("--tables", "absent", "--slot", "another", "--publication", "another")
        with following(cluster, daemon, tmp_path / "d", *absent) as follower:
            assert follower.process.wait(60) == 1
            assert "table absent does not exist; what helps: correct --tables" in follower.said()
        assert cluster.run("SELECT 1 FROM pg_publication WHERE pubname = 'another'") == []


def test_copies_that_the_source_ends_are_retried_without_a_traceback(
    cluster: Cluster, tmp_path: Path
) -> None:
    """psycopg2 prints one in about half of the cases, unless the command prevents it."""
    cluster.run(
        "CREATE TABLE long (a int PRIMARY KEY, b text)",
        "INSERT INTO long SELECT n, repeat(md5(n::text), 3000) FROM generate_series(1, 1500) AS n",
    )
    options = (
        *("--tables", "long", "--slot", "long", "--publication", "long"),
        *("--origin", "long"),
    )
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_progress_copy WHERE bytes_processed > 0"
    with (
        Daemon.start(tmp_path / "d") as daemon,
        following(cluster, daemon, tmp_path, *options) as follower,
    ):
        for _ in range(4):
            until(lambda: cluster.run(end) != [], "a running copy", PATIENCE_S)
        until(lambda: "copied 1500 rows" in follower.said(), "the copy", PATIENCE_S)
        assert "Error" not in follower.said()
        follower.stop()
