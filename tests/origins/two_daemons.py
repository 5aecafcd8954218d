"""A model of which daemon commits which rows: two daemons, one origin, a table of two partitions.

    open ──▶ send ──▶ log ──▶ buffers ──flush──▶ files, in versions of the one manifest
                       └─replay─▲     after a kill; a lost disk has no log

The daemons' own code judges batches, claims sequences, takes origins over and skips rows. All
other parts are as simple as possible. Everything runs sequentially; a daemon knows the versions
of the other one only as of its last refresh.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Collection, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple, cast

import pyarrow as pa

from ingester.buffer import BufferHandle, BufferTree, TableBuffer
from ingester.origins.checkpoint_state import SourceCheckpoint
from ingester.origins.checkpoints import Checkpoints, MissingSequences, PendingCheckpoint
from ingester.origins.origin_table import OriginClaim, OriginTable
from ingester.origins.registry import Origins
from ingester.tables.claims import CheckpointClaims, OriginClaims, actions_of, covered, shares_of
from persist.manifest import (
    Action,
    Applied,
    OriginAction,
    PartitionKey,
    TableState,
    WriterIdentity,
    apply,
)
from persist.manifest.origins import OriginVerdict, taken_over
from persist.manifest.rebasing import rebase
from persist.partitioning import PartitionSpec
from persist.table import TableDefinition
from tests.persist.manifest.samples import in_files, may_commit

NAME, TABLE, SOURCE = "w", ("it", "t"), "source"
DEFINITION = TableDefinition(pa.schema({"p": pa.int64()}), PartitionSpec.parse(["identity(p)"]))
PARTITIONS: tuple[PartitionKey, ...] = ((DEFINITION.spec_id, (0,)), (DEFINITION.spec_id, (1,)))
AT_MOST = 8
"""An upper bound for retries."""


def partitions_of(sequence: int) -> tuple[PartitionKey, ...]:
    """The partitions of a batch's rows: the first, the second, or both."""
    return (PARTITIONS[:1], PARTITIONS[1:], PARTITIONS)[sequence % 3]


class Row(NamedTuple):
    """The row of a batch in one partition."""

    sequence: int
    partition: PartitionKey


class Carried(NamedTuple):
    """The head of a segment, with the sequence up to which the origin was applied in this table."""

    epoch: int
    sequence: int


class Logged(NamedTuple):
    """An operation in the log, with the partitions of its rows."""

    epoch: int
    seq: int
    sequence: int
    partitions: tuple[PartitionKey, ...]


class Store:
    """The table's versions, of which only the newest matters, and the rows in its files."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.state = apply(TableState(), DEFINITION.actions())
        self.rows: list[Row] = []

    @property
    def origin(self) -> OriginAction | None:
        return self.state.origins.get(NAME)

    def durable_state(self, state: TableState) -> int:
        """The sequence of the source's state in a version; -1 for none."""
        there = state.checkpoints.get(SOURCE)
        return -1 if there is None or there.state is None else int(b64decode(there.state))

    def commit(self, actions: Iterable[Action], rows: Iterable[Row] = ()) -> TableState:
        self.state = replace(apply(self.state, actions), version=self.state.version + 1)
        self.rows += rows
        return self.state


class Daemon:
    """One ingester id with its disk, over all its lives."""

    def __init__(self, store: Store, ingester_id: str) -> None:
        self.id = ingester_id
        self.disk = 0
        """The number of the current disk: how many were lost before."""
        self.up = False
        self._store = store
        self._epoch = 0
        self._seq = 0
        self._segment = 0
        self._log: dict[int, list[Carried | Logged]] = {}
        self._begin_empty()

    # Lifetime

    def start(self) -> None:
        """Start, and replay the log into buffers."""
        self.up = True
        self._epoch += 1
        self._begin_empty()
        carried = None
        for segment, records in self._log.items():
            for record in records:
                if isinstance(record, Carried):
                    carried = record
                else:
                    self._replay(segment, record)
        if carried is not None:
            told = [] if carried.sequence < 0 else [(NAME, *TABLE, carried.sequence)]
            self._origins.restore_all(told, (self.id, carried.epoch))
        self._begin_segment()

    def kill(self) -> None:
        """Lose everything but the log."""
        self.up = False

    def lose_disk(self) -> None:
        """Lose the log as well, while the daemon is down."""
        self._log.clear()
        self.disk += 1

    def _begin_empty(self) -> None:
        self._origins = Origins(lambda: self._store.now_s)
        self._claims = OriginClaims(self._origins, WriterIdentity(self.id, "run", self._epoch))
        self._table = TableBuffer(*TABLE, self._store.state)
        self._checkpoints, self._missing = Checkpoints(), MissingSequences()
        holder = SimpleNamespace(origins=self._origins, checkpoints=self._checkpoints)
        self._ready = CheckpointClaims(cast(BufferTree, holder))
        self._ops: dict[BufferHandle, list[tuple[int, int]]] = {}

    # The log

    def roll(self) -> None:
        """Begin a segment, and delete earlier ones that no buffer needs."""
        self._begin_segment()
        needed = min((handle.first_segment for handle in self.handles()), default=self._segment)
        needed = self._checkpoints.first_needed_segment(needed)
        for segment in [segment for segment in self._log if segment < needed]:
            del self._log[segment]

    def _begin_segment(self) -> None:
        self._segment += 1
        carried = self._origins.carried()
        self._log[self._segment] = []
        if carried is not None:
            sequence = carried[0][3] if carried else -1
            self._log[self._segment].append(Carried(self._epoch, sequence))

    def _replay(self, segment: int, record: Logged) -> None:
        """Mirrors `Replay`."""
        process = (self.id, record.epoch)
        state, known = self._table.state, self._table.state.origins.get(NAME)
        if known is not None and self._origin_table.owner is None:
            self._origins.load(self._origin_table, known, self.id)
        left = tuple(
            key
            for key in record.partitions
            if state.applied_to(self.id, record.epoch, *key) < record.seq
        )
        rest = set(record.partitions) - set(left)
        applies = may_commit(known, record.sequence, process) and (
            known is None or all(in_files(known, record.sequence, key) for key in rest)
        )
        there = applies or all(in_files(known, record.sequence, key) for key in record.partitions)
        if not there:
            self._checkpoints.forget_from(TABLE, NAME, record.sequence)
        whole = self._missing.note(TABLE, NAME, record.sequence, there=there)
        if applies and (left or whole):
            self._apply(segment, record._replace(partitions=left), whole=whole)

    # Buffers

    def handles(self) -> list[BufferHandle]:
        """The buffers, partition by partition, each in log order."""
        return list(self._table.handles())

    def _apply(self, segment: int, record: Logged, *, whole: bool = True) -> None:
        """Mirrors `BufferTree`."""
        holders = []
        epoch, seq, sequence, keys = record
        for key in keys:
            part = self._table.partition(key)
            if part.active is not None and part.active.epoch != epoch:
                part.freeze(0.0)
            if part.active is None:
                part.active = BufferHandle(
                    key, keyed=False, epoch=epoch, first_seq=seq, segment=segment
                )
            part.active.last_seq = seq
            self._ops.setdefault(part.active, []).append((seq, sequence))
            holders.append(part.active)
        tenure = self._origins.note_applied(NAME, TABLE, sequence, seq, holders, (self.id, epoch))
        for handle in holders:
            handle.origins[tenure] = sequence
        given = SourceCheckpoint(
            SOURCE, str(sequence).encode(), at=f"2026-01-01T{self._store.now_s:06}"
        )
        stamp = given.stamp((self.id, epoch), seq, NAME, sequence)
        if whole and stamp.replaces(self._table.state.checkpoints.get(SOURCE)):
            self._checkpoints.note(TABLE, PendingCheckpoint(given, stamp, segment, tenure, 0.0))

    # A stream

    def state(self) -> int:
        """The sequence after which a source resumes, as `CheckpointCalls.get` reports it; -1 for
        none.
        """
        self.refresh()
        newest = self._checkpoints.newest(TABLE, SOURCE, self._table.state)
        if newest is not None and newest.given.state is not None:
            return int(newest.given.state)
        return self._store.durable_state(self._table.state)

    def open(self, first: int) -> None:
        """Mirrors `OriginTakeover.take`: sequences from ``first`` can be judged after this call."""
        origin_table, process = self._origin_table, (self.id, self._epoch)
        if origin_table.owns(first):
            self.refresh()
        for _ in range(AT_MOST):
            if origin_table.owns(first):
                return
            known = self._table.state.origins.get(NAME)
            base = known or origin_table.unknown_origin(process)
            self._origins.load(origin_table, base, self.id)
            foreign = origin_table.first_foreign(first, process)
            begin = first if foreign is None else foreign
            if self._origins.is_told(origin_table, begin):
                self._begin_segment()
            done = self._origins.done(origin_table, process, self._table.state.writers)
            wanted = taken_over(base, process, begin, None, done, origin_table.held())
            if self._store.origin == known:
                state = self._store.commit([wanted])
                self._origins.claim(origin_table, wanted, process)
                self._show(state)
            else:
                self.refresh()
        raise AssertionError("the origin is never this daemon's")

    def send(self, sequence: int) -> OriginVerdict:
        """Judge a batch, and add it to the log and to buffers if it is new."""
        origin_table = self._origin_table
        lost = origin_table.state is OriginClaim.LOST
        verdict = OriginVerdict.FOREIGN if lost else origin_table.verdict(sequence)
        if verdict is OriginVerdict.NEW:
            self._seq += 1
            covered = origin_table.covered(sequence)
            parts = tuple(key for key in partitions_of(sequence) if key not in covered)
            record = Logged(self._epoch, self._seq, sequence, parts)
            self._log[self._segment].append(record)
            self._apply(self._segment, record)
        return verdict

    @property
    def _origin_table(self) -> OriginTable:
        return self._origins.table(NAME, TABLE)

    # Commits, as `Commits` and `VersionOverlap` make them

    def persist(self, key: PartitionKey, *, oldest: bool) -> None:
        """Flush a partition's buffers, or only the oldest one."""
        found = list(self._table.partition(key).handles())
        if found:
            self._join(found[:1] if oldest else found)

    def refresh(self) -> None:
        """Read the newest version, and answer from it."""
        if self._store.state.version > self._table.state.version:
            self._show(self._store.state)

    def forget_idle(self, for_s: float) -> None:
        """Forget origins without writes for that long, and roll the log as continued writes
        would.
        """
        self._origins.forget_idle(for_s)
        self.refresh()
        self.roll()

    def _show(self, state: TableState) -> None:
        for _ in range(AT_MOST):
            if not self._freeze_behind(state):
                self._install(state)
                return
            self._join([handle for handle in self.handles() if handle.frozen])
        raise AssertionError("a version is never shown")

    def _join(self, group: list[BufferHandle]) -> None:
        self._freeze(group)
        state = self._commit(self._table.state, group)
        while behind := self._freeze_behind(state, group):
            others = [handle for handle in self.handles() if handle not in group]
            further = [handle for handle in others if self._goes_with(handle, behind)]
            state = self._commit(state, further)
            group = group + further
        self._install(state)
        for handle in group:
            self._table.partitions[handle.partition].frozen.remove(handle)
            self._origins.note_released(handle, handle.origins)

    def _commit(self, base: TableState, group: list[BufferHandle]) -> TableState:
        # The second attempt is based on the newest version, and no other process commits meanwhile.
        for state in (base, self._store.state):
            not_ours = self._claims.left_out(state, group)
            ready = self._ready.ready(self._table, state, frozenset(group))
            claims = self._claims.of(state, group, [], shares_of(ready))
            if claims.seen and claims.seen[NAME] != self._store.origin:
                continue
            rows = [
                Row(sequence, handle.partition)
                for handle, left_out in zip(group, not_ours, strict=True)
                for seq, sequence in self._ops[handle]
                if seq not in left_out
            ]
            applied = [Applied(self.id, h.epoch, *h.partition, h.last_seq) for h in group]
            ready = covered(ready, claims.actions)
            actions = rebase(state, [*applied, *claims.actions, *actions_of(ready)])
            state = self._store.commit(actions, rows)
            for each in ready:
                each.committed_in = state.place
            return state
        raise AssertionError("claims of the newest version do not hold in it")

    def _install(self, state: TableState) -> None:
        self._table.install(state)
        self._checkpoints.settle(TABLE, self._table.state)

    def _freeze_behind(
        self, state: TableState, besides: Collection[BufferHandle] = ()
    ) -> list[BufferHandle]:
        if state.origins is self._table.state.origins:
            return []
        lost = self._claims.lost_rows(self._table, state)
        behind = [handle for handle in lost if handle not in besides]
        self._freeze(behind)
        return behind

    def _freeze(self, handles: Iterable[BufferHandle]) -> None:
        for handle in handles:
            if not handle.frozen:
                self._table.partitions[handle.partition].freeze(0.0)

    def _goes_with(self, handle: BufferHandle, others: Collection[BufferHandle]) -> bool:
        """Whether it is one of these buffers, or has to be flushed before one of them."""
        frozen = list(self._table.partitions[handle.partition].frozen)
        return handle.frozen and any(one in others for one in frozen[frozen.index(handle) :])
