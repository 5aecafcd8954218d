"""An origin that moves between two daemons has every row in files exactly once.

A client writes to two daemons in turn. Its streams begin at the first sequence that no daemon
has, or earlier, and leave gaps. It repeats batches that were not acknowledged, or only by a
daemon that it has left. Between streams, and while batches wait for the log, daemons flush, are
killed, lose their disks, begin segments and read the manifest.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.manifest import OriginExpired
from persist.manifest.origins import OriginVerdict
from tests.origins.two_daemons import NAME, PARTITIONS, Daemon, Row, Store, partitions_of

IDLE_S = 10.0


class Stream(NamedTuple):
    """Begin ``back`` batches before the first missing one; new batches leave a ``gap``.

    The last ``ahead`` batches are not answered yet; ``unread``: nor are they read.
    """

    daemon: int
    back: int
    batches: int
    gap: int
    ahead: int = 0
    unread: bool = False


class Write(NamedTuple):
    """Read what was sent ahead, write and answer it, also of a stream that the client has left."""

    daemon: int


class Persist(NamedTuple):
    """Flush a partition's buffers, or only the oldest one."""

    daemon: int
    partition: int
    oldest: bool


class Kill(NamedTuple):
    """Kill the daemon; its log remains. ``logged``: what was queued is in it."""

    daemon: int
    logged: bool = False


class Stop(NamedTuple):
    """Stop the daemon cleanly; another one then knows that all of its rows are in files."""

    daemon: int


class Lose(NamedTuple):
    """Kill the daemon and remove its disk."""

    daemon: int


class Roll(NamedTuple):
    """Begin a segment, and delete unneeded ones."""

    daemon: int


class Refresh(NamedTuple):
    """Read the newest version."""

    daemon: int


class Expire(NamedTuple):
    """Flush everything after a long pause; an origin with no missing rows is forgotten."""


Op = Stream | Write | Persist | Kill | Stop | Lose | Roll | Refresh | Expire
Holder = tuple[int, int]
"""(daemon, which of its disks)"""


class World:
    """The store, both daemons, and the client with its record of acknowledgements."""

    def __init__(self) -> None:
        self.store = Store()
        self.daemons = [Daemon(self.store, name) for name in "ab"]
        self.batches: list[int] = []
        self.held_by: dict[int, Holder] = {}
        """Acknowledged batches, which need not be repeated."""
        self.newest = -1
        self.awaited: tuple[int, list[int]] | None = None
        """The daemon of the client's stream, and the batches without an answer."""

    def do(self, op: Op) -> None:
        if isinstance(op, Expire):
            self.expire()
            return
        daemon = self.daemons[op.daemon]
        if isinstance(op, Kill):
            self.hang_up(op.daemon)
            if op.logged:
                daemon.cut()
            daemon.kill()
        elif isinstance(op, Lose):
            self.lose(op.daemon)
        else:
            if not daemon.up:
                daemon.start()
            if isinstance(op, Stream):
                self.stream(op)
            elif isinstance(op, Persist):
                daemon.persist(PARTITIONS[op.partition], oldest=op.oldest)
            elif isinstance(op, Roll):
                daemon.roll()
            elif isinstance(op, Write):
                self.write(op.daemon)
            elif isinstance(op, Stop):
                self.write(op.daemon)
                daemon.stop()
            else:
                daemon.refresh()

    def stream(self, op: Stream) -> None:
        daemon = self.daemons[op.daemon]
        holder = (op.daemon, daemon.disk)
        sequences = self.to_send(op)
        daemon.open(sequences[0])
        for sequence in self.batches:
            # The client has moved to another daemon with all of these, and repeats them there.
            if sequence >= sequences[0] and self.held_by.get(sequence) != holder:
                self.held_by.pop(sequence, None)
        answered = len(sequences) - op.ahead
        for sequence in sequences[: max(0, answered)]:
            verdict = daemon.send(sequence)
            assert verdict is not OriginVerdict.FOREIGN, (sequence, verdict, self.store.origin)
            self.held_by[sequence] = holder
        ahead = sequences[max(0, answered) :]
        daemon.send_ahead(ahead, unread=op.unread)
        self.awaited = (op.daemon, ahead)

    def write(self, index: int) -> None:
        """The client hears the answers of its own stream only."""
        daemon = self.daemons[index]
        accepted = daemon.write()
        if self.awaited is not None and self.awaited[0] == index:
            for sequence in set(self.awaited[1]).intersection(accepted):
                self.held_by[sequence] = (index, daemon.disk)
            self.hang_up(index)
        told = [
            sequence
            for sequence, holder in self.held_by.items()
            if holder == (index, daemon.disk) and sequence <= daemon.settled
        ]
        assert all(self.in_files(sequence) for sequence in told), (told, self.store.rows)

    def hang_up(self, index: int) -> None:
        """The client's stream ends, if it is at this daemon."""
        if self.awaited is not None and self.awaited[0] == index:
            self.awaited = None

    def to_send(self, op: Stream) -> list[int]:
        missing = (
            index
            for index, sequence in enumerate(self.batches)
            if sequence not in self.held_by and not self.in_files(sequence)
        )
        begin = max(0, next(missing, len(self.batches)) - op.back)
        while len(self.batches) < begin + op.batches:
            self.newest += 1 + op.gap
            self.batches.append(self.newest)
        return self.batches[begin : begin + op.batches]

    def in_files(self, sequence: int) -> bool:
        return all(Row(sequence, key) in self.store.rows for key in partitions_of(sequence))

    def lose(self, index: int) -> None:
        """The client learns that the daemon reports less than it had acknowledged."""
        daemon = self.daemons[index]
        for sequence, holder in list(self.held_by.items()):
            if holder == (index, daemon.disk) and not self.in_files(sequence):
                del self.held_by[sequence]
        self.hang_up(index)
        daemon.kill()
        daemon.lose_disk()

    def expire(self) -> None:
        for index in (0, 1):
            self.do(Write(index))
        for index in (0, 1, 0, 1):
            self.persist_all(index)
        if not all(self.in_files(sequence) for sequence in self.batches):
            return
        self.store.now_s += IDLE_S
        if self.store.origin is not None:
            self.store.commit([OriginExpired(NAME, self.store.origin.at)])
        for daemon in self.daemons:
            daemon.forget_idle(IDLE_S / 2)
        self.batches.clear()

    def finish(self) -> None:
        """Let both daemons flush everything that is theirs to commit."""
        for index in (0, 1):
            self.do(Write(index))
        for index in (0, 1, 0, 1):
            self.persist_all(index)
            self.do(Kill(index))

    def persist_all(self, index: int) -> None:
        for op in (Persist(index, 0, False), Persist(index, 1, False), Refresh(index)) * 2:
            self.do(op)
            self.check_files()

    def check_files(self) -> None:
        self.store.check(
            Row(sequence, key) for sequence in self.batches for key in partitions_of(sequence)
        )

    def check_all_is_in_files(self) -> None:
        for daemon in self.daemons:
            daemon.start()
            assert not daemon.handles(), (daemon.id, self.store.origin)
        lost = [sequence for sequence in self.held_by if not self.in_files(sequence)]
        assert not lost, (lost, self.store.rows, self.store.origin)


def live_through(*ops: Op) -> None:
    world = World()
    for op in ops:
        world.do(op)
        world.check_files()
    world.finish()
    world.check_all_is_in_files()


DAEMON, PARTITION = st.integers(0, 1), st.integers(0, 1)
OPS = st.one_of(
    # Mostly streams, as they make an origin move.
    *3 * [st.builds(Stream, DAEMON, st.integers(0, 3), st.integers(1, 3), st.integers(0, 2))],
    st.builds(
        Stream,
        DAEMON,
        st.integers(0, 3),
        st.integers(1, 3),
        st.integers(0, 2),
        st.integers(1, 3),
        st.booleans(),
    ),
    st.builds(Write, DAEMON),
    st.builds(Persist, DAEMON, PARTITION, st.booleans()),
    st.builds(Kill, DAEMON, st.booleans()),
    st.builds(Stop, DAEMON),
    st.builds(Lose, DAEMON),
    st.builds(Roll, DAEMON),
    st.builds(Refresh, DAEMON),
    st.builds(Expire),
)


@settings(max_examples=1000, deadline=None)
@given(st.lists(OPS, min_size=3, max_size=14))
def test_what_is_acknowledged_is_in_files_once(ops: list[Op]) -> None:
    live_through(*ops)


def test_what_came_back_in_pieces_is_known_after_a_restart_piece_by_piece() -> None:
    live_through(
        Stream(0, 0, 1, 0),
        Stream(1, 0, 2, 0),
        Stream(0, 0, 1, 0),
        Lose(1),
        Stream(0, 0, 1, 0),
        Kill(0),
        Stream(0, 0, 1, 0),
    )
    live_through(
        Stream(0, 0, 1, 0),
        Stream(1, 0, 1, 0),
        Stream(0, 0, 1, 0),
        Lose(1),
        Stream(0, 0, 1, 0),
        Kill(0),
        Stream(0, 0, 1, 0),
        Stream(1, 2, 1, 0),
    )


def test_what_a_segment_says_is_taken_back_before_it_is_taken_over_anew() -> None:
    live_through(
        Stream(0, 0, 1, 0),
        Stream(1, 0, 1, 0),
        Kill(1),
        Stream(1, 1, 1, 0),
        Stream(0, 1, 1, 0),
        Stream(1, 2, 1, 0),
        Kill(1),
        Stream(1, 0, 1, 0),
    )


# An origin that moves more often than its runs are kept separately.
MOVES = st.builds(Stream, DAEMON, st.integers(0, 2), st.integers(1, 2), st.integers(0, 2))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(*4 * [MOVES], OPS), min_size=20, max_size=40))
def test_however_often_an_origin_moves(ops: list[Op]) -> None:
    live_through(*ops)


@pytest.mark.parametrize("seed", range(10))
def test_however_long_the_history(seed: int) -> None:
    """Long histories with more runs than are kept apart: hypothesis prefers short ones."""
    chance = random.Random(seed)
    kinds = [Stream, Persist, Kill, Lose, Roll, Refresh, Stop]
    often, kills, losses, stops = (
        chance.choice(weights) for weights in ([1, 4, 8], [1, 4], [0.3, 1, 3], [0, 1, 3])
    )
    world = World()
    for kind in chance.choices(kinds, [10, often, kills, losses, 1, 1, stops], k=150):
        daemon = chance.randrange(2)
        if kind is Stream:
            back, batches = chance.choice([0, 0, 1, 2, 5, 12]), chance.randrange(1, 4)
            world.do(Stream(daemon, back, batches, chance.randrange(3)))
        elif kind is Persist:
            world.do(Persist(daemon, chance.randrange(2), chance.random() < 0.5))
        else:
            world.do(kind(daemon))
        world.check_files()
    world.finish()
    world.check_all_is_in_files()


def test_rows_of_a_run_that_was_folded_away_are_in_files_once() -> None:
    live_through(Stream(1, 0, 1, 0), Stream(0, 1, 1, 0), Kill(0), Stream(0, 0, 1, 0))


def test_an_origin_that_went_away_and_back_from_the_same_sequence_is_not_refused() -> None:
    live_through(Stream(1, 0, 1, 0), Stream(0, 1, 1, 0), Stream(1, 1, 1, 0))


def test_what_was_to_come_between_two_runs_and_never_came_is_no_duplicate() -> None:
    live_through(
        Stream(1, 0, 2, 0),
        Stream(0, 0, 1, 0),
        Lose(1),
        Stream(0, 0, 1, 0),
        Kill(0),
        Stream(0, 0, 1, 0),
    )


def test_what_a_persist_has_left_out_is_no_duplicate_after_a_kill() -> None:
    live_through(
        Stream(0, 0, 1, 0),
        Stream(0, 0, 1, 0),
        Stream(1, 0, 1, 0),
        Stream(0, 2, 1, 0),
        Stream(1, 1, 1, 0),
        Kill(1),
        Stream(1, 0, 1, 0),
    )
