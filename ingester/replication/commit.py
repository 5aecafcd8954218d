"""A transaction becomes operations of its tables: folded, resolved, split, encoded, logged.

    messages ─ fold ─▶ one change per key ─ look up what rows keep ─▶ whole rows ─▶ one log record

Law of this file: what a transaction keeps is what stands in the log before it: nobody else writes
to a table between the look and the log. Work per row runs in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import trio

from ingester.buffer import TableBuffer
from ingester.dml.operation import Transaction
from ingester.dml.origin_record import encode_opened
from ingester.dml.record import LoggedSchema, TableRows, split_rows
from ingester.dml.transaction_record import make_transaction
from ingester.errors import InvalidRequest
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.snapshot import snapshot_all
from ingester.replication.fill_unchanged import resolve, wanted_keys
from ingester.replication.fold import Changes, Folded, fold
from ingester.replication.normalise import joined
from ingester.replication.open_transactions import TableChanges
from ingester.replication.point_lookup import rows_with_keys
from ingester.write.covered_rows import without_covered
from ingester.write.wal_sink import WalSink
from persist.manifest import PartitionKey
from persist.partitioning import PartitionValueTooLong, split_batch
from persist.table import TableDefinition
from wal import Entry, RecordKind


class NewChanges(NamedTuple):
    """One table's part of a transaction."""

    table: TableBuffer
    changes: TableChanges
    in_files: frozenset[PartitionKey]
    """Partitions that have it already."""


@dataclass(slots=True)
class _Share:
    """One table's part of a transaction that is being closed."""

    table: TableBuffer
    definition: TableDefinition
    in_files: frozenset[PartitionKey]
    changes: Changes
    folded: Folded
    wanted: pa.Table | None
    messages: int


MAX_SCHEMAS = 1024
"""Sets of columns; one that was forgotten gets another number, and its schema is logged anew."""


class TransactionCommit:
    """Logs transactions. Loop only."""

    def __init__(
        self,
        sink: WalSink,
        row_groups: RowGroupCache,
        schema_numbers: Iterator[int],
        applied_seq: Callable[[], int],
    ) -> None:
        self._sink = sink
        self._row_groups = row_groups
        self._numbers = schema_numbers
        self._applied_seq = applied_seq
        self._schemas: dict[tuple[tuple[str, str], int, tuple[str, ...]], LoggedSchema] = {}

    @property
    def newest_seq(self) -> int:
        """Of the daemon's own sequences, the newest that is visible."""
        return self._applied_seq()

    async def log(
        self,
        tables: list[NewChanges],
        origin: tuple[str, int],
        begin: Callable[[], None],
        end: Callable[[BaseException | None], None],
    ) -> Transaction:
        """Return when the transaction is durable and visible.

        Args:
            begin: called in the step that submits it; may raise.
            end: called when its fate is known, if ``begin`` was.

        Raises:
            InvalidRequest: what is wrong with its rows.
            IngesterError: the log does not take it.
        """
        alone = False
        while True:
            shares = await trio.to_thread.run_sync(_fold_all, tables)
            async with AsyncExitStack() as orders:
                for share in shares:
                    order = share.table.order
                    by_itself = alone or share.wanted is not None
                    enter = order.exclusive() if by_itself else order.shared()
                    await orders.enter_async_context(enter)
                transaction = await trio.to_thread.run_sync(self._made, shares, origin)
                # A column that came meanwhile may have values to keep.
                if all(share.table.definition is share.definition for share in shares):
                    begin()
                    error = await self._fate(partial(self._sink.submit_together, transaction))
                    end(error)
                    if error is not None:
                        raise error
                    return transaction
            alone = True

    def _made(self, shares: list[_Share], origin: tuple[str, int]) -> Transaction:
        changes = sum(share.changes.rows for share in shares)
        return make_transaction([self._rows(share) for share in shares], origin, changes)

    def _rows(self, share: _Share) -> TableRows:
        table, definition = share.table, share.definition
        kept = None
        if share.wanted is not None:
            snapshot = snapshot_all(table, self._applied_seq)
            kept = rows_with_keys(table.key, snapshot, self._row_groups, share.wanted)
        batch = resolve(share.changes, share.folded, definition, kept)
        try:
            batch = without_covered(batch, definition.spec_id, share.in_files, definition)
            split = [
                part
                for part in split_batch(batch, definition.spec)
                if (definition.spec_id, part[0]) not in share.in_files
            ]
        except PartitionValueTooLong as exc:
            raise InvalidRequest(str(exc)) from exc
        schema = self._schema(table, definition.schema_id, batch.schema)
        rows = split_rows(schema, definition.spec_id, split, owned=True)
        return rows._replace(origin_messages=share.messages)

    def _schema(self, table: TableBuffer, schema_id: int, schema: pa.Schema) -> LoggedSchema:
        kind = (table.key, schema_id, tuple(schema.names))
        known = self._schemas.get(kind)
        if known is None:
            if len(self._schemas) >= MAX_SCHEMAS:
                self._schemas.clear()
            known = self._schemas[kind] = LoggedSchema.of(next(self._numbers), table.key, schema)
        return known

    async def note_open(self, origins: Sequence[str]) -> None:
        """Return when the log knows that these have a transaction open.

        Raises:
            IngesterError: the log does not take it.
        """
        note = Entry(RecordKind.OPENED, [encode_opened(origins)])
        error = await self._fate(partial(self._sink.submit_note, note))
        if error is not None:
            raise error

    async def _fate(
        self, submit: Callable[[Callable[[BaseException | None], None]], None]
    ) -> BaseException | None:
        """What becomes of what is submitted. It is awaited, whoever has cancelled."""
        fate: list[BaseException | None] = []
        known = trio.Event()

        def answered(error: BaseException | None) -> None:
            fate.append(error)
            known.set()

        submit(answered)
        with trio.CancelScope(shield=True):
            await known.wait()
        return fate[0]


def _fold_all(tables: list[NewChanges]) -> list[_Share]:
    shares = []
    for table, mine, in_files in tables:
        definition = table.definition
        changes = joined(mine.messages, definition)
        _check_types(definition, changes)
        folded = fold(changes)
        wanted = wanted_keys(changes, folded, definition)
        count = len(mine.messages)
        shares.append(_Share(table, definition, in_files, changes, folded, wanted, count))
    return shares


def _check_types(definition: TableDefinition, changes: Changes) -> None:
    """Somebody else may have added a column of the same name while the transaction was open."""
    for field in changes.values.schema:
        has = definition.schema.field(field.name).type
        if has != field.type:
            raise InvalidRequest(
                f"column {field.name!r}: table has {has}, message has {field.type}"
            )
