"""A follower of a real daemon: files, then the tail, then live rows, with restarts of both."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ingester.client import Client
from ingester.followers import FollowedTable, Follower, FollowOptions, feed
from tests.drivers.daemon import Daemon
from tests.drivers.ports import steady_flight
from tests.drivers.waiting import until
from tests.followers.memory_sink import Disk, MemorySink, PlainSink, content

OPTIONS = FollowOptions(wait_s=0.5, room=1)


def rows_of(client: Client, table: str, **asked: Any) -> Counter[Any]:
    """Return the table's rows in the form of an in-memory sink."""
    found = client.query("n", table, **asked)
    names = found.column_names
    return Counter(
        tuple((name, row[name]) for name in names if row[name] is not None)
        for row in found.to_pylist()
    )


def follower_of(daemon: Daemon, disk: Disk, table: str, **asked: Any) -> Follower:
    follower = Follower(daemon.flight, lambda of: MemorySink(of, disk), options=OPTIONS)
    follower.follow("n", table, **asked)
    return follower


def equal_soon(client: Client, disk: Disk, table: str, *, keyed: bool = False) -> None:
    wanted = rows_of(client, table)
    until(lambda: content(disk, keyed) == wanted, "the copy to be equal", 10.0)


def write(client: Client, table: str, start: int, count: int = 10, **more: Any) -> None:
    ids = list(range(start, start + count))
    client.write("n", table, {"id": ids, "v": [f"v{i}" for i in ids], **more})


def test_an_appended_table_is_followed_from_files_over_the_tail_to_live(tmp_path: Path) -> None:
    disk = Disk()
    with (
        Daemon.start(tmp_path / "d", persist__max_age="1h") as daemon,
        Client(daemon.flight) as client,
    ):
        write(client, "t", 0)
        client.persist()
        write(client, "t", 10)
        with follower_of(daemon, disk, "t") as follower:
            follower.wait_current(10.0)
            assert content(disk, keyed=False) == rows_of(client, "t")
            write(client, "t", 20)
            equal_soon(client, disk, "t")
            client.persist()
            write(client, "t", 30, w=[1.5] * 10)
            equal_soon(client, disk, "t")
        write(client, "t", 40)
        client.persist()
        write(client, "t", 50)
        with follower_of(daemon, disk, "t") as follower:
            follower.wait_current(10.0)
            assert content(disk, keyed=False) == rows_of(client, "t")


def test_a_keyed_table_with_deletes_is_followed_over_a_kill_of_the_daemon(tmp_path: Path) -> None:
    disk = Disk()
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    arguments = steady_flight()
    with Daemon.start(tmp_path / "d", arguments=arguments, persist__max_age="1h") as daemon:
        with Client(daemon.flight) as client:
            client.create_table("n", "k", schema, primary_key=["id"])
            write(client, "k", 0)
            client.persist()
            write(client, "k", 5)
            client.delete("n", "k", {"id": [0, 7]})
            with follower_of(daemon, disk, "k") as follower:
                follower.wait_current(10.0)
                assert content(disk, keyed=True) == rows_of(client, "k")
                daemon.kill()
                daemon = daemon.again()
                with Client(daemon.flight) as again:
                    write(again, "k", 3, 2)
                    again.delete("n", "k", {"id": [8]})
                    equal_soon(again, disk, "k", keyed=True)
                    again.persist()
                    write(again, "k", 100, 2)
                    equal_soon(again, disk, "k", keyed=True)
        daemon.kill()


def test_a_plain_sink_has_its_state_kept_at_the_daemon(tmp_path: Path) -> None:
    disk = Disk()
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    daemon = Daemon.start(tmp_path / "d", persist__max_age="1h")
    with daemon, Client(daemon.flight) as client:
        client.create_table("n", "k", schema, primary_key=["id"])
        write(client, "k", 0)
        for number in range(1, 4):
            sinks: list[PlainSink] = []

            def make(of: FollowedTable, sinks: list[PlainSink] = sinks) -> PlainSink:
                sinks.append(PlainSink(of, disk))
                return sinks[-1]

            options = FollowOptions(name="reports", wait_s=0.5)
            follower = Follower(daemon.flight, make, options=options)
            follower.follow("n", "k")
            with follower:
                follower.wait_current(20)
                assert content(disk, keyed=True) == rows_of(client, "k")
                write(client, "k", number * 5)
                equal_soon(client, disk, "k", keyed=True)
            assert ("on_start_version" in sinks[0].calls) == (number == 1)
            assert ("on_recovery" in sinks[0].calls) == (number > 1)
            client.delete("n", "k", {"id": [number]})
        (listed,) = client.action("checkpoints", {"namespace": "n", "table": "k"})
        assert listed["partition"] == "follower/reports"


def test_a_daemon_that_stands_still_is_waited_for_and_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "ANSWERED_WITHIN_S", 0.5)
    disk = Disk()
    daemon = Daemon.start(tmp_path / "d", persist__max_age="1h")
    with daemon, Client(daemon.flight) as client:
        write(client, "t", 0)
        with follower_of(daemon, disk, "t") as follower:
            follower.wait_current(20)
            os.kill(daemon.pid, signal.SIGSTOP)
            (status,) = follower.status()
            until(lambda: status.phase == "waiting" and bool(status.error), "the error", 20.0)
            os.kill(daemon.pid, signal.SIGCONT)
            write(client, "t", 10)
            equal_soon(client, disk, "t")
            assert status.phase == "live" and status.error is None
