"""A sink's state is stored at a daemon that loses its disk."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ingester.client import Client, Unavailable
from ingester.followers import Follower, FollowOptions, StateKey, StateOfAnother
from ingester.followers.feed import LiveAnswer
from ingester.followers.state import FeedPosition
from tests.drivers.daemon import Daemon
from tests.drivers.ports import steady_flight
from tests.followers.memory_sink import Disk, OwnStates, PlainSink, StatefulSink, content
from tests.followers.test_real_daemon import equal_soon, rows_of, write
from tests.followers.world import World, WorldFeed, copy_of


class TakingBack(PlainSink):
    """A sink that removes rows again, without transactions or its own states."""

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


class KeepingStates(TakingBack, StatefulSink):
    """The same sink, which stores its own states, but not atomically with the rows."""


class Losing(WorldFeed):
    """The feed of a daemon that loses its disk before one of the questions."""

    lost_before = 0
    """The daemon loses its disk before this many more questions; 0 for never."""

    def ask(self, after: FeedPosition | None, version: int | None, wait_s: float) -> LiveAnswer:
        self.lost_before -= 1
        if self.lost_before == 0:
            self.world.lose_disk()
        return super().ask(after, version, wait_s)


@pytest.mark.parametrize("resyncs", [True, False], ids=["all anew", "live"])
@pytest.mark.parametrize("question", [1, 2, 3])
def test_a_disk_lost_between_two_questions_leaves_no_row_behind_a_state(
    question: int, resyncs: bool
) -> None:
    world, disk = World(keyed=False), Disk()
    copy = copy_of(world, disk, kind=KeepingStates)
    for _ in range(3):
        copy.advance(0.0)
    before = dict(disk.states)
    for number in (1, 2):
        world.write({number: ([{"p": number, "id": number, "v": "a"}], [])})
    copy.advance(0.0)
    assert content(disk, keyed=False).total() == 2
    # The follower is killed between the rows and their state.
    disk.states = before
    feed = Losing(world)
    copy = copy_of(world, disk, kind=KeepingStates, feed=feed)
    if resyncs:
        copy.show_again()
    world.at_most, feed.lost_before = 1, question
    for _ in range(8):
        with suppress(Unavailable):
            copy.advance(0.0)
    assert world.epoch == 2
    assert content(disk, keyed=False) == world.truth()


class Confusing(OwnStates):
    """A store that ignores a part of the key."""

    ignored = ""

    def _kept(self, key: StateKey) -> StateKey:
        parts = {name: getattr(key, name) for name in key._fields if name != self.ignored}
        return StateKey(**{"namespace": "any", "table": "any", "table_version": 1, **parts})

    def get(self, key: StateKey) -> bytes | None:
        return super().get(self._kept(key))

    def put(self, key: StateKey, state: bytes) -> None:
        super().put(self._kept(key), state)


@pytest.mark.parametrize("ignored", ["namespace", "table", "table_version"])
def test_a_store_that_ignores_a_part_of_the_key_is_named(tmp_path: Path, ignored: str) -> None:
    disk = Disk()

    class Confused(StatefulSink):
        def checkpoint_store(self) -> OwnStates:
            store = Confusing(self.disk)
            store.ignored = ignored
            return store

    def follow(daemon: Daemon, table: tuple[str, str]) -> None:
        follower = Follower(daemon.flight, lambda of: Confused(of, disk))
        follower.follow(*table)
        with follower:
            follower.wait_current(20)

    first = ("n", "t")
    second = {"namespace": ("m", "t"), "table": ("n", "u"), "table_version": first}[ignored]
    with Daemon.start(tmp_path / "d") as daemon:
        with Client(daemon.flight) as client:
            for table in (first, second):
                client.write(*table, {"id": [1]})
        follow(daemon, first)
        with pytest.raises(StateOfAnother, match="keeps one state for each namespace, table"):
            follow(daemon, second)
        daemon.kill()
