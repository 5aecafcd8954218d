"""Commits a transaction: folded, completed, split by partition, encoded and logged.

    messages ─ fold ─▶ one change per key ─ look up kept values ─▶ whole rows ─▶ one log record

Kept values are looked up under the tables' write latches: no other writer changes a table between
the look-up and the log record. :class:`PointLookup` reads rows of a keyed table by key from files
and buffers; it skips files and row groups whose bounds exclude the keys. Work per row runs in
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import trio

from ingester.buffer import TableBuffer
from ingester.dml.control_records import encode_opened, make_transaction
from ingester.dml.operation import Transaction
from ingester.dml.record import LoggedSchema, TableRows, split_rows
from ingester.errors import InvalidRequest
from ingester.query.read_context import Selection
from ingester.query.reader import PartReader
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.snapshot import snapshot_all
from ingester.query.stream import AnswerStream
from ingester.query.ticket import predicate_of
from ingester.replication.dedup import NewChanges, TransactionDedup
from ingester.replication.fold import Changes, Folded, fold, kept_keys, whole_rows
from ingester.replication.messages import joined
from ingester.replication.open_transactions import TableChanges
from ingester.write.dedup import without_covered
from ingester.write.operation_log import OperationLog
from ingester.write.partition_room import PartitionRoom
from persist.parquet.sparse_rows import SparseRows, concatenated
from persist.partitioning import PartitionValueTooLong, split_batch
from persist.table import TableDefinition, TableKey
from wal import Entry, RecordKind

JOINED = 16
"""The number of parts whose rows are held with all of their nulls."""
FEW = 256
"""The most keys that are looked for by value; more are between the lowest and the highest."""


@dataclass(frozen=True, slots=True)
class PointLookup:
    """Reads rows by their keys."""

    row_groups: RowGroupCache
    applied_seq: Callable[[], int]
    """Tells the newest sequence of this daemon that is visible."""

    def rows_with_keys(self, table: TableBuffer, keys: pa.Table) -> pa.Table:
        """The rows with these keys, whole, in any order; a key without a row has none.

        Columns without a value share their nulls.

        Raises:
            StoreAway: a file cannot be read now.
        """
        snapshot = snapshot_all(table, self.applied_seq)
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
    """A filter that all the keys pass, and perhaps others."""
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
    """The table's definition when the changes were folded."""
    changes: Changes
    folded: Folded
    kept_keys: pa.Table | None
    """The keys of rows that keep values; None where there is none."""


@dataclass(frozen=True, slots=True)
class TransactionPath:
    """The way of a transaction into the log."""

    log: OperationLog
    partitions: PartitionRoom
    schema_numbers: Iterator[int]
    """One for each schema that rows come in, whoever writes them."""


MAX_SCHEMAS = 1024
"""The sets of columns that are kept; one that was forgotten is logged anew, by another number."""


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
        """Raises ``NotAvailable`` for a table whose rows are not those of its source."""
        self._dedup = dedup
        self._lookup = lookup
        self._operation_log = path.log
        self._partitions = path.partitions
        self._numbers = path.schema_numbers
        self._on_logged = on_logged
        self._schemas: dict[tuple[TableKey, int, tuple[str, ...]], LoggedSchema] = {}

    @property
    def newest_seq(self) -> int:
        """The newest of the daemon's own sequences that is visible."""
        return self._lookup.applied_seq()

    async def commit(
        self, tables: Mapping[TableKey, TableChanges], origin: str, sequence: int
    ) -> Transaction | None:
        """Return when a transaction is durable and visible in the tables that lacked it.

        Returns:
            What was logged; None where every table has the sequence already.

        Raises:
            InvalidRequest: what is wrong with its rows.
            MadeAnew: a copy has made a table of it anew since its first message.
            IngesterError: a table or the log does not take it.
        """
        new = [
            found
            for key, changes in tables.items()
            if (found := await self._dedup.new_in(key, changes, origin, sequence)) is not None
        ]
        if not new:
            return None
        transaction = await self._log(new, origin, sequence)
        self._on_logged(transaction)
        return transaction

    async def _log(self, new: list[NewChanges], origin: str, sequence: int) -> Transaction:
        exclusive = False
        while True:
            shares = await trio.to_thread.run_sync(_fold_all, new)
            async with AsyncExitStack() as latches:
                for share in shares:
                    latch = share.new.table.write_latch
                    keeps = exclusive or share.kept_keys is not None
                    await latches.enter_async_context(
                        latch.exclusive() if keeps else latch.shared()
                    )
                for share in shares:
                    # Under the latch it stays so: a copy may have been faster to it.
                    share.new.table.check_shape(share.definition)
                transaction = await trio.to_thread.run_sync(
                    self._encoded, shares, (origin, sequence)
                )
                # A column that came meanwhile may have values to keep.
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
        """Have the partitions that a transaction opens count until it is applied, or refused.

        Raises:
            IngesterError: there is no room for them.
        """
        with ExitStack() as left:
            for share, operation in zip(shares, transaction.operations, strict=True):
                self._partitions.enter(share.new.table, operation)
                left.callback(self._partitions.leave, operation)
            yield

    def _encoded(self, shares: list[_Share], origin: tuple[str, int]) -> Transaction:
        changes = sum(share.changes.rows for share in shares)
        return make_transaction([self._rows(share) for share in shares], origin, changes)

    def _rows(self, share: _Share) -> TableRows:
        (table, sent, covered), definition = share.new, share.definition
        kept = None
        if share.kept_keys is not None:
            kept = self._lookup.rows_with_keys(table, share.kept_keys)
        batch = whole_rows(share.changes, share.folded, definition, kept)
        try:
            batch = without_covered(batch, definition.spec_id, covered, definition)
            split = [
                part
                for part in split_batch(batch, definition.spec)
                if (definition.spec_id, part[0]) not in covered
            ]
        except PartitionValueTooLong as exc:
            raise InvalidRequest(str(exc)) from exc
        schema = self._schema(table.key, definition.schema_id, batch.schema)
        rows = split_rows(schema, definition.spec_id, split, owned=True)
        return rows._replace(origin_messages=len(sent.messages))

    def _schema(self, table: TableKey, schema_id: int, schema: pa.Schema) -> LoggedSchema:
        kind = (table, schema_id, tuple(schema.names))
        known = self._schemas.get(kind)
        if known is None:
            if len(self._schemas) >= MAX_SCHEMAS:
                self._schemas.clear()
            known = self._schemas[kind] = LoggedSchema.of(next(self._numbers), table, schema)
        return known

    async def note_open(self, origins: Sequence[str]) -> None:
        """Return when the log knows that these have a transaction open.

        Raises:
            IngesterError: the log does not take it.
        """
        note = Entry(RecordKind.OPENED, [encode_opened(origins)])
        error = await self._fate(partial(self._operation_log.append_note, note))
        if error is not None:
            raise error

    async def _fate(
        self, submit: Callable[[Callable[[BaseException | None], None]], None]
    ) -> BaseException | None:
        """Submit an entry and await its fate, which a cancellation does not cut short."""
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
        # Only then do the changes' columns mean what the table's mean.
        each.table.check_shape(each.changes.definition)
        changes = joined(each.changes.messages, definition)
        _check_types(definition, changes)
        folded = fold(changes)
        keys = kept_keys(changes, folded, definition)
        shares.append(_Share(each, definition, changes, folded, keys))
    return shares


def _check_types(definition: TableDefinition, changes: Changes) -> None:
    """Refuse changes where somebody has added such a column, of another type, meanwhile."""
    for field in changes.values.schema:
        has = definition.schema.field(field.name).type
        if has != field.type:
            raise InvalidRequest(
                f"column {field.name!r}: table has {has}, message has {field.type}"
            )
