"""After a failover the copy equals its source, or the replicator refuses on every start."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingester.client import Client
from ingester.postgres.options import Names
from ingester.postgres.verify.differences import all_equal
from ingester.postgres.verify.verifying import VerifyPlan, verify
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.postgres.failover import Node, Servers, caught_up, ids, promote, servers
from tests.postgres.replicating import Replicating, replicating
from tests.postgres.versions import NEWEST

PATIENCE_S = 60.0


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Servers]:
    with servers(tmp_path) as found:
        yield found


def begun(several: Servers) -> Node:
    primary = several.primary()
    primary.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 9)")
    primary.run("CREATE TABLE idle (id int PRIMARY KEY)")
    return primary


def rows(shared: Daemon, namespace: str) -> list[int]:
    with Client(shared.flight) as client:
        return sorted(client.query(namespace, "t")["id"].to_pylist())


def follows(shared: Daemon, namespace: str, source: Node) -> None:
    """Wait until the copy has the source's rows."""
    wanted = ids(source.run("SELECT id FROM t"))
    until(lambda: rows(shared, namespace) == wanted, "the source's rows", PATIENCE_S)


def is_equal(shared: Daemon, namespace: str, dsn: str, origin: str = "") -> bool:
    with Client(shared.flight) as client:
        return all_equal(verify(VerifyPlan(dsn, namespace, origin, Names()), client))


def refused(replicator: Replicating, *words: str) -> None:
    """The replicator ends by itself, and its last words say why."""
    assert replicator.ended(PATIENCE_S) == 1, replicator.said[-3000:]
    replicator.kill()
    last = replicator.said.splitlines()[-1]
    for word in words:
        assert word in last, replicator.said[-3000:]


def stays_refused(
    replicator: Replicating, shared: Daemon, namespace: str, source: Node, *words: str
) -> None:
    """Every start is refused, whatever the source writes, until all is copied."""
    for number in (2000, 2001):
        refused(replicator, *words, "--resync-all")
        source.run(f"INSERT INTO t SELECT generate_series({number}00, {number}99)")
        replicator.start()
    refused(replicator, *words, "--resync-all")
    replicator.start("--resync-all")
    follows(shared, namespace, source)
    assert is_equal(shared, namespace, source.dsn)
    source.run("INSERT INTO t VALUES (3000)")
    follows(shared, namespace, source)


def copied(several: Servers, primary: Node, shared: Daemon, namespace: str, folder: Path) -> None:
    """Copy the tables of a new primary, and stop."""
    folder.mkdir(exist_ok=True)
    with replicating(primary.dsn, shared.flight, namespace, folder) as replicator:
        until(lambda: replicator.said.count(" rows of ") == 2, "the copies", PATIENCE_S)
        replicator.stop()


@pytest.mark.parametrize("lost", [0, 3, 20])
def test_a_promoted_standby_is_followed_unless_it_lacks_changes_that_were_read(
    lost: int, several: Servers, shared: Daemon, tmp_path: Path
) -> None:
    primary, namespace = begun(several), f"failover-{lost}"
    copied(several, primary, shared, namespace, tmp_path / "before")
    standby = several.standby(primary)
    dsn = several.dsn(primary, standby)
    with replicating(dsn, shared.flight, namespace, tmp_path) as replicator:
        primary.run("INSERT INTO t SELECT generate_series(10, 19)")
        caught_up(standby, primary)
        if lost:
            standby.end()
        primary.run(*(f"INSERT INTO t VALUES ({number})" for number in range(100, 100 + lost)))
        follows(shared, namespace, primary)
        primary.end()
        if lost:
            standby.start(primary_conninfo="host=/nowhere")
        promote(standby)
        standby.run("INSERT INTO t SELECT generate_series(1000, 1999)")
        if lost:
            stays_refused(replicator, shared, namespace, standby, "on timeline 2", "timeline 1")
            return
        follows(shared, namespace, standby)
        assert is_equal(shared, namespace, standby.dsn)
        assert " rows of " not in replicator.said


@pytest.mark.parametrize("lost", [0, 5])
def test_a_cascaded_standby_is_followed_unless_the_second_failover_lost_changes(
    lost: int, several: Servers, shared: Daemon, tmp_path: Path
) -> None:
    primary, namespace = begun(several), f"cascaded-{lost}"
    copied(several, primary, shared, namespace, tmp_path / "before")
    first = several.standby(primary)
    second = several.standby(first)
    primary.run("INSERT INTO t VALUES (10)")
    caught_up(first, primary)
    primary.end()
    promote(first)
    first.run("INSERT INTO t VALUES (20)")
    caught_up(second, first)
    second.end()
    dsn = several.dsn(primary, first, second)
    with replicating(dsn, shared.flight, namespace, tmp_path) as replicator:
        follows(shared, namespace, first)
        first.run(*(f"INSERT INTO t VALUES ({number})" for number in range(100, 100 + lost)))
        follows(shared, namespace, first)
        first.end()
        second.start(primary_conninfo="host=/nowhere")
        promote(second)
        second.run("INSERT INTO t SELECT generate_series(1000, 1999)")
        if lost:
            stays_refused(replicator, shared, namespace, second, "on timeline 3", "timeline 2")
            return
        follows(shared, namespace, second)
        assert is_equal(shared, namespace, second.dsn)
        assert " rows of " not in replicator.said


@pytest.mark.parametrize("created", [False, True])
def test_a_promoted_standby_without_the_slot_is_refused(
    created: bool, several: Servers, shared: Daemon, tmp_path: Path
) -> None:
    """patroni/patroni#1056, #1749: a slot that is created after the failover skips changes."""
    primary, namespace = begun(several), f"no-slot-{created}"
    copied(several, primary, shared, namespace, tmp_path / "before")
    standby = several.standby(primary, slots=False)
    primary.run("INSERT INTO t VALUES (10)")
    caught_up(standby, primary)
    primary.end()
    promote(standby)
    standby.run("INSERT INTO t VALUES (11)")
    said = "slot 'ingester' was dropped"
    if created:
        standby.run("SELECT pg_create_logical_replication_slot('ingester', 'pgoutput')")
        said = "it was created again"
    with replicating(standby.dsn, shared.flight, namespace, tmp_path) as replicator:
        stays_refused(replicator, shared, namespace, standby, said)


def test_a_slot_that_the_servers_synchronise_is_followed(tmp_path: Path, shared: Daemon) -> None:
    with servers(tmp_path, NEWEST) as several:
        primary, namespace = begun(several), "synchronised"
        primary.run(
            "SELECT pg_create_physical_replication_slot('standby')",
            "SELECT pg_create_logical_replication_slot('ingester', 'pgoutput', failover => true)",
        )
        copied(several, primary, shared, namespace, tmp_path / "before")
        settings = {"hot_standby_feedback": "on", "sync_replication_slots": "on"}
        standby = several.standby(primary, slots=False, primary_slot_name="standby", **settings)
        primary.run("INSERT INTO t VALUES (10)")
        dsn = several.dsn(primary, standby)
        with replicating(dsn, shared.flight, namespace, tmp_path) as replicator:
            follows(shared, namespace, primary)

            def is_synchronised() -> bool:
                # The standby takes the slot once it needs nothing that the standby has removed.
                primary.run("INSERT INTO t SELECT max(id) + 1 FROM t")
                primary.run("SELECT pg_log_standby_snapshot()")
                with Client(shared.flight) as client:
                    client.persist(namespace, "t")
                synchronised = "SELECT synced AND NOT temporary FROM pg_replication_slots"
                return standby.run(synchronised) == [(True,)]

            until(is_synchronised, "the slot on the standby", PATIENCE_S)
            follows(shared, namespace, primary)
            caught_up(standby, primary)
            primary.end()
            promote(standby)
            standby.run("INSERT INTO t SELECT generate_series(1000, 1999)")
            follows(shared, namespace, standby)
            assert is_equal(shared, namespace, standby.dsn)
            assert " rows of " not in replicator.said


@pytest.mark.parametrize("later", [False, True])
def test_a_source_that_was_restored_from_a_copy_of_its_files_is_refused(
    later: bool, several: Servers, shared: Daemon, tmp_path: Path
) -> None:
    primary, namespace = begun(several), f"restored-{later}"
    copied(several, primary, shared, namespace, tmp_path / "before")
    files = several.snapshot(primary)
    with replicating(primary.dsn, shared.flight, namespace, tmp_path) as replicator:
        primary.run(*(f"INSERT INTO t VALUES ({number})" for number in range(100, 120)))
        follows(shared, namespace, primary)
        if later:
            replicator.stop()
        primary.end()
        shutil.rmtree(primary.data)
        files.rename(primary.data)
        primary.start()
        if later:
            # By now its log is longer than what was read.
            primary.run("INSERT INTO t SELECT generate_series(10000, 19999)")
            replicator.start()
        stays_refused(replicator, shared, namespace, primary, "restored from a backup")


def test_a_source_that_was_restored_from_long_before_is_copied_under_another_origin(
    several: Servers, shared: Daemon, tmp_path: Path
) -> None:
    primary, namespace = begun(several), "restored-far"
    copied(several, primary, shared, namespace, tmp_path / "before")
    files = several.snapshot(primary)
    with replicating(primary.dsn, shared.flight, namespace, tmp_path) as replicator:
        for number in range(100, 106):
            primary.run(f"INSERT INTO t VALUES ({number})", "SELECT pg_switch_wal()")  # 16 MiB
        follows(shared, namespace, primary)
        primary.end()
        shutil.rmtree(primary.data)
        files.rename(primary.data)
        primary.start()
        refused(replicator, "restored from a backup")
        replicator.start("--resync-all")
        refused(replicator, "choose another --origin and --slot")
        replicator.start("--origin", "later", "--slot", "later")
        follows(shared, namespace, primary)
        assert is_equal(shared, namespace, primary.dsn, "later")
