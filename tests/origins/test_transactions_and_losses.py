"""Transactions of a replication client over two tables: in files once, and never refused.

The client of one daemon sends transactions that change one table or both, in one partition or two.
The daemon flushes, is killed or loses its disk in between. The client repeats transactions from any
earlier one on, whether or not the daemon still has them. A message opens no stream: each
transaction takes over what it needs in its tables.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.manifest import PartitionKey
from persist.manifest.origins import OriginVerdict
from persist.table import TableKey
from tests.origins.two_daemons import OTHER, PARTITIONS, TABLE, Daemon, Row, Store

TABLES = (TABLE, OTHER)
Changes = dict[TableKey, tuple[PartitionKey, ...]]


def rows_of(sequence: int, changes: Changes) -> list[Row]:
    """The rows of a transaction."""
    return [
        Row(sequence, partition, table)
        for table, partitions in changes.items()
        for partition in partitions
    ]


class Transact(NamedTuple):
    """A new transaction over parts of the two tables; it leaves a ``gap``."""

    parts: tuple[int, int]
    gap: int


class Repeat(NamedTuple):
    """Send ``repeated`` earlier transactions again, beginning ``back`` before the newest."""

    back: int
    repeated: int


class Flush(NamedTuple):
    """Flush a table, or the oldest buffer of a partition."""

    table: int
    partition: int | None


class Kill(NamedTuple):
    """Kill the daemon; its log remains."""


class Lose(NamedTuple):
    """Kill the daemon and remove its disk."""


class Roll(NamedTuple):
    """Begin a segment, and delete unneeded ones."""


Op = Transact | Repeat | Flush | Kill | Lose | Roll


class World:
    """The store, the daemon, and the client with its record of acknowledgements."""

    def __init__(self) -> None:
        self.store = Store(TABLES)
        self.daemon = Daemon(self.store, "a")
        self.sent: list[tuple[int, Changes]] = []
        self.acknowledged: set[int] = set()

    def do(self, op: Op) -> None:
        if isinstance(op, Kill | Lose):
            self.daemon.kill()
            if isinstance(op, Lose):
                self.daemon.lose_disk()
                self.acknowledged = {
                    sequence
                    for sequence, changes in self.sent
                    if sequence in self.acknowledged and self.in_files(sequence, changes)
                }
            return
        if not self.daemon.up:
            self.daemon.start()
        if isinstance(op, Transact):
            newest = self.sent[-1][0] if self.sent else -1
            parts = ((), PARTITIONS[:1], PARTITIONS[1:], PARTITIONS)
            changes = {
                table: parts[part]
                for table, part in zip(TABLES, op.parts, strict=True)
                if parts[part]
            }
            self.repeat(self.first_missing(), len(self.sent))
            self.sent.append((newest + 1 + op.gap, changes))
            self.transact(*self.sent[-1])
        elif isinstance(op, Repeat):
            begin = max(0, len(self.sent) - 1 - op.back)
            self.repeat(min(begin, self.first_missing()), op.repeated)
        elif isinstance(op, Flush):
            if op.partition is None:
                self.daemon.persist_table(TABLES[op.table])
            else:
                partition = PARTITIONS[op.partition]
                self.daemon.persist(partition, oldest=True, key=TABLES[op.table])
        else:
            self.daemon.roll()
        self.check_files()

    def first_missing(self) -> int:
        """The first transaction that the client has to send again."""
        missing = (i for i, (seq, _) in enumerate(self.sent) if seq not in self.acknowledged)
        return next(missing, len(self.sent))

    def repeat(self, begin: int, count: int) -> None:
        for sequence, changes in self.sent[begin : begin + count]:
            self.transact(sequence, changes)

    def transact(self, sequence: int, changes: Changes) -> None:
        was = sequence in self.acknowledged
        verdicts, written = self.daemon.transact(sequence, changes)
        assert OriginVerdict.FOREIGN not in verdicts.values(), (sequence, verdicts, self.origins())
        assert not was or not written, (sequence, written, self.origins())
        self.acknowledged.add(sequence)

    def in_files(self, sequence: int, changes: Changes) -> bool:
        return all(row in self.store.rows for row in rows_of(sequence, changes))

    def check_files(self) -> None:
        self.store.check(row for sent in self.sent for row in rows_of(*sent))

    def origins(self) -> object:
        return [self.store.origin_in(table) for table in TABLES]

    def finish(self) -> None:
        """Send everything again, and flush it."""
        self.do(Kill())
        self.do(Repeat(len(self.sent), len(self.sent)))
        for table in range(len(TABLES)):
            self.do(Flush(table, None))
        lost = [one for one in self.sent if not self.in_files(*one)]
        assert not lost, (lost, self.origins())


def live_through(*ops: Op) -> None:
    world = World()
    for op in ops:
        world.do(op)
    world.finish()


PARTS = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any)
OPS = st.one_of(
    *2 * [st.builds(Transact, PARTS, st.integers(0, 1))],
    st.builds(Repeat, st.integers(0, 12), st.integers(1, 12)),
    st.builds(Flush, st.integers(0, 1), st.sampled_from([None, 0, 1])),
    st.builds(Kill),
    st.builds(Lose),
    st.builds(Roll),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(OPS, min_size=3, max_size=24))
def test_transactions_are_in_files_once_and_never_refused(ops: list[Op]) -> None:
    live_through(*ops)


@pytest.mark.parametrize("seed", range(50))
def test_however_long_the_history(seed: int) -> None:
    """Long histories with many kills: hypothesis prefers short ones."""
    chance = random.Random(seed)
    kinds = [Transact, Repeat, Flush, Kill, Lose, Roll]
    weights = [8, chance.choice([1, 4]), chance.choice([2, 6]), chance.choice([2, 6]), 1, 1]
    world = World()
    for kind in chance.choices(kinds, weights, k=400):
        if kind is Transact:
            parts = chance.choice([(a, b) for a in range(4) for b in range(4) if a or b])
            world.do(Transact(parts, chance.randrange(2)))
        elif kind is Repeat:
            world.do(Repeat(chance.randrange(40), chance.randrange(1, 40)))
        elif kind is Flush:
            world.do(Flush(chance.randrange(2), chance.choice([None, None, 0, 1])))
        else:
            world.do(kind())
    world.finish()


def test_a_run_that_was_taken_over_whole_hides_no_later_one() -> None:
    """Found as a refusal with `owner` of a transaction that had been durable for long.

    Beyond eight runs, those of earlier processes are merged with the next.
    """
    live_through(
        Transact((1, 2), 0),
        Kill(),
        Transact((3, 0), 1),
        Transact((0, 2), 1),
        Kill(),
        Transact((1, 3), 0),
        Kill(),
        Transact((2, 0), 1),
        Lose(),
        Transact((3, 0), 0),
        Kill(),
        Transact((3, 0), 1),
        Flush(0, None),
        Kill(),
        Transact((2, 3), 0),
        Kill(),
        Transact((3, 2), 1),
    )


def test_what_a_flush_has_merged_under_this_daemon_is_not_refused() -> None:
    live_through(
        Transact((1, 0), 0),
        Transact((0, 1), 0),
        Flush(1, None),
        Flush(0, None),
        Transact((0, 2), 0),
        Lose(),
        Transact((3, 3), 1),
        Flush(1, 1),
        Transact((1, 0), 0),
        Kill(),
        Transact((0, 1), 0),
        Kill(),
        Transact((0, 1), 1),
        Lose(),
        Transact((1, 0), 0),
        Kill(),
        Transact((0, 1), 0),
        Repeat(14, 5),
        Flush(1, 0),
        Repeat(20, 29),
    )
