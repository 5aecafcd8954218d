"""Applies rows to a sink: live answers, files, and the plan for a later manifest version.

Everything happens in the caller's transaction and keeps the ledger of groups in line with the rows.
If a sink cannot take rows back, :class:`RebuildNeeded` is raised before anything is changed. A
version is identified by its number and its unique id, so a table that was dropped and created again
is detected.

In a keyed table the last row of a key in an answer counts, whether it is a deletion or not. So no
key occurs twice, and puts and deletes may be applied in either order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingester.followers.errors import FellBehind, TableReplaced, table_recreated
from ingester.followers.feed import OPERATION, GroupOf, LiveAnswer, LiveBatch
from ingester.followers.files import FilePiece, Files, fitted, selected
from ingester.followers.fold import Fold, fold_appended, fold_keyed
from ingester.followers.place import RebuildNeeded, SinkCalls, StateKeeper
from ingester.followers.sink import FROM_FILES, FollowedTable, Rows, Run
from ingester.followers.state import FollowedGroup, Ledger, part_name
from persist.manifest import Add, PartitionKey, TableState, VersionNotKept
from persist.table import TableDefinition

DELETE = "delete"


@dataclass(slots=True)
class CopyProgress:
    """Counts since the follower started. Other threads may read them at any time.

    Attributes:
        files, bytes: Of the version that is being filled: those put, and all.
        current_at: The copy has everything acknowledged up to this moment, by ``now``.
        lag_operations: The operations that the copy lacked at the daemon's last answer.
        lag_rows: The rows of the table that the copy lacked then.
    """

    now: Callable[[], float] = time.monotonic
    put_rows: int = 0
    deleted_rows: int = 0
    files: tuple[int, int] = (0, 0)
    bytes: tuple[int, int] = (0, 0)
    lag_operations: int = 0
    lag_rows: int = 0
    current_at: float | None = None

    def continues(self, former: CopyProgress) -> None:
        """Continue the counts of the copy of another version, which this one will replace."""
        self.put_rows += former.put_rows
        self.deleted_rows += former.deleted_rows
        self.current_at = former.current_at

    def filling(self, adds: Sequence[Add], done: int) -> None:
        """A fill of these files continues; ``done`` of them are put."""
        self.files, self.bytes = (0, len(adds)), (0, sum(add.bytes for add in adds))
        self.filled(adds[:done])

    def filled(self, adds: Sequence[Add]) -> None:
        """These files are put."""
        self.files = (len(adds), self.files[1])
        self.bytes = (sum(add.bytes for add in adds), self.bytes[1])

    def answered(self, answer: LiveAnswer) -> None:
        """The daemon has answered; the rows are not in the copy yet."""
        self.lag_rows = answer.rows_behind + sum(each.rows.num_rows for each in answer.batches)

    def caught_up(self, answer: LiveAnswer, asked_at: float | None = None) -> None:
        """The copy has everything that existed when the question was asked."""
        self.current_at = self.now() if asked_at is None else asked_at
        self.lag_rows = answer.rows_behind
        newest = answer.newest
        self.lag_operations = 0 if newest is None else max(0, newest - answer.position.sequence)

    def lag_s(self) -> float | None:
        """The age of the copy in seconds; None before it is complete."""
        return None if self.current_at is None else self.now() - self.current_at


class Resync(Exception):
    """The remaining groups have to be read again, from what a version's files lack."""


class Applying:
    """Adds rows to one sink and removes them, and knows the version whose files the copy has."""

    def __init__(
        self,
        table: FollowedTable,
        files: Files,
        sink: SinkCalls,
        keeper: StateKeeper,
        progress: CopyProgress,
    ) -> None:
        self._table = table
        self._files = files
        self._sink = sink
        self._keeper = keeper
        self._progress = progress
        self._schema = table.schema
        self._known: TableState | None = None

    def forget(self) -> None:
        """Rely on the stored state alone."""
        self._known = None

    def begin(self, version: TableState) -> None:
        """Set the version whose files the copy has; the caller writes it into the state."""
        self._known = version

    def version(self) -> TableState:
        """The manifest's state at the version that the copy has.

        Raises:
            RebuildNeeded: Garbage collection removed it.
            TableReplaced: It belongs to another table of the same name.
        """
        kept = self._keeper.state
        if self._known is None or self._known.version != kept.version:
            try:
                found = self._files.version(kept.version)
            except VersionNotKept as exc:
                if exc.newest < kept.version:
                    raise self._recreated(kept.version) from exc
                raise RebuildNeeded from exc
            if found.uid != kept.uid:
                raise self._recreated(kept.version)
            self._known = found
            self._learn_columns(found)
        return self._known

    def fold(self, now: TableState, emptied: Collection[PartitionKey] | None = None) -> None:
        """Apply the files of a later version.

        Args:
            emptied: If all groups were removed before: the partitions of a keyed table that have
                to be read again because of it.

        Raises:
            Resync: Groups have to be read again and were not removed.
            RebuildNeeded, TableReplaced: As for :meth:`version`.
        """
        before = self.version()
        plan = self._plan(before, now) if now.version != before.version else Fold()
        if emptied is not None:
            plan.reloads = list(dict.fromkeys([*plan.reloads, *emptied]))
            plan.diffs = [partition for partition in plan.diffs if partition not in emptied]
        elif plan.resync:
            raise Resync
        self._carry_out(plan, before, now)
        self._known = now
        self._keeper.set(version=now.version, uid=now.uid)

    def _plan(self, before: TableState, now: TableState) -> Fold:
        if now.version < before.version:
            raise self._recreated(before.version)
        try:
            changes = self._files.changes(before.version, now.version)
        except VersionNotKept as exc:
            raise RebuildNeeded from exc
        ledger, seen = self._keeper.ledger, self._keeper.seen
        if self._table.keyed:
            return fold_keyed(ledger, seen, before, now, changes)
        return fold_appended(
            ledger, seen, before, now, changes, lambda add: self._files.count(now, add)
        )

    def _recreated(self, version: int) -> TableReplaced:
        return table_recreated(self._table.namespace, self._table.table, version)

    def _learn_columns(self, now: TableState) -> None:
        """Add the columns of a version, unless columns were selected."""
        if self._table.columns is None:
            schema = selected(TableDefinition.of_state(now).schema, None)
            self._schema = with_new_columns(self._schema, schema)

    def take(self, answers: Sequence[LiveAnswer]) -> None:
        """Put the rows of consecutive answers and advance the state.

        Rows in the files of the copy's version are skipped.

        Raises:
            Resync: A group is partly in files.
        """
        known = self.version()
        for answer in answers if self._table.columns is None else ():
            self._schema = with_new_columns(self._schema, answer.schema)
        schema, seen = self._schema, self._keeper.seen
        if self._table.keyed:
            schema = schema.append(pa.field(OPERATION, pa.string()))
        arrived = []
        for one in grouped([b for answer in answers for b in answer.batches], schema):
            of = one.of
            applied = known.applied_to(seen.ingester_id, of.epoch, *of.partition)
            if of.last_seq <= applied or seen.is_below(of.epoch, of.last_seq):
                continue
            if of.first_seq <= applied and not self._table.keyed:
                raise Resync
            arrived.append(one)
        next_at = self._keeper.state.next_at
        if arrived:
            groups, next_at = numbered(arrived, self._keeper.ledger, next_at)
            self._put_arrived(arrived, groups)
        self._keeper.set(position=answers[-1].position, next_at=next_at)

    def _put_arrived(self, arrived: Sequence[GroupRows], groups: Sequence[FollowedGroup]) -> None:
        if self._table.keyed:
            put, keys = merged(arrived, groups, self._table.primary_key)
            if keys is not None:
                self._sink.delete(keys)
                self._progress.deleted_rows += keys.num_rows
        else:
            put = appended(arrived, groups)
        if put is not None:
            self._sink.put(put)
            self._progress.put_rows += put.batch.num_rows

    def take_out_groups(self) -> list[PartitionKey]:
        """Remove all groups that are not in a file.

        Returns:
            The partitions of a keyed table that have to be read again, because the rows that the
            groups replaced are unknown.
        """
        ledger = self._keeper.ledger
        groups = list(ledger)
        if groups and not self._sink.takes_back:
            raise RebuildNeeded
        ledger.drop(groups)
        if self._table.keyed:
            if groups and self._keeper.state.floor is not None:
                raise FellBehind(
                    "operations that are not in a file may be lost, and a copy that did not begin"
                    " at the beginning does not have the rows before them; seek to the beginning"
                )
            return list(dict.fromkeys(group.partition for group in groups))
        self._take_back(groups)
        return []

    def _carry_out(self, plan: Fold, before: TableState, now: TableState) -> None:
        """Execute a plan, so that the copy has the files of a later version."""
        if (plan.taken_back or plan.reloads) and not self._sink.takes_back:
            raise RebuildNeeded
        ledger = self._keeper.ledger
        self._learn_columns(now)
        self._take_back(plan.taken_back)
        ledger.drop([*plan.retired, *plan.taken_back])
        for partition in plan.reloads:
            keep = sorted(group.at for group in ledger.of_partition(partition))
            self._sink.take_back_all(part_name(partition), keep)
            self._load(now, list(now.partitions.get(partition, ())))
        self._load(now, plan.loads)
        for partition in plan.diffs:
            self._merge_difference(before, now, partition)

    def _take_back(self, groups: Sequence[FollowedGroup]) -> None:
        numbers: dict[str, dict[int, None]] = {}
        for group in groups:
            numbers.setdefault(part_name(group.partition), {})[group.at] = None
        for part, each in numbers.items():
            self._sink.take_back(part, list(each))

    def _merge_difference(
        self, before: TableState, now: TableState, partition: PartitionKey
    ) -> None:
        """Update the keys that changed with the files of a keyed table's partition."""
        old = [a for a in before.partitions.get(partition, ()) if a.path not in now.files]
        new = [a for a in now.partitions.get(partition, ()) if a.path not in before.files]
        names = list(self._table.primary_key)
        if old:
            gone = _all_rows(self._files.pieces(now, old, names))
            if new:
                # Rows of the copy that no longer match the filter are deleted as well.
                matching = _all_rows(self._files.pieces(now, new)).select(names)
                gone = missing_keys(gone, matching)
            self._sink.delete(gone)
        elif new and self._table.filter is not None:
            self._sink.delete(_all_rows(self._files.pieces(now, new, names)))
        self._load(now, new)

    def _load(self, now: TableState, adds: Sequence[Add]) -> None:
        if adds:
            pieces = iter(self._files.pieces(now, adds))
            for _ in adds:
                self.put_file(pieces)

    def put_file(self, pieces: Iterator[FilePiece]) -> None:
        """Put the rows of the next file."""
        for add, rows, last in pieces:
            self._sink.put(from_file(rows, part_name(add.partition)))
            self._progress.put_rows += rows.num_rows
            if last:
                return


def _all_rows(pieces: Iterator[FilePiece]) -> pa.Table:
    return pa.concat_tables(piece.rows for piece in pieces)


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The rows of one group."""

    of: GroupOf
    rows: pa.Table


def grouped(batches: Sequence[LiveBatch], schema: pa.Schema) -> list[GroupRows]:
    """The groups of an answer in order, with exactly these columns."""
    found = []
    for of, each in groupby(batches, key=lambda batch: batch.group):
        rows = pa.Table.from_batches([batch.rows for batch in each])
        found.append(GroupRows(of, fitted(rows, schema)))
    return found


def numbered(
    arrived: Sequence[GroupRows], ledger: Ledger, next_at: int
) -> tuple[list[FollowedGroup], int]:
    """The groups with their numbers, added to the ledger, and the next free number."""
    groups = []
    for one in arrived:
        of = one.of
        group = FollowedGroup(
            of.partition, of.epoch, of.first_seq, of.last_seq, one.rows.num_rows, 0, of.buffer
        )
        group = group._replace(at=ledger.number(group, next_at))
        next_at = max(next_at, group.at + 1)
        ledger.add(group)
        groups.append(group)
    return groups, next_at


def appended(arrived: Sequence[GroupRows], groups: Sequence[FollowedGroup]) -> Rows:
    """The rows of at least one group, for ``put``."""
    runs = tuple(Run(part_name(group.partition), group.at, group.rows) for group in groups)
    return Rows(pa.concat_tables([one.rows for one in arrived]), runs)


def merged(
    arrived: Sequence[GroupRows], groups: Sequence[FollowedGroup], primary_key: Sequence[str]
) -> tuple[Rows | None, pa.Table | None]:
    """The rows to put and the keys to delete, from at least one group of a keyed table."""
    table = pa.concat_tables([one.rows for one in arrived])
    places = np.repeat(np.arange(len(arrived)), [one.rows.num_rows for one in arrived])
    if len(arrived) > 1 and (last := last_of_each_key(table, primary_key)) is not None:
        table, places = table.take(pa.array(last)), places[last]
    gone = pc.equal(table.column(OPERATION), DELETE)
    keys = table.filter(gone).select(list(primary_key))
    kept = pc.invert(gone)
    rows = table.filter(kept).drop_columns([OPERATION])
    places = places[kept.combine_chunks().to_numpy(zero_copy_only=False)]
    runs = tuple(
        Run(part_name(groups[place].partition), groups[place].at, len(list(run)))
        for place, run in groupby(places.tolist())
    )
    return (Rows(rows, runs) if rows.num_rows else None, keys if keys.num_rows else None)


def last_of_each_key(table: pa.Table, primary_key: Sequence[str]) -> np.ndarray | None:
    """The indices of the last row of each key, rising; None if no key repeats."""
    numbers, count = _key_numbers([table.column(name) for name in primary_key])
    last = np.full(count, -1)
    last[numbers] = np.arange(table.num_rows)  # the last assignment wins
    found = last[last >= 0]
    return None if len(found) == table.num_rows else np.sort(found)


def missing_keys(keys: pa.Table, others: pa.Table) -> pa.Table:
    """The keys that are not among others; both have exactly the columns of the primary key."""
    both = pa.concat_tables([keys, others.cast(keys.schema)])
    numbers, count = _key_numbers(both.columns)
    found = np.zeros(count, np.bool_)
    found[numbers[keys.num_rows :]] = True
    return keys.filter(pa.array(~found[numbers[: keys.num_rows]]))


def _key_numbers(columns: Sequence[pa.ChunkedArray]) -> tuple[np.ndarray, int]:
    """A number for each row, equal exactly for equal keys, and an upper bound of the numbers."""
    numbers, count = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        pairs = numbers * max(1, len(encoded.dictionary)) + codes
        distinct, numbers = np.unique(pairs, return_inverse=True)
        count = len(distinct)
    return numbers, max(1, count)


def from_file(rows: pa.Table, part: str) -> Rows:
    """Rows of a file, for ``put``."""
    return Rows(rows, (Run(part, FROM_FILES, rows.num_rows),))


def with_new_columns(known: pa.Schema, seen: pa.Schema) -> pa.Schema:
    """The known columns, and behind them those that only ``seen`` has."""
    for field in seen:
        if field.name != OPERATION and known.get_field_index(field.name) < 0:
            known = known.append(field.with_nullable(True))
    return known
