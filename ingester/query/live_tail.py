"""The buffers that a table offers its followers, including recently released ones.

    release ─▶ kept while the table is followed ─▶ gone: after ``query.tail_retain``, or to free
    memory

The loop changes what is kept, under the table's lock; a snapshot is taken under that lock. A
released buffer is either kept or recorded as gone, never neither
(tests/query/test_live_tail.py). Kept rows are in files too, so they may be dropped at any time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from ingester.buffer import BufferedRows, BufferHandle, BufferTree, TableBuffer
from ingester.errors import StaleVersion
from ingester.query.fair_scheduler import CpuAccount
from ingester.query.live_groups import (
    ANSWER_BYTES,
    NO_VERSION,
    BufferTail,
    GoneOperation,
    GoneOperations,
    LiveGroup,
    LogPast,
    Position,
    groups_after,
)
from ingester.query.merge_reader import MergeReader
from ingester.query.parts import rows_at
from ingester.query.read_context import AnswerPart, ReadContext, Selection
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.snapshot import Snapshot
from persist.partitioning import folder_of


class LiveReader:
    """Reads the rows of a live answer; an :class:`ingester.query.stream.Reader`.

    Args:
        rows_of: returns the rows of a buffer, released or not; None if they are gone.
    """

    def __init__(
        self,
        snapshot: LiveSnapshot,
        selection: Selection,
        row_groups: RowGroupCache,
        rows_of: Callable[[BufferHandle], BufferedRows | None],
        account: CpuAccount,
    ) -> None:
        self.selection = selection
        self.snapshot = snapshot
        self.scheduler = row_groups.scheduler
        self.account = account
        self._groups = snapshot.groups
        self._context = ReadContext(snapshot.definition, selection, row_groups, "", account)
        self._rows_of = rows_of

    def parts(self) -> Generator[AnswerPart, None, None]:
        """Yield all parts with at least one row."""
        definition = self.snapshot.definition
        merged = MergeReader(self._context) if definition.keyed else None
        for group in self._groups:
            spec_id, values = group.handle.partition
            name = folder_of(definition.spec_of(spec_id), values)
            parts = (
                self._parts(group, name)
                if merged is None
                else merged.changes(self._batches(group), name)
            )
            for part in parts:
                yield part._replace(group=group)
                self._context.pace.restart()

    def let_go(self) -> None:
        """Release the last part."""
        self._context.slicer.let_go()

    def _parts(self, group: LiveGroup, name: str) -> Iterator[AnswerPart]:
        row = group.begin
        while row < group.end:
            chunks = self._rows(group).chunks()
            rows, piece = self._context.slicer.buffered(chunks, row, group.end)
            del chunks
            row += rows
            if piece.batch.num_rows:
                yield AnswerPart(piece.batch, name, "buffer", piece.nbytes)
            else:
                self._context.pace.let_others()

    def _batches(self, group: LiveGroup) -> Iterator[pa.RecordBatch]:
        row = group.begin
        while row < group.end:
            batch = rows_at(self._rows(group).chunks(), row, group.end)
            row += batch.num_rows
            yield batch

    def _rows(self, group: LiveGroup) -> BufferedRows:
        rows = self._rows_of(group.handle)
        if rows is None:
            version = self.snapshot.version
            raise StaleVersion(
                f"operations {group.first_seq} to {group.last_seq} were flushed while this answer"
                " was read and are no longer kept (query.tail_retain); discard it, load the newest"
                " version and ask again",
                retry_after_s=0.0,
                details={"manifest_version": version, "version": version, "anew": False},
            )
        return rows


LIVE_BYTES = 128 << 20
"""Limit on kept rows in bytes; lower if memory is small."""


@dataclass(slots=True)
class LiveSnapshot(Snapshot):
    """The content of a live answer: groups of buffered rows up to a position."""

    position: Position = field(default=Position(-1, -1))
    more: bool = False
    rows_behind: int = 0
    groups: tuple[LiveGroup, ...] = ()


class Kept(NamedTuple):
    """Rows of a released buffer."""

    table: TableBuffer
    rows: BufferedRows
    version: int
    """The version whose files have them."""
    until: float


@dataclass(slots=True, eq=False)
class TableTail:
    """The released buffers of one table."""

    opened_at: int
    """The manifest version at which the table was opened or switched."""
    table_version: int = 1
    gone: GoneOperations = field(default_factory=GoneOperations)
    kept: OrderedDict[BufferHandle, Kept] = field(default_factory=OrderedDict)
    taken_back: GoneOperation | None = None
    """The newest operation when rows that were already shown moved to another daemon, and the
    version that recorded it."""
    followed_until: float = 0.0
    """Released buffers are kept until then, by the monotonic clock."""


class LiveTails:
    """The released buffers of all tables. Event loop only unless stated otherwise.

    Args:
        past: the known epochs.
        retain_s: how long rows are kept, and how long after its last call a table counts as
            followed.
        retain_bytes: limit on kept bytes of all tables together.
    """

    def __init__(
        self, tree: BufferTree, past: LogPast, *, retain_s: float, retain_bytes: int
    ) -> None:
        self.past = past
        self.nbytes = 0
        """Bytes of the kept rows."""
        self._tree = tree
        self._retain_s = retain_s
        self._retain_bytes = retain_bytes
        self._tails: dict[TableBuffer, TableTail] = {}
        self._kept: OrderedDict[BufferHandle, Kept] = OrderedDict()
        """Kept rows of all tables, oldest first."""

    def now(self, table: TableBuffer) -> Position:
        """Return the table's current position. Thread-safe."""
        return Position(self.past.epoch, self._tree.upto(table))

    def opened(self, table: TableBuffer) -> None:
        """Record a table: what earlier incarnations flushed is gone."""
        own, state = self.past.ingester_id, table.state
        if (known := self._tails.get(table)) is not None:
            if known.table_version == state.table_version:
                return
            # Version numbers start over, so followers restart with the new ones.
            for handle in list(known.kept):
                self._let_go(handle)
        tail = TableTail(state.version, state.table_version)
        if known is not None:
            tail.followed_until = known.followed_until
        self._tails[table] = tail
        applied = [
            Position(epoch, seq) for (id_, epoch, _, _), seq in state.applied.items() if id_ == own
        ]
        if applied:
            tail.gone.note(max(applied), state.version)
        # Adopted: the log's rows are in files, except those of origins that moved to other daemons.
        adopted = [epoch for id_, epoch in state.epochs_complete if id_ == own]
        table.dropped_epoch = max(table.dropped_epoch, *adopted, -1)

    def followed(self, table: TableBuffer) -> None:
        """Record that the table is followed now."""
        self._tails[table].followed_until = time.monotonic() + self._retain_s

    def released(self, table: TableBuffer, handle: BufferHandle) -> None:
        """Keep a buffer's rows, or record them as gone. Called under the table's lock."""
        tail, now = self._tails[table], time.monotonic()
        if handle.taken_back:
            tail.taken_back = GoneOperation(self.now(table), table.state.version)
        if tail.followed_until <= now or handle.taken_back:
            tail.gone.note(Position(handle.epoch, handle.last_seq), table.state.version)
            return
        kept = Kept(table, handle.rows, table.state.version, now + self._retain_s)
        self._kept[handle] = tail.kept[handle] = kept
        self.nbytes += kept.rows.nbytes
        while self.nbytes > self._retain_bytes:
            self._let_go(next(iter(self._kept)))

    def sweep(self) -> bool:
        """Drop expired rows; return whether any are kept or may be."""
        now = time.monotonic()
        self._let_go_while(lambda kept: kept.until <= now)
        return bool(self._kept) or any(t.followed_until > now for t in self._tails.values())

    def shrink(self) -> None:
        """Drop all kept rows to free memory."""
        self._let_go_while(lambda kept: True)

    def rows(self, handle: BufferHandle) -> BufferedRows | None:
        """Return the rows of a buffer, released or not; None if they are gone. Thread-safe."""
        rows = handle.rows
        if not handle.released:
            return rows
        kept = self._kept.get(handle)
        return None if kept is None else kept.rows

    def missing(self, table: TableBuffer, after: Position, version: int) -> GoneOperation | None:
        """Return gone operations after a position that the version's files do not have. Thread-
        safe.
        """
        with table.lock:
            return self._tails[table].gone.behind(after, version)

    def were_taken_back(self, table: TableBuffer, after: Position, told: int) -> bool:
        """Return whether rows that the follower has may have moved to another daemon. Thread-safe.

        Args:
            told: the version that the follower was told last; :data:`NO_VERSION` if unknown.
        """
        if after.epoch <= table.dropped_epoch:
            return True
        by = self._tails[table].taken_back
        if by is None:
            return False
        return after <= by.last if told == NO_VERSION else told < by.version

    def opened_at(self, table: TableBuffer) -> int:
        """Return the manifest version at which the table was opened."""
        return self._tails[table].opened_at

    def snapshot(
        self,
        table: TableBuffer,
        after: Position | None,
        version: int,
        limit: int = ANSWER_BYTES,
    ) -> LiveSnapshot | GoneOperation:
        """Take the operations after a position that the version's files do not have. Thread-safe.

        Args:
            after: None for the current position.
            limit: size of the answer in bytes.
        """
        with table.lock:
            upto, state, definition = self.now(table), table.state, table.definition
            after = upto if after is None else after
            tail = self._tails[table]
            if tail.table_version != state.table_version:
                # The table is being switched, possibly to other columns.
                return GoneOperation(upto, state.version)
            gone = tail.gone.behind(after, version)
            if gone is not None:
                return gone
            # Only what is needed, because the loop may be waiting for the lock.
            tails = [
                BufferTail(handle, kept.rows)
                for handle, kept in tail.kept.items()
                if kept.version > version and (handle.epoch, handle.last_seq) > after
            ]
            if table.newest > after:
                tails += [
                    BufferTail(handle, handle.rows)
                    for handle in table.handles()
                    if (handle.epoch, handle.last_seq) > after
                ]
        whole_before = self.past.after_lost({tail.handle.epoch for tail in tails})
        found = groups_after(tails, after, upto, limit, whole_before)
        return LiveSnapshot(
            definition=definition,
            version=state.version,
            sequence=upto.sequence,
            files=(),
            pins={},
            table_version=state.table_version,
            position=found.position,
            more=found.more,
            rows_behind=found.rows_behind,
            groups=found.groups,
        )

    def _let_go_while(self, condition: Callable[[Kept], bool]) -> None:
        while self._kept:
            handle, kept = next(iter(self._kept.items()))
            if not condition(kept):
                return
            self._let_go(handle)

    def _let_go(self, handle: BufferHandle) -> None:
        kept = self._kept.pop(handle)
        self.nbytes -= kept.rows.nbytes
        tail = self._tails[kept.table]
        with kept.table.lock:
            del tail.kept[handle]
            tail.gone.note(Position(handle.epoch, handle.last_seq), kept.version)
