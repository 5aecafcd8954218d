"""Every byte of a source's state is counted once, and a table's states stay within its limit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.origins.checkpoint_state import SharedBytes, SourceCheckpoint, shared_actions
from ingester.origins.checkpoints import MOST_PENDING, Checkpoints, PendingCheckpoint
from persist.manifest.draft import apply
from persist.manifest.state import TableState
from tests.drivers.daemon import Daemon
from tests.drivers.wire import numbers, put
from tests.origins.checkpoints import listed, put_state, text
from tests.origins.senders import TABLE

MIB = 1 << 20
ME = ("me", 1)

notes = st.tuples(
    st.sampled_from("abc"),
    st.one_of(st.none(), st.integers(0, 5).map(bytes)),
    st.one_of(st.none(), st.sampled_from([b"shared", b"by several", b"or by one"])),
)
steps = st.lists(st.one_of(notes, st.just("commit"), st.just("commit half")), max_size=60)


class World:
    """The states that wait for a commit, and a version that is committed from time to time."""

    def __init__(self) -> None:
        self.checkpoints = Checkpoints()
        self.state = TableState()
        self.noted: list[PendingCheckpoint] = []
        self.upto = 0

    @property
    def kept(self) -> int:
        return self.checkpoints.statistics(TABLE).bytes

    def note(self, partition: str, state: bytes | None, shared: bytes | None) -> None:
        bulk = None if shared is None or state is None else SharedBytes.of(shared)
        given_one = SourceCheckpoint(partition, state, bulk, "2026-11-26T00:00:00+00:00")
        stamp = given_one.stamp(ME, len(self.noted) + 1, None, None)
        pending = PendingCheckpoint(given_one, stamp, 0, None, 0.0)
        before, grows = self.checkpoints.room(TABLE, given_one)
        self.noted.append(pending)
        self.checkpoints.note(TABLE, pending)
        # Bytes that no remaining state shares may be released.
        assert self.kept <= before + grows

    def commit(self, upto: int) -> None:
        self.upto = max(self.upto, upto)
        newest = {each.given.partition: each for each in self.noted[: self.upto]}.values()
        actions = [*shared_actions(each.given for each in newest)]
        applied = apply(self.state, [*actions, *(each.action() for each in newest)])
        self.state = replace(applied, version=self.state.version + 1)
        self.checkpoints.settle(TABLE, self.state)

    def check(self) -> None:
        waiting = self.checkpoints.pending(TABLE)
        each_one = [each.given for of_one in waiting.values() for each in of_one]
        shared = {one.shared.id: len(one.shared.state) for one in each_one if one.shared}
        pending_bytes = sum(one.nbytes for one in each_one) + sum(shared.values())
        committed = Checkpoints()
        committed.settle(TABLE, self.state)
        assert self.checkpoints.nbytes == pending_bytes + committed.nbytes
        assert all(0 < len(of_one) <= MOST_PENDING for of_one in waiting.values())
        if not waiting:
            assert self.kept == committed.nbytes


@given(steps)
def test_what_waits_and_what_is_kept_is_counted_to_the_byte(
    steps: list[tuple[str, bytes | None, bytes | None] | str],
) -> None:
    world = World()
    for step in steps:
        if isinstance(step, tuple):
            world.note(*step)
        else:
            world.commit(len(world.noted) // (1 if step == "commit" else 2))
        world.check()
    kept = world.kept
    world.commit(len(world.noted))
    world.check()
    # Bytes that are released with their last user are kept until then.
    assert world.kept <= kept


def test_a_source_that_shares_other_bytes_each_time_is_not_taken_for_a_growing_one() -> None:
    world = World()
    for number in range(100):
        world.note("a", b"state", b"%03d" % number)
        world.note("b", b"state", b"%03d" % number)
        assert world.kept == 2 * len(b"state") + 3
    assert world.checkpoints.nbytes <= 2 * (MOST_PENDING + 1) * (len(b"state") + 3)


@pytest.mark.parametrize("shares", [False, True])
def test_a_table_keeps_64_mib_also_of_what_is_in_no_version_yet(
    tmp_path: Path, shares: bool
) -> None:
    with Daemon.start(tmp_path / "d", persist__max_age="1h") as daemon:
        with fl.connect(daemon.flight) as client:
            put(client, TABLE, numbers(0, 1))

        def give(number: int, partition: str) -> None:
            bulk = number.to_bytes(2, "big") + os.urandom(MIB - 2)
            fields = {"shared": text(bulk)} if shares else {}
            put_state(daemon, b"" if shares else bulk, partition, **fields)

        for number in range(64):
            give(number, f"p{number}")
        with pytest.raises(pa.ArrowInvalid, match=f"keeps {64 * MIB} B of checkpoints"):
            give(64, "p64")
        assert len(listed(daemon)) == 64
