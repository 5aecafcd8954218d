"""A follower whose table is switched to another version: it says so, and begins anew with that."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingester.client import Client
from ingester.client.errors import ClientError
from ingester.client.follower import FollowedTable, Follower, FollowOptions
from persist.store import open_store
from persist.switching import switch_version
from tests.drivers.daemon import Daemon
from tests.drivers.pushing import push_some
from tests.drivers.waiting import until
from tests.follower.memory_sink import Disk, PlainSink, content
from tests.follower.test_real_daemon import equal_soon, follower_of, rows_of, write


def test_a_follower_ends_with_what_happened_and_a_new_one_follows_the_new_version(
    tmp_path: Path,
) -> None:
    disk = Disk()
    with (
        Daemon.start(tmp_path / "d", persist__max_age="1h", manifest__refresh="10ms") as daemon,
        Client(daemon.flight) as client,
    ):
        write(client, "t", 0)
        client.persist()
        store = open_store(f"file://{daemon.data_dir / 'store'}")
        version = push_some(store, ("n", "t"), wanted=lambda add: False)
        with follower_of(daemon, disk, "t") as follower:
            follower.wait_current(10.0)
            switch_version(store, "n", "t", version)
            until(lambda: client.describe("n", "t").table_version == 2, "the daemon follows")
            write(client, "t", 20)
            with pytest.raises(ClientError, match="is at table version 2"):
                follower.run()
        anew = Disk()
        with follower_of(daemon, anew, "t") as follower:
            follower.wait_current(10.0)
            assert content(anew, keyed=False) == rows_of(client, "t")
            client.persist()
            write(client, "t", 40)
            equal_soon(client, anew, "t")
        assert content(anew, keyed=False) == rows_of(client, "t")
        assert len(content(anew, keyed=False)) == 20


def test_a_state_that_the_daemon_keeps_is_of_one_version_of_the_table(tmp_path: Path) -> None:
    """At a table's second version no state could be kept at the daemon: it ended the follower."""
    disk = Disk()

    def make(of: FollowedTable) -> PlainSink:
        made.append(PlainSink(of, disk))
        return made[-1]

    def follower() -> Follower:
        found = Follower(daemon.flight, make, options=FollowOptions(name="reports", wait_s=0.5))
        found.follow("n", "t")
        return found

    made: list[PlainSink] = []
    with (
        Daemon.start(tmp_path / "d", persist__max_age="1h", manifest__refresh="10ms") as daemon,
        Client(daemon.flight) as client,
    ):
        write(client, "t", 0)
        client.persist()
        with follower() as first:
            first.wait_current(20)
        store = open_store(f"file://{daemon.data_dir / 'store'}")
        version = push_some(store, ("n", "t"))
        switch_version(store, "n", "t", version)
        until(lambda: client.describe("n", "t").table_version == 2, "the daemon follows")
        for number in range(2):
            with follower() as second:
                second.wait_current(20)
                write(client, "t", 20 + 20 * number)
                equal_soon(client, disk, "t")
        assert [("on_start_version" in each.calls) for each in made] == [True, True, False]
        assert [("on_recovery" in each.calls) for each in made] == [False, False, True]
        names = [each.partition for each in client.checkpoints("n", "t")]
        assert names == ["follower-v2/reports", "follower/reports"]
