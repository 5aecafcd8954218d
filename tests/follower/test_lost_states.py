"""A sink whose state is kept at the daemon, and the daemon loses its disk, the state with it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ingester.client import Client
from ingester.client.follower import Follower, FollowOptions
from tests.drivers.daemon import Daemon
from tests.drivers.ports import steady_flight
from tests.follower.memory_sink import Disk, PlainSink, content
from tests.follower.test_real_daemon import equal_soon, rows_of, write


class TakingBack(PlainSink):
    """A sink that takes rows back, without transactions and states of its own."""

    def take_back(self, part: str, groups: Sequence[int]) -> None:
        kept = self.disk.target
        kept.rows = [row for row in kept.rows if row[0] != part or row[1] not in groups]

    def take_back_all(self, part: str, keep: Sequence[int] = ()) -> None:
        kept = self.disk.target
        kept.rows = [row for row in kept.rows if row[0] != part or row[1] in keep]


def lost(daemon: Daemon) -> Daemon:
    daemon.kill()
    shutil.rmtree(daemon.data_dir)
    return daemon.again(recovery__accept_lost_log="true")


@pytest.mark.parametrize("runs", [True, False], ids=["it runs", "it is started anew"])
def test_rows_that_were_told_and_lost_are_not_in_the_copy(tmp_path: Path, runs: bool) -> None:
    disk = Disk()

    def following(daemon: Daemon) -> Follower:
        options = FollowOptions(name="reports", wait_s=0.5)
        follower = Follower(daemon.flight, lambda of: TakingBack(of, disk), options=options)
        follower.follow("n", "t")
        return follower

    settings: dict[str, Any] = {"store": f"file://{tmp_path}/store", "persist__max_age": "1h"}
    with Daemon.start(tmp_path / "d", arguments=steady_flight(), **settings) as daemon:
        with Client(daemon.flight) as client:
            write(client, "t", 0)
            with following(daemon) as follower:
                follower.wait_current(20)
                client.persist()  # the state, too, is in object storage
                write(client, "t", 10)
                equal_soon(client, disk, "t")
                if runs:
                    daemon = lost(daemon)
                    equal_soon(client, disk, "t")
            if not runs:
                daemon = lost(daemon)
                with following(daemon) as follower:
                    follower.wait_current(20)
                    assert content(disk, keyed=False) == rows_of(client, "t")
            assert sum(rows_of(client, "t").values()) == 10
        daemon.kill()
