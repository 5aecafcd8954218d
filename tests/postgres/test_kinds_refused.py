"""Refused starts are refused each time, with one line, and leave nothing behind."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg2
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.warm import warm
from tests.drivers.wire import ARROW_AND_FLIGHT
from tests.postgres.cluster import Cluster, serve_or_skip
from tests.postgres.comparing import compare, source_tables
from tests.postgres.replicating import replicating

PATIENCE_S = 40.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server with three slots, so that a test can use all of them."""
    settings = {"max_replication_slots": "3"}
    with serve_or_skip(tmp_path_factory.mktemp("postgres"), settings=settings) as running:
        running.run(
            "CREATE DATABASE other",
            "CREATE ROLE reader LOGIN",
            "CREATE TABLE items (id int PRIMARY KEY, v text)",
            "CREATE TABLE keyless (id int)",
            "INSERT INTO items VALUES (1, 'a')",
            "INSERT INTO keyless VALUES (1)",
        )
        yield running


Start = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def start(shared: Daemon, cluster: Cluster) -> Start:
    """Start a replicator that is expected to exit."""

    def run(namespace: str, *options: str, dsn: str = "") -> subprocess.CompletedProcess[bytes]:
        command = ["replicate", "postgres", dsn or cluster.dsn, namespace, *options]
        return warm().run([*command, "--endpoint", shared.flight], {}, Path("/"))

    return run


def left(cluster: Cluster, *, dsn: str = "") -> tuple[list[str], list[str]]:
    """Return the existing slots and publications."""
    connection = psycopg2.connect(dsn or cluster.dsn)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT slot_name::text FROM pg_replication_slots ORDER BY 1")
            slots = [name for (name,) in cursor.fetchall()]
            cursor.execute("SELECT pubname::text FROM pg_publication ORDER BY 1")
            return slots, [name for (name,) in cursor.fetchall()]
    finally:
        connection.close()


def told(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the error of a refused start: no traceback, and the reason in the last line."""
    assert done.returncode not in (0, None), done.stdout
    said = done.stderr.decode()
    assert "Traceback" not in said
    return said.strip().splitlines()[-1]


def equal(cluster: Cluster, daemon: Daemon, namespace: str) -> bool:
    connection = psycopg2.connect(cluster.dsn)
    try:
        [table] = [each for each in source_tables(connection) if each.name == "items"]
        with fl.connect(daemon.flight) as client:
            return compare(connection, client, namespace, table) is None
    except ARROW_AND_FLIGHT:
        return False
    finally:
        connection.close()


def test_permanent_errors_end_at_once_and_leave_nothing(cluster: Cluster, start: Start) -> None:
    before = left(cluster)
    wrong = cluster.dsn.replace
    assert "nobody" in told(start("refused", dsn=wrong("user=bench", "user=nobody")))
    assert "nowhere" in told(start("refused", dsn=wrong("dbname=postgres", "dbname=nowhere")))
    assert "replication" in told(start("refused", dsn=wrong("user=bench", "user=reader"))).lower()
    assert "nosuch" in told(start("refused", "--tables", "nosuch"))
    cluster.run(*(f"SELECT pg_create_physical_replication_slot('taken{n}')" for n in range(3)))
    assert "slot" in told(start("refused"))
    cluster.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    assert left(cluster) == before
    # The source is not blocked: it accepts updates of keyless tables.
    cluster.run("UPDATE keyless SET id = 2")


def test_a_server_that_does_not_log_enough_is_refused(start: Start, tmp_path: Path) -> None:
    with serve_or_skip(tmp_path, settings={"wal_level": "replica"}) as little:
        little.run("CREATE TABLE items (id int PRIMARY KEY)")
        assert "wal_level" in told(start("little", dsn=little.dsn))
        assert left(little) == ([], [])


def test_a_lost_slot_is_refused_each_time_until_all_is_copied_anew(
    cluster: Cluster, shared: Daemon, start: Start, tmp_path: Path
) -> None:
    with replicating(cluster.dsn, shared.flight, "lost", tmp_path) as replicator:
        until(lambda: equal(cluster, shared, "lost"), "the copy", PATIENCE_S)
        replicator.stop()
        cluster.run("INSERT INTO items VALUES (2, 'b')")
        before = left(cluster)
        cluster.run("SELECT pg_drop_replication_slot('ingester')")
        cluster.run("INSERT INTO items VALUES (3, 'c')")
        for _ in range(2):
            assert "--resync-all" in told(start("lost"))
            assert left(cluster) == ([], before[1])
        replicator.start("--resync-all")
        until(lambda: equal(cluster, shared, "lost"), "the new copy", PATIENCE_S)
        replicator.stop()
        # Another database is another source, even under the same name.
        other = cluster.dsn.replace("dbname=postgres", "dbname=other")
        for _ in range(2):
            said = told(start("lost", dsn=other))
            assert "database" in said
            assert left(cluster, dsn=other)[1] == []
        replicator.start()
        cluster.run("DELETE FROM items WHERE id = 1")
        until(lambda: equal(cluster, shared, "lost"), "what came later", PATIENCE_S)
        replicator.stop()
    assert equal(cluster, shared, "lost")
