"""Regression tests for bugs reported in similar systems.

Each test is named after the failure and cites the reports.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from ingester.client import Client, ClientError
from ingester.followers import (
    Follower,
    FollowOptions,
    Rows,
    SinkFailed,
    TableReplaced,
)
from ingester.followers.files import FilePiece
from persist.manifest import Add, TableState
from persist.store import StoreUnavailable, open_store
from persist.switching import switch_version
from tests.drivers.daemon import Daemon
from tests.drivers.ports import steady_flight
from tests.drivers.pushing import push_some
from tests.drivers.waiting import until
from tests.followers.memory_sink import Disk, MemorySink, content
from tests.followers.test_real_daemon import equal_soon, rows_of, write
from tests.followers.world import World, WorldFiles, copy_of

OPTIONS = FollowOptions(wait_s=0.3, room=1, readers=2)
KEYED = pa.schema([("id", pa.int64()), ("v", pa.string())])


@contextmanager
def following(
    daemon: Daemon, disk: Disk, table: str, kind: type[MemorySink] = MemorySink
) -> Iterator[Follower]:
    follower = Follower(daemon.flight, lambda of: kind(of, disk), options=OPTIONS)
    follower.follow("n", table)
    with follower:
        yield follower


@contextmanager
def served(tmp_path: Path) -> Iterator[tuple[Daemon, Client]]:
    """Yield a daemon that flushes only on request, and a client."""
    daemon = Daemon.start(tmp_path / "d", arguments=steady_flight(), persist__max_age="1h")
    with daemon, Client(daemon.flight) as client:
        yield daemon, client


def test_a_second_snapshot_does_not_come_on_top_of_the_first(tmp_path: Path) -> None:
    """MaterializeInc/materialize#14211, confluentinc/kafka-connect-jdbc#1502: a source lost its
    position and took a second snapshot; the earlier rows stayed, deleted ones included.
    """

    class Newer(MemorySink):
        version = "2"

    disk = Disk()
    with served(tmp_path) as (daemon, client):
        client.create_table("n", "t", KEYED, primary_key=["id"])
        write(client, "t", 0)
        with following(daemon, disk, "t") as follower:
            follower.wait_current(20)
        client.delete("n", "t", {"id": [1, 2]})
        client.persist()
        before = content(disk, keyed=True)
        stopped = Follower(daemon.flight, lambda of: Stops(of, disk), options=OPTIONS)
        stopped.follow("n", "t")
        with stopped, pytest.raises(SinkFailed, match="no room"):
            stopped.wait_current(20)
        assert content(disk, keyed=True) == before, "readers saw half of a copy"
        with following(daemon, disk, "t", Newer) as follower:
            follower.wait_current(20)
            assert content(disk, keyed=True) == rows_of(client, "t")


class Stops(MemorySink):
    """A sink of another version that accepts no rows."""

    version = "3"

    def put(self, rows: Rows) -> None:
        raise OSError("no room")


class Slow(MemorySink):
    """A sink that waits until a test opens its gate."""

    gate = threading.Event()
    reached = threading.Event()

    def put(self, rows: Rows) -> None:
        self.reached.set()
        assert self.gate.wait(30)
        super().put(rows)


def test_a_full_buffer_does_not_stop_recovery_while_rows_come(tmp_path: Path) -> None:
    """risingwavelabs/risingwave#24693, #24991: the channel of live rows was full before the
    snapshot was done, and the two waited for each other.
    """
    disk = Disk()
    Slow.gate.clear()
    Slow.reached.clear()
    with served(tmp_path) as (daemon, client):
        client.create_table("n", "t", KEYED, partition_by=["bucket(4, id)"])
        for number in range(4):
            write(client, "t", number * 100, 100)
            client.persist()
        with following(daemon, disk, "t", Slow) as follower:
            assert Slow.reached.wait(20)
            for number in range(4, 40):
                write(client, "t", number * 100, 100)
                if number % 10 == 0:
                    client.persist()
            Slow.gate.set()
            follower.wait_current(30)
            equal_soon(client, disk, "t")


def test_a_fill_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """risingwavelabs/risingwave#13795, debezium/debezium#7738: a restart lost a snapshot's
    progress; risingwave#20159: a snapshot was reported as done while rows remained.
    """
    disk = Disk()
    with served(tmp_path) as (daemon, client):
        for number in range(6):
            write(client, "t", number * 10)
            client.persist()

        class Dies(MemorySink):
            puts = 0

            def put(self, rows: Rows) -> None:
                Dies.puts += 1
                if Dies.puts in (2, 5):
                    raise OSError("killed")
                super().put(rows)

        for _ in range(2):
            with (
                following(daemon, disk, "t", Dies) as follower,
                pytest.raises(SinkFailed, match="killed"),
            ):
                follower.wait_current(20)
        with following(daemon, disk, "t", Dies) as follower:
            follower.wait_current(20)
            assert content(disk, keyed=False) == rows_of(client, "t")


@pytest.mark.parametrize("is_pushed", [False, True])
def test_a_table_of_the_same_name_is_not_taken_for_the_one_before(
    tmp_path: Path, is_pushed: bool
) -> None:
    """electric-sql/electric#1689, #2441, apache/kafka#22248 (MirrorMaker 2): a table was dropped
    and created again, and replication resumed at the old position.
    """
    disk = Disk()
    with Daemon.start(tmp_path / "d", arguments=steady_flight(), persist__max_age="1h") as daemon:
        with Client(daemon.flight) as client:
            for number in range(3):
                write(client, "t", number)
                client.persist()
            if is_pushed:
                store = open_store(f"file://{daemon.data_dir / 'store'}")
                switch_version(store, "n", "t", push_some(store, ("n", "t")))
            with following(daemon, disk, "t") as follower:
                follower.wait_current(20)
        daemon.terminate()
        shutil.rmtree(tmp_path / "d" / "store" / "n" / "t")
        daemon = daemon.again()
        with Client(daemon.flight) as client:
            write(client, "t", 1000)
            client.persist()
            with (
                following(daemon, disk, "t") as follower,
                pytest.raises(TableReplaced, match="seek to the beginning"),
            ):
                follower.wait_current(20)
            again = Follower(daemon.flight, lambda of: MemorySink(of, disk), options=OPTIONS)
            again.follow("n", "t", seek="beginning")
            with again:
                again.wait_current(20)
                assert content(disk, keyed=False) == rows_of(client, "t")
        daemon.kill()


@pytest.mark.parametrize("versions", [1, 8])
def test_a_running_follower_notices_that_its_table_was_created_again(
    versions: int, tmp_path: Path
) -> None:
    """The same while the follower runs: the daemon is gone for a moment, and its table is new."""
    disk = Disk()
    with Daemon.start(tmp_path / "d", arguments=steady_flight(), persist__max_age="1h") as daemon:
        with Client(daemon.flight) as client:
            for number in range(3):
                write(client, "t", number)
                client.persist()
        with following(daemon, disk, "t") as follower:
            follower.wait_current(20)
            before = content(disk, keyed=False)
            daemon.terminate()
            shutil.rmtree(tmp_path / "d" / "store" / "n" / "t")
            daemon = daemon.again()
            with Client(daemon.flight) as client:
                for number in range(versions):
                    write(client, "t", 1000 + number)
                    client.persist()

            def noticed() -> bool:
                try:
                    follower.wait_current(1.0)
                except TableReplaced:
                    return True
                except ClientError:
                    return False
                return content(disk, keyed=False) != before

            until(noticed, "the follower to notice", 30.0)
            assert content(disk, keyed=False) == before
        daemon.kill()


def test_rows_that_are_written_while_a_follower_begins_are_not_lost(tmp_path: Path) -> None:
    """electric-sql/electric#4773, apache/flink-cdc#784, #1206: rows written between the snapshot
    and the stream were in neither.
    """
    with (
        Daemon.start(
            tmp_path / "d", persist__max_age="200ms", query__tail_retain="200ms"
        ) as daemon,
        Client(daemon.flight) as client,
    ):
        stop = threading.Event()

        def load() -> None:
            number = 0
            with Client(daemon.flight) as writing:
                while not stop.is_set():
                    write(writing, "t", number, 3)
                    number += 3

        thread = threading.Thread(target=load)
        write(client, "t", -3, 3)
        thread.start()
        try:
            disks = [Disk() for _ in range(6)]
            for disk in disks:
                with following(daemon, disk, "t") as follower:
                    follower.wait_current(30)
        finally:
            stop.set()
            thread.join()
        for disk in disks:
            with following(daemon, disk, "t") as follower:
                follower.wait_current(30)
                assert content(disk, keyed=False) == rows_of(client, "t")


def test_columns_that_come_while_nobody_follows_are_there_afterwards(tmp_path: Path) -> None:
    """apache/flink-cdc#3502, #2910, #1495: after a restart, a column added meanwhile was missing in
    the target or was added twice; rows written at that time were lost.
    """
    disk = Disk()
    with served(tmp_path) as (daemon, client):
        write(client, "t", 0)
        with following(daemon, disk, "t") as follower:
            follower.wait_current(20)
            write(client, "t", 10, a=[1] * 10)
            equal_soon(client, disk, "t")
        write(client, "t", 20, b=[2.5] * 10)
        client.persist()
        write(client, "t", 30, c=["x"] * 10)
        for _ in range(2):
            with following(daemon, disk, "t") as follower:
                follower.wait_current(20)
                assert content(disk, keyed=False) == rows_of(client, "t")


def test_a_daemon_that_came_back_with_an_older_log_is_not_gone_on_from(tmp_path: Path) -> None:
    """benbjohnson/litestream#783: a source was restored from a backup and the replica was ahead of
    it; nothing was copied until the source had passed the replica's position.
    """
    disk = Disk()
    with Daemon.start(tmp_path / "d", arguments=steady_flight(), persist__max_age="1h") as daemon:
        with Client(daemon.flight) as client:
            client.create_table("n", "k", KEYED, primary_key=["id"])
            write(client, "k", 0)
            client.persist()
            daemon.kill()
            shutil.copytree(tmp_path / "d" / "wal", tmp_path / "backup")
            daemon = daemon.again()
        with Client(daemon.flight) as client:
            write(client, "k", 5)
            client.delete("n", "k", {"id": [0]})
            with following(daemon, disk, "k") as follower:
                follower.wait_current(20)
                assert content(disk, keyed=True) == rows_of(client, "k")
                daemon.kill()
                shutil.rmtree(tmp_path / "d" / "wal")
                shutil.copytree(tmp_path / "backup", tmp_path / "d" / "wal")
                daemon = daemon.again(recovery__accept_lost_log="true")
                with Client(daemon.flight) as after:
                    equal_soon(after, disk, "k", keyed=True)
                    write(after, "k", 100, 1)
                    equal_soon(after, disk, "k", keyed=True)
        daemon.kill()


def test_a_store_that_fails_in_the_middle_of_a_fill_is_read_again() -> None:
    """risingwavelabs/risingwave#26710: after some rows of a snapshot had been emitted, an error of
    the next read left it waiting forever.
    """
    world, disk = World(keyed=False), Disk()
    for number in range(4):
        world.write({0: ([{"p": 0, "id": number, "v": "a"}, {"p": 0, "id": 9, "v": "b"}], [])})
        world.flush(0)
    files = FailingFiles(world)
    copy = copy_of(world, disk, files)
    failures = 0
    for _ in range(20):
        try:
            copy.advance(0.0)
        except StoreUnavailable:
            failures += 1
    assert failures == 3
    assert content(disk, keyed=False) == world.truth()


class FailingFiles(WorldFiles):
    """Three times, a read fails after its first rows."""

    left = 3

    def pieces(
        self, state: TableState, adds: Sequence[Add], names: Sequence[str] | None = None
    ) -> Iterator[FilePiece]:
        for number, piece in enumerate(super().pieces(state, adds, names)):
            if number == 3 and self.left:
                self.left -= 1
                raise StoreUnavailable("away")
            yield piece


def test_deletes_of_rows_that_are_not_there_do_no_harm(tmp_path: Path) -> None:
    """MaterializeInc/materialize#13496: a retraction of a row that the copy lacked made the whole
    copy unreadable.
    """
    disk = Disk()
    with served(tmp_path) as (daemon, client):
        client.create_table("n", "k", KEYED, primary_key=["id"])
        client.delete("n", "k", {"id": [1, 2, 3]})
        with following(daemon, disk, "k") as follower:
            follower.wait_current(20)
            write(client, "k", 0, 2)
            client.delete("n", "k", {"id": [1, 7]})
            equal_soon(client, disk, "k", keyed=True)
            client.persist()
            client.delete("n", "k", {"id": [7]})
            write(client, "k", 7, 1)
            equal_soon(client, disk, "k", keyed=True)
