"""Commits a transaction: folded, completed, split by partition, encoded and logged.

    messages ─ fold ─▶ one change per key ─ look up kept values ─▶ whole rows ─▶ one log record

Kept values are looked up under the tables' write latches: no other writer changes a table between
the look-up and the log record. :class:`PointLookup` reads rows of a keyed table by key from files
and buffers; it skips files and row groups whose bounds exclude the keys. Work per row runs in
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import trio

from ingester.buffer import TableBuffer
from ingester.config.levels import AckLevels
from ingester.dml.control_records import encode_opened, make_transaction
from ingester.dml.operation import Transaction
from ingester.dml.record import LoggedSchema, TableRows, table_rows
from ingester.errors import BadRequest
from ingester.query.read_context import Selection
from ingester.query.reader import PartReader
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.snapshot import Upto, snapshot_all
from ingester.query.stream import AnswerStream
from ingester.query.ticket import predicate_of
from ingester.replication.dedup import NewChanges, TransactionDedup
from ingester.replication.fold import (
    Changes,
    Folded,
    check_moved_onto,
    check_overwritten,
    fold,
    kept_keys,
    moved_onto,
    whole_rows,
)
from ingester.replication.messages import joined
from ingester.replication.open_transactions import TableChanges
from ingester.write.dedup import behind_the_store, without_covered
from ingester.write.operation_log import OperationLog
from ingester.write.partition_room import PartitionRoom
from persist.manifest.actions import Content
from persist.parquet.sparse_rows import SparseRows, concatenated
from persist.partitioning import PartitionedRows, PartitionValueTooLong, order_by_partition
from persist.table import TableDefinition, TableKey
from wal import Entry, RecordKind, Route

JOINED = 16
"""The number of parts whose rows are held without compacting nulls."""
FEW = 256
"""Up to this number keys are looked up by value; more are looked up by their range."""
MAX_SCHEMAS = 1024
"""The most schemas to remember; a forgotten one is logged again under another number."""


@dataclass(frozen=True, slots=True)
class PointLookup:
    """Reads rows by their keys."""

    row_groups: RowGroupCache
    upto: Upto

    def rows_with_keys(self, table: TableBuffer, keys: pa.Table) -> pa.Table:
        """The whole rows with these keys, in any order; missing keys are ignored.

        Columns without a value share their nulls.

        Raises:
            StoreUnreachable: a file cannot be read now.
        """
        snapshot = snapshot_all(table, self.upto)
        definition = snapshot.definition
        key = list(definition.primary_key)
        selection = Selection(
            schema=definition.schema,
            predicate=predicate_of(_around(keys, definition), definition.schema),
            limit=None,
        )
        reader = PartReader(snapshot, selection, self.row_groups, table.key)
        found: list[pa.RecordBatch] = []
        kept: list[SparseRows] = []
        for part in AnswerStream(table.key, reader, on_close=lambda stream: None):
            numbered = pa.table(
                [*(part.batch.column(name) for name in key), np.arange(part.batch.num_rows)],
                names=[*key, "_row"],
            )
            rows = numbered.join(keys, keys=key, join_type="left semi")["_row"]
            if len(rows):
                found.append(part.batch.take(rows.combine_chunks()))
                if len(found) >= JOINED:
                    kept.append(SparseRows.of(found, definition.schema))
                    found.clear()
        kept.append(SparseRows.of(found, definition.schema))
        return concatenated(kept).table()


def _around(keys: pa.Table, definition: TableDefinition) -> list[list[list[Any]]] | None:
    """A filter that matches all keys, and possibly others."""
    terms: list[list[Any]] = []
    for name in definition.primary_key:
        kind = definition.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
            continue
        column = keys.column(name)
        if keys.num_rows <= FEW:
            terms.append([name, "in", pc.unique(column).to_pylist()])
        else:
            bounds = pc.min_max(column).as_py()
            terms += [[name, ">=", bounds["min"]], [name, "<=", bounds["max"]]]
    return [terms] if terms else None


@dataclass(frozen=True, slots=True)
class _Share:
    """One table's part of a transaction that is being committed."""

    new: NewChanges
    definition: TableDefinition
    """The table's definition at the time of folding."""
    changes: Changes
    folded: Folded
    kept_keys: pa.Table | None
    """Keys of rows that keep values; None if there are none."""
    absent_keys: pa.Table | None
    """Keys that the table must not have; None if there are none."""

    @property
    def reads(self) -> bool:
        """Whether rows of the table are looked up."""
        return self.kept_keys is not None or self.absent_keys is not None


@dataclass(frozen=True, slots=True)
class TransactionPath:
    """How a transaction reaches the log."""

    log: OperationLog
    partitions: PartitionRoom
    schema_numbers: Iterator[int]
    """A number for each logged schema, shared by all writers."""
    upto_in: Callable[[Iterable[TableKey]], int]
    """Returns the lowest position of tables."""
    levels: AckLevels


class TransactionCommit:
    """Logs transactions. Loop only."""

    def __init__(
        self,
        dedup: TransactionDedup,
        lookup: PointLookup,
        path: TransactionPath,
        on_logged: Callable[[Transaction], None],
    ) -> None:
        """``on_logged`` is called with each transaction that is durable and visible."""
        self.check_plain = dedup.check_plain
        """Raise ``NotAvailable`` for a table with transformers."""
        self.records = dedup.records
        """Return whether a table can record a transaction."""
        self.levels = path.levels
        self._dedup = dedup
        self._lookup = lookup
        self.upto_in = path.upto_in
        """Return the lowest position of these tables."""
        self._operation_log = path.log
        self._partitions = path.partitions
        self._numbers = path.schema_numbers
        self._on_logged = on_logged
        self._schemas: dict[tuple[TableKey, int, tuple[str, ...]], LoggedSchema] = {}

    async def commit(
        self,
        tables: Mapping[TableKey, TableChanges],
        origin: str,
        sequence: int,
        content: Content | None = None,
        *,
        at_store: bool = False,
    ) -> Transaction | None:
        """Commit a transaction to the tables that lack it.

        Args:
            content: what it contains; a repeat of its sequence must contain the same.
            at_store: whether the store must have it on return.

        Returns:
            The logged transaction once it is durable and visible; None if every table has it.

        Raises:
            BadRequest: invalid rows, or a sequence that contained something else.
            ReplacedByCopy: a copy has replaced one of its tables since its first message.
            IngesterError: a table or the log refuses it.
        """
        new = [
            found
            for key, changes in tables.items()
            if (found := await self._dedup.new_in(key, changes, (origin, sequence), content))
            is not None
        ]
        if not new:
            return None
        routes = [each.table.route for each in new]
        self._operation_log.check_room(routes, 0, at_store=at_store)
        transaction = await self._log(new, (origin, sequence), content, at_store)
        self._on_logged(transaction)
        return transaction

    async def _log(
        self,
        new: list[NewChanges],
        numbered: tuple[str, int],
        content: Content | None,
        at_store: bool,
    ) -> Transaction:
        origin, sequence = numbered
        exclusive = False
        while True:
            shares = await trio.to_thread.run_sync(_fold_all, new)
            async with AsyncExitStack() as latches:
                for share in shares:
                    latch = share.new.table.write_latch
                    alone = exclusive or share.reads
                    await latches.enter_async_context(
                        latch.exclusive() if alone else latch.shared()
                    )
                for share in shares:
                    # Invariant: under the latch no copy replaces the table.
                    share.new.table.check_shape(share.definition)
                transaction = await trio.to_thread.run_sync(
                    self._encoded, shares, numbered, content
                )
                transaction.at_store = at_store
                # A column added meanwhile may have values to keep.
                if all(share.new.table.definition is share.definition for share in shares):
                    with self._open_partitions(shares, transaction):
                        self._dedup.begin(new, origin, sequence)
                        error = await self._fate(
                            partial(self._operation_log.append_transaction, transaction)
                        )
                    self._dedup.end(new, origin, sequence, error)
                    if error is not None:
                        raise error
                    return transaction
            exclusive = True

    @contextmanager
    def _open_partitions(self, shares: list[_Share], transaction: Transaction) -> Iterator[None]:
        """Count the partitions that a transaction opens until its outcome is known.

        Raises:
            IngesterError: too many partitions.
        """
        with ExitStack() as left:
            for share, operation in zip(shares, transaction.operations, strict=True):
                self._partitions.enter(share.new.table, operation)
                left.callback(self._partitions.leave, operation)
            yield

    def _encoded(
        self, shares: list[_Share], origin: tuple[str, int], content: Content | None
    ) -> Transaction:
        changes = sum(share.changes.rows for share in shares)
        rows = [self._rows(share) for share in shares]
        transaction = make_transaction(rows, origin, changes, content)
        transaction.routes = tuple(share.new.table.route for share in shares)
        return transaction

    def _rows(self, share: _Share) -> TableRows:
        (table, sent, covered), definition = share.new, share.definition
        if share.absent_keys is not None:
            present = self._lookup.rows_with_keys(table, share.absent_keys)
            check_moved_onto(present.select(list(definition.primary_key)))
        kept = None
        if share.kept_keys is not None:
            kept = self._lookup.rows_with_keys(table, share.kept_keys)
        batch = whole_rows(share.changes, share.folded, definition, kept)
        try:
            batch = without_covered(batch, definition.spec_id, covered, definition)
            ordered = order_by_partition(batch, definition.spec)
        except PartitionValueTooLong as exc:
            raise BadRequest(str(exc)) from exc
        schema = self._schema(table.key, definition.schema_id, batch.schema)
        if any((definition.spec_id, values) in covered for values in ordered.values):
            left = [
                part for part in ordered.parts() if (definition.spec_id, part[0]) not in covered
            ]
            ordered = PartitionedRows.joined(left, batch.schema)
        rows = table_rows(schema, definition.spec_id, ordered, owned=True)
        return rows._replace(origin_messages=len(sent.messages))

    def _schema(self, table: TableKey, schema_id: int, schema: pa.Schema) -> LoggedSchema:
        kind = (table, schema_id, tuple(schema.names))
        known = self._schemas.get(kind)
        if known is None:
            if len(self._schemas) >= MAX_SCHEMAS:
                self._schemas.clear()
            known = self._schemas[kind] = LoggedSchema.of(next(self._numbers), table, schema)
        return known

    async def note_open(self, origins: Sequence[str], *, at_store: bool) -> None:
        """Log that these origins have open transactions.

        Args:
            at_store: whether the store must have the record on return.

        Raises:
            IngesterError: the log refuses it.
        """
        note = Entry(RecordKind.OPENED, [encode_opened(origins)])
        append = self._operation_log.append_note
        error = await self._fate(partial(append, note, at_store=at_store))
        if error is not None:
            raise error

    async def await_store(self, routes: Iterable[Route]) -> None:
        """Return when the store has all that was applied of the tables with these routes.

        Raises:
            IngesterError: the log refuses it.
        """
        if behind := behind_the_store(routes):
            error = await self._fate(partial(self._operation_log.append_barrier, behind))
            if error is not None:
                raise error

    async def _fate(
        self, submit: Callable[[Callable[[BaseException | None], None]], None]
    ) -> BaseException | None:
        """Submit an entry and wait for its outcome, regardless of cancellation."""
        fate: list[BaseException | None] = []
        known = trio.Event()

        def answered(error: BaseException | None) -> None:
            fate.append(error)
            known.set()

        submit(answered)
        with trio.CancelScope(shield=True):
            await known.wait()
        return fate[0]


def _fold_all(new: list[NewChanges]) -> list[_Share]:
    shares = []
    for each in new:
        definition = each.table.definition
        # Otherwise the changes' columns could differ from the table's.
        each.table.check_shape(each.changes.definition)
        changes = joined(each.changes.messages, definition)
        _check_types(definition, changes)
        folded = fold(changes)
        check_overwritten(changes, folded)
        keys = kept_keys(changes, folded, definition)
        # A repeat of changes that files have in part may find rows of later ones.
        absent = None if each.covered else moved_onto(changes, folded)
        shares.append(_Share(each, definition, changes, folded, keys, absent))
    return shares


def _check_types(definition: TableDefinition, changes: Changes) -> None:
    """Refuse changes if a column was added meanwhile with another type."""
    for field in changes.values.schema:
        has = definition.schema.field(field.name).type
        if has != field.type:
            raise BadRequest(f"column {field.name!r}: table has {has}, message has {field.type}")
