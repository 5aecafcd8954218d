"""After the daemon's disk is lost, the copy becomes equal to the source again."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from ingester.client import Client, RetryPolicy
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.postgres.cluster import Cluster
from tests.postgres.replicating import Replicating, replicating, steady_daemon

PATIENCE_S = 60.0
Rows = list[tuple[int, str | None]]


class Copy:
    """Tables of a source, ``id`` and ``v``, and their copy at a daemon that may lose its disk."""

    def __init__(
        self, cluster: Cluster, daemon: Daemon, client: Client, replicator: Replicating
    ) -> None:
        self.client = client
        self.replicator = replicator
        self.daemon = daemon
        self._cluster = cluster

    def rows(self, table: str) -> Rows:
        found = self.client.query("shop", table, columns=["id", "v"]).to_pylist()
        return sorted((row["id"], row["v"]) for row in found)

    def change(self, table: str, statement: str) -> None:
        """Run one transaction at the source and wait until the copy has it."""
        self._cluster.run(statement)
        self.follow(table)

    def follow(self, table: str) -> None:
        """Wait until a table equals its source."""
        until(lambda: self.rows(table) == self.source(table), f"{table} to be equal", PATIENCE_S)

    def source(self, table: str) -> Rows:
        return sorted(self._cluster.run(f"SELECT id, v FROM {table}"))

    @contextmanager
    def replicator_stands(self) -> Iterator[None]:
        """Suspend the replicator, so that it sends nothing and notices nothing."""
        self.replicator.process.send_signal(signal.SIGSTOP)
        yield
        self.replicator.process.send_signal(signal.SIGCONT)

    def up_to_date(self) -> None:
        """Wait until the replicator reports the source's current position as applied."""
        [(end,)] = self._cluster.run("SELECT pg_current_wal_lsn()")

        def is_applied() -> bool:
            told = [each["applied"] for each in self.client.status_list("replications")]
            query = "SELECT '{}'::pg_lsn >= '{}'::pg_lsn"
            return any(self._cluster.run(query.format(at, end))[0][0] for at in told if at)

        until(is_applied, "the replicator to be up to date", PATIENCE_S)

    def lose_disk(self) -> None:
        """Kill the daemon, delete its disk, and restart it from object storage."""
        self.daemon.kill()
        shutil.rmtree(self.daemon.data_dir)
        self.daemon = self.daemon.again(recovery__accept_lost_log="true")


@contextmanager
def copying(
    cluster: Cluster,
    folder: Path,
    tables: tuple[str, ...],
    prepare: Callable[[Client], None] = lambda client: None,
    **settings: str,
) -> Iterator[Copy]:
    """A running copy of empty tables; ``prepare`` is called before it starts."""
    cluster.run(*(f"DROP TABLE IF EXISTS {name}" for name in tables))
    cluster.run(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in tables))
    store = f"file://{folder}/store"
    daemon = steady_daemon(folder / "d", store=store, persist__max_age="1h", **settings)
    copy: Copy | None = None
    try:
        with Client(daemon.flight, retry=RetryPolicy(for_s=PATIENCE_S)) as client:
            prepare(client)
            slot = ("--slot", folder.name[-20:].replace("-", "_").lower())
            with replicating(cluster.dsn, daemon.flight, "shop", folder, *slot) as replicator:
                copied = [f"rows of public.{name}\n" for name in tables]
                until(lambda: all(each in replicator.said for each in copied), "copies", PATIENCE_S)
                copy = Copy(cluster, daemon, client, replicator)
                yield copy
    finally:
        (copy.daemon if copy is not None else daemon).kill()


def test_what_was_in_the_log_only_is_sent_again_before_anything_newer(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The first table is in object storage with a late position, and the second is not."""
    with copying(cluster, tmp_path, ("kept", "lost")) as copy:
        for number in (1, 2, 3):
            copy.change("lost", f"INSERT INTO lost VALUES ({number}, 'x')")
            copy.change("kept", f"INSERT INTO kept VALUES ({number}, 'x')")
        copy.client.persist("shop", "kept")
        with copy.replicator_stands():
            cluster.run("INSERT INTO lost VALUES (4, 'x')")
            copy.lose_disk()
            assert [len(copy.rows(name)) for name in ("kept", "lost")] == [3, 0]
        for name in ("lost", "kept"):
            copy.follow(name)


def test_what_files_have_beyond_others_is_not_overwritten_by_what_came_before_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    """One table's file is ahead of the origin: readers may see only its last value."""
    with copying(cluster, tmp_path, ("kept", "lost")) as copy:
        copy.change("lost", "INSERT INTO lost VALUES (1, 'x')")
        copy.change("kept", "INSERT INTO kept VALUES (1, 'old')")
        copy.change("lost", "INSERT INTO lost VALUES (2, 'x')")
        copy.change("kept", "UPDATE kept SET v = 'new'")
        with copy.replicator_stands():  # the server gets no confirmation and resends all of it
            for name in ("kept", "lost"):
                copy.client.persist("shop", name)
            copy.lose_disk()
        copy.up_to_date()
        copy.change("lost", "INSERT INTO lost VALUES (3, 'x')")
        assert copy.rows("kept") == [(1, "new")]
        copy.change("kept", "INSERT INTO kept VALUES (2, 'x')")


def test_a_table_is_copied_anew_where_it_is_not_known_how_far_its_partitions_are(
    cluster: Cluster, tmp_path: Path
) -> None:
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), ("v", pa.string())])

    def parted(client: Client) -> None:
        client.create_table(
            "shop", "parted", schema, primary_key=["id"], partition_by=["bucket(4, id)"]
        )

    with copying(cluster, tmp_path, ("lost", "parted"), parted) as copy:
        copy.change("lost", "INSERT INTO lost VALUES (1, 'x')")
        copy.change("parted", "INSERT INTO parted SELECT n, 'old' FROM generate_series(1, 9) n")
        copy.change("parted", "UPDATE parted SET v = 'new' WHERE id < 5")
        with copy.replicator_stands():
            copy.client.persist("shop", "parted")
            copy.lose_disk()
        copy.change("lost", "INSERT INTO lost VALUES (2, 'x')")
        reason = "parted is copied: the positions of its partitions"
        until(lambda: reason in copy.replicator.said, "a copy", PATIENCE_S)
        copy.change("parted", "UPDATE parted SET v = 'newer' WHERE id > 3")
