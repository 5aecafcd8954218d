"""A model of which daemon commits which rows: two daemons, one origin, tables of two partitions.

    open ──▶ send ──▶ queue ──▶ log ──▶ buffers ──flush──▶ files, in versions of the one manifest
                                 └─replay─▲     after a kill; a lost disk has no log

The daemons' own code judges batches, claims sequences, takes origins over and skips rows. All
other parts are as simple as possible. Everything runs sequentially; a daemon knows the versions
of the other one only as of its last refresh, and anything may happen while batches are queued.
"""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal, NamedTuple, cast

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
    WriterAction,
    WriterIdentity,
    apply,
)
from persist.manifest.origins import OriginVerdict, owned, taken_over, verdict_of
from persist.manifest.rebasing import rebase
from persist.partitioning import PartitionSpec
from persist.table import TableDefinition, TableKey
from tests.persist.manifest.samples import in_files, may_commit

NAME, TABLE, OTHER, SOURCE = "w", ("it", "t"), ("it", "u"), "source"
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
    table: TableKey = TABLE


class Carried(NamedTuple):
    """The head of a segment, with the origin's last applied sequence in each table."""

    epoch: int
    sequences: tuple[tuple[TableKey, int], ...]


class Logged(NamedTuple):
    """An operation in the log, with the partitions of its rows."""

    epoch: int
    seq: int
    sequence: int
    partitions: tuple[PartitionKey, ...]
    table: TableKey = TABLE


class Store:
    """The tables' versions, of which only the newest matters, and the rows in their files."""

    def __init__(self, tables: Sequence[TableKey] = (TABLE,)) -> None:
        self.now_s = 0.0
        self.states = dict.fromkeys(tables, apply(TableState(), DEFINITION.actions()))
        self.rows: list[Row] = []

    @property
    def origin(self) -> OriginAction | None:
        return self.origin_in(TABLE)

    def origin_in(self, table: TableKey) -> OriginAction | None:
        return self.states[table].origins.get(NAME)

    def durable_state(self, state: TableState) -> int:
        """The sequence of the source's state in a version; -1 for none."""
        there = state.checkpoints.get(SOURCE)
        return -1 if there is None or there.state is None else int(b64decode(there.state))

    def check(self, rows: Iterable[Row]) -> None:
        """Check that files have each row once, and those that a version says they have.

        Args:
            rows: what the client has sent.
        """
        counts = Counter(self.rows)
        doubled = {row: count for row, count in counts.items() if count > 1}
        assert not doubled, (doubled, self.states)
        runs = {table: owned(known) for table in self.states if (known := self.origin_in(table))}
        absent = [
            row
            for row in rows
            if row.table in runs
            and verdict_of(runs[row.table], row.sequence, None, row.partition).durable
            and not counts[row]
        ]
        assert not absent, (absent, runs)

    def commit(
        self, actions: Iterable[Action], rows: Iterable[Row] = (), table: TableKey = TABLE
    ) -> TableState:
        before = self.states[table]
        state = replace(apply(before, actions), version=before.version + 1)
        self.states[table] = state
        self.rows += rows
        return state


class Daemon:
    """One ingester id with its disk, over all its lives."""

    def __init__(self, store: Store, ingester_id: str) -> None:
        self.id = ingester_id
        self.disk = 0
        """The number of the current disk: how many were lost before."""
        self.up = False
        self._store = store
        self._epoch = 0
        self._log_since = 0
        self._seq = 0
        self._segment = 0
        self._log: dict[int, list[Carried | tuple[Logged, ...]]] = {}
        self._begin_empty()

    # Lifetime

    def start(self) -> None:
        """Start, and replay the log into buffers."""
        self.up = True
        self._epoch += 1
        self._log_since = self._log_since or self._epoch
        self._write_state("open")
        self._begin_empty()
        carried = None
        self._origins.replaying = True
        for segment, records in self._log.items():
            for record in records:
                if isinstance(record, Carried):
                    carried = record
                else:
                    for logged in record:
                        self._replay(segment, logged)
        if carried is not None:
            told = [(NAME, *table, sequence) for table, sequence in carried.sequences]
            self._origins.restore_all(told, (self.id, carried.epoch))
        self._origins.replaying = False
        self._begin_segment()

    def kill(self) -> None:
        """Lose everything but the log."""
        self.up = False

    def cut(self) -> None:
        """Be killed when what is queued is in the log, and nothing more."""
        if self.up:
            for sequence in self._queued:
                self._log_of(sequence, {TABLE: partitions_of(sequence)})
        self.kill()

    def stop(self) -> None:
        """Flush everything, and close the tables."""
        self.write()
        for key in self._tables:
            self.persist_table(key)
        self.refresh()
        assert not self.handles()
        self._write_state("closed")
        self.up = False

    def _write_state(self, state: Literal["open", "closed"]) -> None:
        for key in self._tables:
            self._store.commit([WriterAction(self.id, "run", self._epoch, state)], table=key)

    def lose_disk(self) -> None:
        """Lose the log as well, while the daemon is down."""
        self._log.clear()
        self._log_since = 0
        self.disk += 1

    def _begin_empty(self) -> None:
        self._origins = Origins(lambda: self._store.now_s)
        self._origins.log_since = self._log_since
        self._claims = OriginClaims(self._origins, WriterIdentity(self.id, "run", self._epoch))
        self._tables = {key: TableBuffer(*key, state) for key, state in self._store.states.items()}
        self._checkpoints, self._missing = Checkpoints(), MissingSequences()
        holder = SimpleNamespace(origins=self._origins, checkpoints=self._checkpoints)
        self._ready = CheckpointClaims(cast(BufferTree, holder))
        self._ops: dict[BufferHandle, list[tuple[int, int]]] = {}
        self._table_of: dict[BufferHandle, TableBuffer] = {}
        self._begun: dict[TableKey, int] = {}
        self._stream: object = None
        self._unread: list[int] = []
        self._queued: list[int] = []

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
            sequences = tuple(((space, name), last) for _, space, name, last in carried)
            self._log[self._segment].append(Carried(self._epoch, sequences))

    def _replay(self, segment: int, record: Logged) -> None:
        """Mirrors `Replay`."""
        process, key = (self.id, record.epoch), record.table
        state, origin_table = self._tables[key].state, self._origin_table(key)
        known = state.origins.get(NAME)
        if known is not None and origin_table.owner is None:
            self._origins.load(origin_table, known, self.id)
        left = tuple(
            part
            for part in record.partitions
            if state.applied_to(self.id, record.epoch, *part) < record.seq
        )
        rest = set(record.partitions) - set(left)
        applies = may_commit(known, record.sequence, process) and (
            known is None or all(in_files(known, record.sequence, part) for part in rest)
        )
        there = applies or all(in_files(known, record.sequence, part) for part in record.partitions)
        if not there:
            self._checkpoints.forget_from(key, NAME, record.sequence)
        whole = self._missing.note(key, NAME, record.sequence, there=there)
        if applies and (left or whole):
            self._apply(segment, record._replace(partitions=left), whole=whole)

    # Buffers

    def handles(self, table: TableKey | None = None) -> list[BufferHandle]:
        """The buffers, partition by partition, each in log order."""
        tables = self._tables.values() if table is None else [self._tables[table]]
        return [handle for each in tables for handle in each.handles()]

    def _apply(self, segment: int, record: Logged, *, whole: bool = True) -> None:
        """Mirrors `BufferTree`."""
        holders = []
        epoch, seq, sequence, partitions, key = record
        table = self._tables[key]
        for values in partitions:
            part = table.partition(values)
            if part.active is not None and part.active.epoch != epoch:
                part.freeze(0.0)
            if part.active is None:
                part.active = BufferHandle(
                    values, keyed=False, epoch=epoch, first_seq=seq, segment=segment
                )
                self._table_of[part.active] = table
            part.active.last_seq = seq
            self._ops.setdefault(part.active, []).append((seq, sequence))
            holders.append(part.active)
        tenure = self._origins.note_applied(NAME, key, sequence, seq, holders, (self.id, epoch))
        for handle in holders:
            handle.origins[tenure] = sequence
        given = SourceCheckpoint(
            SOURCE, str(sequence).encode(), at=f"2026-01-01T{self._store.now_s:06}"
        )
        stamp = given.stamp((self.id, epoch), seq, NAME, sequence)
        if whole and stamp.replaces(table.state.checkpoints.get(SOURCE)):
            self._checkpoints.note(key, PendingCheckpoint(given, stamp, segment, tenure, 0.0))

    # A stream

    def state(self) -> int:
        """The sequence after which a source resumes, as `CheckpointCalls.get` reports it; -1 for
        none.
        """
        self.refresh()
        state = self._tables[TABLE].state
        newest = self._checkpoints.newest(TABLE, SOURCE, state)
        if newest is not None and newest.given.state is not None:
            return int(newest.given.state)
        return self._store.durable_state(state)

    def open(self, first: int, key: TableKey = TABLE) -> None:
        """Mirrors `OriginTakeover.take`: sequences from ``first`` can be judged after this call."""
        origin_table, process = self._origin_table(key), (self.id, self._epoch)
        if key == TABLE:  # what the former stream has not read is not written any more
            self._stream, self._unread = object(), []
            self._write_queued()
        if origin_table.owns(first):
            self.refresh()
        for _ in range(AT_MOST):
            if origin_table.owns(first):
                return
            state = self._tables[key].state
            known = state.origins.get(NAME)
            base = known or origin_table.unknown_origin(process)
            self._origins.load(origin_table, base, self.id)
            foreign = origin_table.first_foreign(first, process)
            begin = first if foreign is None else foreign
            if self._origins.is_told(origin_table, begin):
                self._begin_segment()
            done = self._origins.done(origin_table, process, state.writers)
            wanted = taken_over(base, process, begin, None, done, origin_table.held())
            if self._store.origin_in(key) == known:
                committed = self._store.commit([wanted], table=key)
                self._origins.claim(origin_table, wanted, process)
                self._show(key, committed)
            else:
                self.refresh()
        raise AssertionError("the origin is never this daemon's")

    def send(self, sequence: int) -> OriginVerdict:
        """Judge a batch, and add it to the log and to buffers if it is new."""
        if self._queue(sequence):
            self._write_queued()
            return OriginVerdict.NEW
        # It waits for what is under way.
        self._write_queued()
        verdict = self._verdict(TABLE, sequence)
        if verdict is OriginVerdict.NEW:
            self._write(sequence, {TABLE: partitions_of(sequence)})
        return verdict

    def send_ahead(self, sequences: Iterable[int], *, unread: bool) -> None:
        """Send batches that are answered by :meth:`write`. ``unread``: they are judged there."""
        self._unread += sequences
        if not unread:
            self._read()

    @property
    def settled(self) -> int:
        """Up to where all is in files, as the next answer tells it; -1 for nothing."""
        settled = self._origins.get(NAME).settled_sequence
        return -1 if settled is None else settled

    def write(self) -> list[int]:
        """Read what was sent ahead and write the queue; return the sequences that are accepted."""
        self._read()
        accepted = self._write_queued()
        unread, self._unread = self._unread, []
        for sequence in unread:
            if self.send(sequence) is OriginVerdict.FOREIGN:
                break  # which ends the stream
            accepted.append(sequence)
        return accepted

    def _read(self) -> None:
        while self._unread and self._queue(self._unread[0]):
            del self._unread[0]

    def _queue(self, sequence: int) -> bool:
        """Mirrors `WriteStream.append`: queue a batch that needs no decision."""
        origin, spec_id = self._origins.get(NAME), DEFINITION.spec_id
        if sequence <= (-1 if (done := origin.settled_sequence) is None else done):
            return False
        if not self._origin_table(TABLE).reserve(sequence, spec_id, self._stream):
            return False
        self._queued.append(sequence)
        return True

    def _write_queued(self) -> list[int]:
        queued, self._queued = self._queued, []
        fates = self._origin_table(TABLE).fates
        for sequence in queued:
            for logged in self._log_of(sequence, {TABLE: partitions_of(sequence)}):
                self._apply(self._segment, logged)
            fates.end(sequence, None)
        return queued

    def transact(
        self, sequence: int, changes: Mapping[TableKey, Sequence[PartitionKey]]
    ) -> tuple[dict[TableKey, OriginVerdict], list[Row]]:
        """Mirrors `TransactionDedup`: judge a transaction in each of its tables, and write it to
        those that lack it.

        Returns:
            The verdicts, and the rows that were written.
        """
        verdicts = {}
        for key in changes:
            begun = self._begun.get(key)
            if begun is None or sequence < begun or not self._origin_table(key).owns(sequence):
                self.open(sequence, key)
                self._begun[key] = sequence
            verdicts[key] = self._verdict(key, sequence)
        new = {key: changes[key] for key, it in verdicts.items() if it is OriginVerdict.NEW}
        return verdicts, self._write(sequence, new) if new else []

    def _verdict(self, key: TableKey, sequence: int) -> OriginVerdict:
        origin_table = self._origin_table(key)
        if origin_table.state is OriginClaim.LOST:
            return OriginVerdict.FOREIGN
        return origin_table.verdict(sequence)

    def _write(
        self, sequence: int, changes: Mapping[TableKey, Sequence[PartitionKey]]
    ) -> list[Row]:
        record = self._log_of(sequence, changes)
        for logged in record:
            self._apply(self._segment, logged)
        return [Row(sequence, part, one.table) for one in record for part in one.partitions]

    def _log_of(
        self, sequence: int, changes: Mapping[TableKey, Sequence[PartitionKey]]
    ) -> list[Logged]:
        record = []
        for key, partitions in changes.items():
            self._seq += 1
            covered = self._origin_table(key).covered(sequence)
            parts = tuple(each for each in partitions if each not in covered)
            record.append(Logged(self._epoch, self._seq, sequence, parts, key))
        self._log[self._segment].append(tuple(record))
        return record

    def _origin_table(self, key: TableKey) -> OriginTable:
        return self._origins.table(NAME, key)

    # Commits, as `Commits` and `VersionOverlap` make them

    def persist(self, partition: PartitionKey, *, oldest: bool, key: TableKey = TABLE) -> None:
        """Flush a partition's buffers, or only the oldest one."""
        found = list(self._tables[key].partition(partition).handles())
        if found:
            self._join(key, found[:1] if oldest else found)

    def persist_table(self, key: TableKey) -> None:
        """Flush a table as a whole, as one with replicated changes is."""
        if found := self.handles(key):
            self._join(key, found)

    def refresh(self) -> None:
        """Read the newest versions, and answer from them."""
        for key, table in self._tables.items():
            if self._store.states[key].version > table.state.version:
                self._show(key, self._store.states[key])

    def forget_idle(self, for_s: float) -> None:
        """Forget origins without writes for that long, and roll the log as continued writes
        would.
        """
        self._origins.forget_idle(for_s)
        self.refresh()
        self.roll()

    def _show(self, key: TableKey, state: TableState) -> None:
        for _ in range(AT_MOST):
            if not self._freeze_behind(key, state):
                self._install(key, state)
                return
            self._join(key, [handle for handle in self.handles(key) if handle.frozen])
        raise AssertionError("a version is never shown")

    def _join(self, key: TableKey, group: list[BufferHandle]) -> None:
        self._freeze(group)
        state = self._commit(key, self._tables[key].state, group)
        while behind := self._freeze_behind(key, state, group):
            others = [handle for handle in self.handles(key) if handle not in group]
            further = [handle for handle in others if self._goes_with(handle, behind)]
            state = self._commit(key, state, further)
            group = group + further
        self._install(key, state)
        for handle in group:
            self._tables[key].partitions[handle.partition].frozen.remove(handle)
            self._origins.note_released(handle, handle.origins)

    def _commit(self, key: TableKey, base: TableState, group: list[BufferHandle]) -> TableState:
        # The second attempt is based on the newest version, and no other process commits meanwhile.
        for state in (base, self._store.states[key]):
            not_ours = self._claims.left_out(state, group)
            ready = self._ready.ready(self._tables[key], state, frozenset(group))
            claims = self._claims.of(state, group, [], shares_of(ready))
            if claims.seen and claims.seen[NAME] != self._store.origin_in(key):
                continue
            rows = [
                Row(sequence, handle.partition, key)
                for handle, left_out in zip(group, not_ours, strict=True)
                for seq, sequence in self._ops[handle]
                if seq not in left_out
            ]
            applied = [Applied(self.id, h.epoch, *h.partition, h.last_seq) for h in group]
            ready = covered(ready, claims.actions)
            actions = rebase(state, [*applied, *claims.actions, *actions_of(ready)])
            state = self._store.commit(actions, rows, key)
            for each in ready:
                each.committed_in = state.place
            return state
        raise AssertionError("claims of the newest version do not hold in it")

    def _install(self, key: TableKey, state: TableState) -> None:
        self._tables[key].install(state)
        self._checkpoints.settle(key, self._tables[key].state)

    def _freeze_behind(
        self, key: TableKey, state: TableState, besides: Collection[BufferHandle] = ()
    ) -> list[BufferHandle]:
        table = self._tables[key]
        if state.origins is table.state.origins:
            return []
        lost = self._claims.lost_rows(table, state)
        behind = [handle for handle in lost if handle not in besides]
        self._freeze(behind)
        return behind

    def _freeze(self, handles: Iterable[BufferHandle]) -> None:
        for handle in handles:
            if not handle.frozen:
                self._table_of[handle].partitions[handle.partition].freeze(0.0)

    def _goes_with(self, handle: BufferHandle, others: Collection[BufferHandle]) -> bool:
        """Whether it is one of these buffers, or has to be flushed before one of them."""
        frozen = list(self._table_of[handle].partitions[handle.partition].frozen)
        return handle.frozen and any(one in others for one in frozen[frozen.index(handle) :])
