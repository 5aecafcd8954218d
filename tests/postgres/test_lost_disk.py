"""The daemon's disk is lost, and what comes next finds the copy to be as the source is."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from ingester.client import Client, RetryPolicy
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.postgres.cluster import Cluster
from tests.postgres.replicating import Replicating, replicating, steady_daemon

TABLES = ("kept", "lost")
PATIENCE_S = 60.0


def ids(client: Client, table: str) -> list[int]:
    return sorted(client.query("shop", table, columns=["id"]).column("id").to_pylist())


def without_its_disk(daemon: Daemon) -> Daemon:
    daemon.kill()
    shutil.rmtree(daemon.data_dir)
    return daemon.again(recovery__accept_lost_log="true")


def stand_still(replicator: Replicating) -> None:
    replicator.process.send_signal(signal.SIGSTOP)


def go_on(replicator: Replicating) -> None:
    replicator.process.send_signal(signal.SIGCONT)


def test_what_was_in_the_log_only_is_sent_again_before_anything_newer(
    cluster: Cluster, tmp_path: Path
) -> None:
    """One table is in object storage and the other is not: the origin has come far in the first."""
    cluster.run(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in TABLES))
    daemon = steady_daemon(tmp_path / "d", store=f"file://{tmp_path}/store", persist__max_age="1h")
    try:
        retry = RetryPolicy(for_s=PATIENCE_S)
        with (
            Client(daemon.flight, retry=retry) as client,
            replicating(cluster.dsn, daemon.flight, "shop", tmp_path) as replicator,
        ):
            copied = [f"rows of public.{name}\n" for name in TABLES]
            until(lambda: all(each in replicator.said for each in copied), "copies", PATIENCE_S)
            cluster.run(*(f"INSERT INTO {n} VALUES ({i})" for i in (1, 2, 3) for n in TABLES[::-1]))
            until(lambda: all(ids(client, n) == [1, 2, 3] for n in TABLES), "rows", PATIENCE_S)
            client.persist("shop", "kept")
            stand_still(replicator)
            cluster.run("INSERT INTO lost VALUES (4)")
            daemon = without_its_disk(daemon)
            assert [ids(client, name) for name in TABLES] == [[1, 2, 3], []]
            go_on(replicator)
            until(lambda: 4 in ids(client, "lost"), "what is new", PATIENCE_S)
            assert [ids(client, name) for name in TABLES] == [[1, 2, 3], [1, 2, 3, 4]]
    finally:
        daemon.kill()
