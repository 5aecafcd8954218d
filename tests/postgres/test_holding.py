"""No change is lost while a table waits for a copy, or after its slot was replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ingester.client import Client
from ingester.client.sync_stream import SyncColumn
from ingester.postgres.copying import copy_table
from ingester.postgres.options import Options
from ingester.postgres.planning import look
from ingester.postgres.replicator import Replicator
from ingester.postgres.tables import Tables
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.postgres.cluster import Cluster, serve_or_skip
from tests.postgres.replicating import Replicating, replicating

SLOTS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"max_replication_slots": str(SLOTS)}
    with serve_or_skip(tmp_path_factory.mktemp("postgres"), settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    with Daemon.start(folder / "d", replication__max_lag="100ms", persist__max_age="1s") as running:
        yield running


def follows(name: str, *tables: str) -> tuple[str, ...]:
    """Return the options of a replicator with its own slot, publication and origin."""
    named = ("--slot", name, "--publication", name, "--origin", name)
    return (*named, "--tables", ",".join(tables))


@contextmanager
def copied(
    cluster: Cluster, daemon: Daemon, folder: Path, name: str, *tables: str
) -> Iterator[Replicating]:
    """A replicator that has copied the tables."""
    options = follows(name, *tables)
    with replicating(cluster.dsn, daemon.flight, name, folder, *options) as found:
        until(lambda: found.said.count(" rows of ") == len(tables), "the copies")
        yield found


def rows(daemon: Daemon, namespace: str, table: str) -> list[int]:
    with Client(daemon.flight) as client:
        return sorted(client.query(namespace, table)["id"].to_pylist())


def source(cluster: Cluster, table: str) -> list[int]:
    return [number for (number,) in cluster.run(f"SELECT id FROM {table} ORDER BY id")]


def confirmed(cluster: Cluster, slot: str) -> int:
    [(lsn,)] = cluster.run(
        "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::int8 FROM pg_replication_slots"
        f" WHERE slot_name = '{slot}'"
    )
    return int(lsn)


def end(cluster: Cluster) -> int:
    [(lsn,)] = cluster.run("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8")
    return int(lsn)


def free_slots(cluster: Cluster) -> int:
    [(used,)] = cluster.run("SELECT count(*) FROM pg_replication_slots")
    return SLOTS - int(used)


def test_what_is_passed_over_of_a_table_whose_copy_fails_is_copied_after_a_kill(
    cluster: Cluster, daemon: Daemon, tmp_path: Path
) -> None:
    cluster.run(
        "CREATE TABLE waits (id int PRIMARY KEY)",
        "CREATE TABLE goes_on (id int PRIMARY KEY)",
    )
    with (
        copied(cluster, daemon, tmp_path, "holding", "waits", "goes_on") as replicator,
        Client(daemon.flight) as client,
    ):
        taken = [f"taken_{number}" for number in range(free_slots(cluster))]
        cluster.run(*(f"SELECT pg_create_physical_replication_slot('{name}')" for name in taken))
        Tables(client, "holding", "holding").request(["waits"])
        until(lambda: "copy postponed" in replicator.said, "a copy that fails")
        cluster.run("INSERT INTO waits VALUES (1)", "INSERT INTO goes_on VALUES (1)")
        last = end(cluster)
        cluster.run("INSERT INTO goes_on VALUES (2)")
        # The source may now discard the skipped row, so the replicator must have recorded the gap.
        until(lambda: confirmed(cluster, "holding") >= last, "the slot to go on")
        replicator.kill()
        cluster.run(*(f"SELECT pg_drop_replication_slot('{name}')" for name in taken))
        cluster.run("INSERT INTO waits VALUES (2)")
        replicator.start()
        until(lambda: rows(daemon, "holding", "waits") == [1, 2], "all rows")
        assert rows(daemon, "holding", "goes_on") == [1, 2]


def test_a_slot_that_is_made_anew_between_two_sessions_is_refused(
    cluster: Cluster, daemon: Daemon, tmp_path: Path
) -> None:
    import psycopg2

    cluster.run("CREATE TABLE cut (id int PRIMARY KEY)")
    with copied(cluster, daemon, tmp_path, "anew", "cut") as replicator:
        gone = False
        while not gone:
            cluster.run(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE slot_name = 'anew'"
            )
            try:
                cluster.run(
                    "SELECT pg_create_logical_replication_slot('anew', 'pgoutput')"
                    " FROM pg_drop_replication_slot('anew')"
                )
                gone = True
            except psycopg2.errors.ObjectInUse:
                assert replicator.process.poll() is None, replicator.said
        assert replicator.ended() == 1
        assert "it was created again" in replicator.said
    cluster.run("SELECT pg_drop_replication_slot('anew')")


def test_a_source_that_has_less_than_was_read_from_it_is_refused(
    cluster: Cluster, daemon: Daemon, tmp_path: Path
) -> None:
    cluster.run("CREATE TABLE restored (id int PRIMARY KEY)")
    with Client(daemon.flight) as client:
        batch = pa.record_batch([pa.nulls(1, pa.int32()), pa.array([1], pa.int32())], ["0", "1"])
        columns = (SyncColumn("old_pk", "id"), SyncColumn("new_pk", "id"))
        stream = client.sync("older", "older")
        stream.send("restored", columns, batch, begin=True, sequence=end(cluster) + (1 << 30))
    options = follows("older", "restored")
    with replicating(cluster.dsn, daemon.flight, "older", tmp_path, *options) as replicator:
        assert replicator.ended() == 1
        assert "was restored from a backup" in replicator.said
    assert cluster.run("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'older'") == []


def test_the_slot_waits_for_a_round_of_copies_that_ends_during_a_look(
    cluster: Cluster, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = ("looked_at", "beside")
    cluster.run(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in tables))
    again, nearly, looking = threading.Event(), threading.Event(), threading.Event()

    def look_until_the_round_is_over(*arguments: Any) -> Any:
        if nearly.is_set() and not looking.is_set():
            assert found.running is not None
            looking.set()
            found.running.copier.join(30)
        return look(*arguments)

    def copy_until_a_look(*arguments: Any) -> Any:
        copied_table = copy_table(*arguments)
        if again.is_set():
            cluster.run(*(f"INSERT INTO {name} VALUES (1)" for name in tables))
            last = end(cluster)
            cluster.run("INSERT INTO beside VALUES (2)")
            until(lambda: (found.progress.durable or 0) >= last, "a change beside it in files")
            nearly.set()
            assert looking.wait(30)
        return copied_table

    monkeypatch.setattr("ingester.postgres.watching.look", look_until_the_round_is_over)
    monkeypatch.setattr("ingester.postgres.copying.copy_table", copy_until_a_look)
    said: list[str] = []
    stop = threading.Event()
    options = Options(
        cluster.dsn,
        "rounds",
        tables=tables,
        publication="rounds",
        slot="rounds",
        origin="rounds",
        look_every_s=1.0,
    )
    with Client(daemon.flight) as client:
        found = Replicator(options, client, say=said.append, stopped=stop.is_set)
        thread = threading.Thread(target=found.run, daemon=True)
        thread.start()
        try:
            until(lambda: sum(" rows of " in each for each in said) == 2, "the copies")
            again.set()
            Tables(client, "rounds", "rounds").request(["looked_at"])
            until(lambda: rows(daemon, "rounds", "looked_at") == [1], "what came beside its copy")
        finally:
            stop.set()
            thread.join(30)
        assert not thread.is_alive()
