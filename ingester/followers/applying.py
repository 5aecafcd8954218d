"""What is done to a sink: rows that came live, files that are read, and what a plan says.

Law of this file: everything happens in the caller's transaction, and leaves the ledger as the rows
are. What a sink cannot do, such as taking rows back, is asked for by :class:`BuildAnew`, before
anything is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from ingester.followers import batches
from ingester.followers.errors import FellBehind
from ingester.followers.feed import OPERATION, LiveAnswer
from ingester.followers.files import Files, Piece, selected
from ingester.followers.fold import Fold
from ingester.followers.guard import Guard
from ingester.followers.keeping import BuildAnew, Keeping
from ingester.followers.progress import Progress
from ingester.followers.sink import FollowedTable
from ingester.followers.state import Group, part_name
from persist.manifest import Add, PartitionKey, TableState
from persist.table import TableDefinition


class Resync(Exception):
    """The groups that are left have to come again, from what a version's files lack."""


class Applying:
    """Puts into one sink, and takes out of it."""

    def __init__(
        self,
        table: FollowedTable,
        files: Files,
        sink: Guard,
        keeping: Keeping,
        progress: Progress,
    ) -> None:
        self._table = table
        self._files = files
        self._sink = sink
        self._keeping = keeping
        self._progress = progress
        self._schema = table.schema

    def learn_columns(self, now: TableState) -> None:
        """Give rows the columns that a version has, unless only some were asked for."""
        if self._table.columns is None:
            schema = selected(TableDefinition.of_state(now).schema, None)
            self._schema = batches.with_new_columns(self._schema, schema)

    def take(self, answers: Sequence[LiveAnswer], known: TableState) -> None:
        """Put the rows of answers that follow one another, with the state behind them.

        Args:
            known: The version whose files the copy has; what these have is left out.

        Raises:
            Resync: A group is partly in files.
        """
        for answer in answers if self._table.columns is None else ():
            self._schema = batches.with_new_columns(self._schema, answer.schema)
        schema, seen = self._schema, self._keeping.seen
        if self._table.keyed:
            schema = schema.append(pa.field(OPERATION, pa.string()))
        arrived = []
        for one in batches.grouped([b for answer in answers for b in answer.batches], schema):
            of = one.of
            applied = known.applied_to(seen.ingester_id, of.epoch, *of.partition)
            if of.last_seq <= applied or seen.is_below(of.epoch, of.last_seq):
                continue
            if of.first_seq <= applied and not self._table.keyed:
                raise Resync
            arrived.append(one)
        next_at = self._keeping.state.next_at
        if arrived:
            groups, next_at = batches.numbered(arrived, self._keeping.ledger, next_at)
            self._put_arrived(arrived, groups)
        self._keeping.set(position=answers[-1].position, next_at=next_at)

    def _put_arrived(self, arrived: Sequence[batches.Arrived], groups: Sequence[Group]) -> None:
        if self._table.keyed:
            put, keys = batches.merged(arrived, groups, self._table.primary_key)
            if keys is not None:
                self._sink.delete(keys)
                self._progress.deleted_rows += keys.num_rows
        else:
            put = batches.appended(arrived, groups)
        if put is not None:
            self._sink.put(put)
            self._progress.put_rows += put.batch.num_rows

    def take_out_groups(self) -> list[PartitionKey]:
        """Take out all groups that are in no file.

        Returns:
            Partitions of a keyed table, to be read anew: what was there before is not known.
        """
        ledger = self._keeping.ledger
        groups = list(ledger)
        if groups and not self._sink.takes_back:
            raise BuildAnew
        ledger.drop(groups)
        if self._table.keyed:
            if groups and self._keeping.state.floor is not None:
                raise FellBehind(
                    "operations may be lost that are in no file, and a copy that did not begin at"
                    " the beginning cannot know the rows before them; seek to the beginning"
                )
            return list(dict.fromkeys(group.partition for group in groups))
        self._take_back(groups)
        return []

    def carry_out(self, plan: Fold, before: TableState, now: TableState) -> None:
        """Do what a plan says, so that the copy has the files of a later version."""
        if (plan.taken_back or plan.reloads) and not self._sink.takes_back:
            raise BuildAnew
        ledger = self._keeping.ledger
        self.learn_columns(now)
        self._take_back(plan.taken_back)
        ledger.drop([*plan.retired, *plan.taken_back])
        for partition in plan.reloads:
            keep = sorted(group.at for group in ledger.of_partition(partition))
            self._sink.take_back_all(part_name(partition), keep)
            self._load(now, list(now.partitions.get(partition, ())))
        self._load(now, plan.loads)
        for partition in plan.diffs:
            self._merge_difference(before, now, partition)

    def _take_back(self, groups: Sequence[Group]) -> None:
        numbers: dict[str, dict[int, None]] = {}
        for group in groups:
            numbers.setdefault(part_name(group.partition), {})[group.at] = None
        for part, each in numbers.items():
            self._sink.take_back(part, list(each))

    def _merge_difference(
        self, before: TableState, now: TableState, partition: PartitionKey
    ) -> None:
        """Bring the keys up to date that files of a keyed table's partition have changed."""
        old = [a for a in before.partitions.get(partition, ()) if a.path not in now.files]
        new = [a for a in now.partitions.get(partition, ()) if a.path not in before.files]
        names = list(self._table.primary_key)
        if old:
            gone = _all_rows(self._files.pieces(now, old, names))
            if new:
                # Of the rows of the copy: those that match no more are gone, too.
                there = _all_rows(self._files.pieces(now, new)).select(names)
                gone = batches.missing_keys(gone, there)
            self._sink.delete(gone)
        elif new and self._table.filter is not None:
            self._sink.delete(_all_rows(self._files.pieces(now, new, names)))
        self._load(now, new)

    def _load(self, now: TableState, adds: Sequence[Add]) -> None:
        if adds:
            pieces = iter(self._files.pieces(now, adds))
            for _ in adds:
                self.put_file(pieces)

    def put_file(self, pieces: Iterator[Piece]) -> None:
        """Put the rows of the next file."""
        for add, rows, last in pieces:
            self._sink.put(batches.from_file(rows, part_name(add.partition)))
            self._progress.put_rows += rows.num_rows
            if last:
                return


def _all_rows(pieces: Iterator[Piece]) -> pa.Table:
    return pa.concat_tables(piece.rows for piece in pieces)
