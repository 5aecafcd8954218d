"""A copy is compared with a model of the table, under random events in random order."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ingester.client.errors import ClientError
from ingester.followers.followed_copy import CopySource, FollowedCopy
from ingester.followers.place import SinkCalls, SinkPlace
from ingester.followers.sink import FollowedTable
from ingester.followers.state import CopySelection
from ingester.followers.version_copy import CopyOpening, open_copy_of
from tests.followers.memory_sink import Crash, Disk, MemorySink, OwnStates, StatefulSink, content
from tests.followers.world import World, WorldFeed, WorldFiles, copy_of

PARTS = st.integers(0, 2)
IDS = st.integers(0, 5)
FILTER: Any = [[["id", ">", 2]]]


class Machine(RuleBasedStateMachine):
    """A world, and a follower that is killed from time to time."""

    keyed = False
    sink_class: type[StatefulSink] = MemorySink

    @initialize(filtered=st.booleans(), says_buffers=st.booleans())
    def begin(self, filtered: bool, says_buffers: bool) -> None:
        self.world = World(keyed=self.keyed)
        self.filter = FILTER if filtered else None
        self.says_buffers = says_buffers
        self.disk = Disk()
        self.copy: FollowedCopy | None = None
        self.count = 0
        self.crash_at: int | None = None

    def _row(self, p: int, id_: int) -> dict[str, Any]:
        self.count += 1
        row: dict[str, Any] = {"p": p, "id": id_, "v": f"v{self.count}"}
        for name in self.world.columns[3:]:
            row[name] = self.count
        return row

    # ------------------------------------------------------------------------------- the world

    @rule(rows=st.lists(st.tuples(PARTS, IDS, st.booleans()), min_size=1, max_size=4))
    def write(self, rows: list[tuple[int, int, bool]]) -> None:
        parts: dict[int, tuple[list[Any], list[Any]]] = {}
        seen = set()
        for p, id_, deletes in rows:
            upserts, gone = parts.setdefault(p, ([], []))
            if self.keyed and (p, id_) in seen:
                continue
            seen.add((p, id_))
            if self.keyed and deletes:
                gone.append({"p": p, "id": id_})
            else:
                upserts.append(self._row(p, id_))
        self.world.write(parts)

    @rule(p=PARTS)
    def freeze(self, p: int) -> None:
        self.world.freeze(p)

    @rule(p=PARTS)
    def flush(self, p: int) -> None:
        self.world.flush(p)

    @rule(p=PARTS)
    def flush_without_what_is_not_ours(self, p: int) -> None:
        self.world.flush(p, drop=1)

    @rule(p=PARTS)
    def compact(self, p: int) -> None:
        self.world.compact(p)

    @rule(p=PARTS, ids=st.lists(IDS, min_size=1, max_size=3, unique=True), replace=st.booleans())
    def others(self, p: int, ids: list[int], replace: bool) -> None:
        self.world.others(p, [self._row(p, id_) for id_ in ids], replace=replace)

    @rule()
    def add_column(self) -> None:
        self.world.add_column()

    @rule(recut=st.booleans())
    def restart(self, recut: bool) -> None:
        self.world.restart(recut=recut)

    @rule()
    def lose_disk(self) -> None:
        self.world.lose_disk()

    @rule()
    def adopt(self) -> None:
        self.world.adopt()

    @rule()
    def forget(self) -> None:
        self.world.forget()

    @rule(keep=st.integers(1, 4))
    def clean_up(self, keep: int) -> None:
        self.world.clean_up(keep)

    @rule(at_most=st.sampled_from([1, 2, 1000]))
    def answers_are_cut(self, at_most: int) -> None:
        self.world.at_most = at_most

    # ---------------------------------------------------------------------------- the follower

    def _open(self) -> FollowedCopy:
        table = FollowedTable(
            "n",
            "t",
            1,
            self.world.definition.schema,
            self.world.definition.primary_key,
            None,
            self.filter,
        )
        sink = self.sink_class(table, self.disk)
        sink.before_call = self._before_call
        files = WorldFiles(self.world, self.filter)
        feed = WorldFeed(self.world, self.filter, says_buffers=self.says_buffers)
        guard = SinkCalls(sink, lambda *_: None)
        place = SinkPlace(guard, OwnStates(self.disk))
        return open_copy_of(CopyOpening(table, CopySelection("s")), CopySource(files, feed), place)

    def _before_call(self, call: str) -> None:
        if self.crash_at is not None:
            self.crash_at -= 1
            if self.crash_at < 0:
                raise Crash

    def _advance(self) -> None:
        try:
            if self.copy is None:
                self.copy = self._open()
            self.copy.advance(0.0)
        except ClientError as exc:
            if exc.code != "stale" and not isinstance(exc.__cause__, Crash):
                raise
            self.copy = None

    @rule(steps=st.integers(1, 3))
    def follow_a_little(self, steps: int) -> None:
        for _ in range(steps):
            self._advance()

    @rule()
    def kill_the_follower(self) -> None:
        self.copy = None

    @precondition(lambda self: self.sink_class is MemorySink)
    @rule(calls=st.integers(0, 6))
    def kill_the_follower_in_a_call(self, calls: int) -> None:
        self.crash_at = calls
        for _ in range(3):
            self._advance()
        self.crash_at = None
        self.copy = None

    @rule()
    def follow_to_the_end(self) -> None:
        self.world.at_most = 1000
        for _ in range(60):
            self._advance()
            copy = self.copy
            if copy is not None and copy.state.complete and copy.state.filled is None:
                feed = WorldFeed(self.world)
                newest = feed.ask(None, None, 0.0)
                if (copy.state.position, copy.state.version) == (newest.position, newest.version):
                    break
        else:
            raise AssertionError("the copy does not get to the end")
        expected = self.world.truth(2 if self.filter else None)
        assert content(self.disk, self.keyed) == expected


class Keyed(Machine):
    keyed = True


class Plain(Machine):
    """A sink without transactions that removes no rows."""

    sink_class = StatefulSink


class PlainKeyed(Plain):
    keyed = True


_SETTINGS = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestAppended = Machine.TestCase
TestAppended.settings = _SETTINGS
TestKeyed = Keyed.TestCase
TestKeyed.settings = _SETTINGS
TestPlain = Plain.TestCase
TestPlain.settings = _SETTINGS
TestPlainKeyed = PlainKeyed.TestCase
TestPlainKeyed.settings = _SETTINGS


def test_a_key_that_came_live_and_was_deleted_while_the_copy_was_behind_is_gone() -> None:
    world, disk = World(keyed=True), Disk()
    copy = copy_of(world, disk)
    for _ in range(3):
        copy.advance(0.0)
    world.write({0: ([{"p": 0, "id": 1, "v": "a"}, {"p": 0, "id": 2, "v": "b"}], [])})
    copy.advance(0.0)
    world.write({0: ([], [{"p": 0, "id": 1}])})
    world.flush(0)
    world.forget()
    for _ in range(3):
        copy.advance(0.0)
    assert content(disk, keyed=True) == world.truth()


@pytest.mark.parametrize("keyed", [False, True])
def test_an_adopted_log_is_read_from_files_though_it_lies_before_the_position(keyed: bool) -> None:
    world, disk = World(keyed=keyed), Disk()
    copy = copy_of(world, disk)
    for _ in range(3):
        copy.advance(0.0)
    world.write({0: ([{"p": 0, "id": 1, "v": "a"}], [])})
    world.lose_disk()
    world.write({0: ([{"p": 0, "id": 2, "v": "b"}], [])})
    for _ in range(4):
        copy.advance(0.0)
    assert content(disk, keyed) == world.truth()
    world.adopt()
    for _ in range(4):
        copy.advance(0.0)
    assert content(disk, keyed) == world.truth()
    assert content(disk, keyed).total() == 2


def test_rows_of_another_writer_do_not_hide_operations_that_came_live() -> None:
    world, disk = World(keyed=True), Disk()
    copy = copy_of(world, disk)
    for _ in range(3):
        copy.advance(0.0)
    world.write({0: ([{"p": 0, "id": 1, "v": "live"}], [])})
    copy.advance(0.0)
    world.others(0, [{"p": 0, "id": 1, "v": "file"}, {"p": 0, "id": 2, "v": "file"}])
    for _ in range(4):
        copy.advance(0.0)
    assert content(disk, keyed=True) == world.truth()


def test_a_group_that_a_restart_has_cut_into_two_flushes_comes_again() -> None:
    world, disk = World(keyed=False), Disk()
    copy = copy_of(world, disk)
    for number in range(4):
        world.write({0: ([{"p": 0, "id": number, "v": "a"}], [])})
    for _ in range(3):
        copy.advance(0.0)
    world.restart(recut=True)
    world.flush(0)
    assert content(disk, keyed=False) == world.truth()
    for _ in range(4):
        copy.advance(0.0)
        assert content(disk, keyed=False) == world.truth()


def test_a_compaction_that_lays_rows_out_anew_has_both_partitions_read() -> None:
    world, disk = World(keyed=False), Disk()
    copy = copy_of(world, disk)
    world.write({0: ([{"p": 0, "id": 1, "v": "a"}], []), 1: ([{"p": 1, "id": 2, "v": "b"}], [])})
    world.flush(0)
    for _ in range(3):
        copy.advance(0.0)
    world.compact(0, into=1)
    for _ in range(3):
        copy.advance(0.0)
    assert content(disk, keyed=False) == world.truth()
    for number in (3, 4):
        world.others(0, [{"p": 0, "id": number, "v": "c"}], replace=True)
    for _ in range(3):
        copy.advance(0.0)
    assert content(disk, keyed=False) == world.truth()
