"""A source that crashes while it is read is left alone, with advice that helps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from ingester.cli.exits import CommandFailed
from ingester.cli.replicate import check_postgres
from ingester.client import Client
from ingester.postgres.options import Names, Options
from ingester.postgres.replicator import MOST_CRASHES, Crashes
from ingester.postgres.verify.differences import all_equal
from ingester.postgres.verify.verifying import VerifyPlan, verify
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.postgres.cluster import Cluster
from tests.postgres.replicating import Replicating, replicating

PATIENCE_S = 60.0
FINALIZE = "ALTER TABLE public.p DETACH PARTITION public.p_1 FINALIZE"


def has_crashed(cluster: Cluster, times: int) -> bool:
    return cluster.crashes >= times


def partitioned(cluster: Cluster) -> None:
    """A partitioned table under a publication of all tables, by their roots."""
    cluster.run(
        "DROP PUBLICATION IF EXISTS everything",
        "DROP TABLE IF EXISTS p, p_1",
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (100) TO (200)",
        "INSERT INTO p VALUES (1), (101)",
        "CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root)",
    )


def interrupt_detach(cluster: Cluster) -> None:
    """Begin to detach a partition, and cancel that while it waits for a reader."""
    import psycopg2

    reader, owner = psycopg2.connect(cluster.dsn), psycopg2.connect(cluster.dsn)
    reader.cursor().execute("SELECT * FROM p")
    owner.autocommit = True

    def detach() -> None:
        with pytest.raises(psycopg2.errors.QueryCanceled):
            owner.cursor().execute("ALTER TABLE p DETACH PARTITION p_1 CONCURRENTLY")

    thread = threading.Thread(target=detach)
    thread.start()
    pending = "SELECT count(*) FROM pg_inherits WHERE inhdetachpending"
    until(lambda: cluster.run(pending) == [(1,)], "a partition to be half detached")
    owner.cancel()
    thread.join()
    reader.close()
    owner.close()


@contextmanager
def copied(cluster: Cluster, shared: Daemon, namespace: str, folder: Path) -> Iterator[Replicating]:
    options = ("--publication", "everything", "--slot", namespace)
    with replicating(cluster.dsn, shared.flight, namespace, folder, *options) as replicator:
        until(lambda: " rows of " in replicator.said, "the copy", PATIENCE_S)
        yield replicator
        replicator.kill()
    drop = f"SELECT pg_drop_replication_slot('{namespace}')"
    until(lambda: _is_dropped(cluster, drop), "the slot to be free", PATIENCE_S)


def _is_dropped(cluster: Cluster, drop: str) -> bool:
    import psycopg2

    try:
        cluster.run(drop)
    except psycopg2.errors.ObjectInUse:
        return False
    return True


def test_a_partition_that_is_half_detached_is_told_before_the_server_crashes(
    cluster: Cluster, shared: Daemon, tmp_path: Path
) -> None:
    partitioned(cluster)
    crashes = cluster.crashes
    with copied(cluster, shared, "detaching", tmp_path) as replicator:
        interrupt_detach(cluster)
        assert replicator.ended() == 1
        assert f"what helps: {FINALIZE}" in replicator.said
        options = Options(cluster.dsn, "x", publication="everything")
        with pytest.raises(CommandFailed, match=r"DETACH .* public\.p_1 was interrupted"):
            check_postgres(options, True)
        replicator.kill()
        replicator.start()
        assert replicator.ended() == 1
        # Nothing was written to the partition meanwhile, so the advice is all that is needed.
        cluster.run(FINALIZE, "INSERT INTO p VALUES (102)")
        replicator.kill()
        replicator.start()
        with Client(shared.flight) as client:
            until(
                lambda: sorted(client.query("detaching", "p")["id"].to_pylist()) == [101, 102],
                "the rows of the other partition",
                PATIENCE_S,
            )
    assert cluster.crashes == crashes


def test_a_row_that_crashes_the_server_is_read_a_few_times_and_never_again(
    cluster: Cluster, shared: Daemon, tmp_path: Path
) -> None:
    partitioned(cluster)
    with copied(cluster, shared, "crashing", tmp_path) as replicator:
        replicator.stop()
        interrupt_detach(cluster)
        cluster.run("INSERT INTO p_1 VALUES (2)", FINALIZE, "INSERT INTO p VALUES (102)")
        said = f"the server crashed {MOST_CRASHES} times in succession"
        crashes = cluster.crashes
        for start, more in ((), 3), ((), 0), (("--resume",), 3), ((), 0):
            replicator.start(*start)
            assert replicator.ended(90.0) == 1
            replicator.kill()
            assert said in replicator.said.splitlines()[-1]
            until(partial(has_crashed, cluster, crashes + more), f"{crashes + more} crashes")
            # A session may read a message more than the previous one before the server crashes.
            assert cluster.crashes <= crashes + (more and more + 2)
            crashes = cluster.crashes
        replicator.start("--resync-all")
        with Client(shared.flight) as client:
            until(
                lambda: sorted(client.query("crashing", "p")["id"].to_pylist()) == [101, 102],
                "a new copy",
                PATIENCE_S,
            )
            plan = VerifyPlan(cluster.dsn, "crashing", "", Names(), ("p",))
            assert all_equal(verify(plan, client))
        assert cluster.crashes == crashes


def test_sessions_that_read_further_or_end_otherwise_are_not_counted() -> None:
    crashes = Crashes()
    assert all(crashes.begin((number,), 10 * number, None) for number in range(20))
    assert all(crashes.begin((20,), 0, "t") for _ in range(20))
    assert [crashes.begin((number,), 1000, None) for number in (21, 22, 23)] == [True, True, False]
    early = Crashes()  # The second of each pair connects before the server notices the crash.
    assert [early.begin((number // 2,), 0, None) for number in range(7)] == [True] * 6 + [False]
    copies = Crashes()
    assert copies.begin((0,), 0, None)
    found = [copies.begin((number,), 10 * number, "large") for number in (1, 2, 3)]
    assert found == [True, True, False]
