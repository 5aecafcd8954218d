"""Deduplication of transactions: each table applies a sequence once.

A transaction is in progress in all of its tables or in none. Others that wait for the sequence get
its outcome. Loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ingester.buffer import TableBuffer
from ingester.errors import BadRequest, NotAvailable, Superseded
from ingester.origins.origin_table import OriginTable
from ingester.replication.open_transactions import TableChanges
from ingester.tables.catalog import Catalog
from ingester.tables.origin_takeover import OriginTakeover
from persist.manifest import PartitionKey
from persist.manifest.actions import Content
from persist.table import TableDefinition, TableKey


class NewChanges(NamedTuple):
    """One table's part of a transaction that the table lacks."""

    table: TableBuffer
    changes: TableChanges
    covered: frozenset[PartitionKey]
    """The partitions whose files have it already."""


TransformersOf = Callable[[TableKey, TableDefinition | None], Sequence[str]]
"""Returns the names of a table's transformers."""


class TransactionDedup:
    """Finds the tables that lack a transaction, and takes over their origins."""

    def __init__(
        self,
        catalog: Catalog,
        takeover: OriginTakeover,
        transformers_of: TransformersOf = lambda key, definition: (),
    ) -> None:
        self._transformers_of = transformers_of
        self._catalog = catalog
        self._takeover = takeover
        self._origins = takeover.origins
        self._begun: dict[tuple[str, TableKey], int] = {}
        """The sequence from which this daemon owns an origin in a table."""

    async def new_in(
        self,
        key: TableKey,
        changes: TableChanges,
        numbered: tuple[str, int],
        content: Content | None = None,
    ) -> NewChanges | None:
        """Prepare a table for its part of a transaction; None if it has the sequence.

        Args:
            numbered: the origin and the sequence.
            content: what the transaction contains, if that is known.

        Raises:
            BadRequest: also for a sequence that contained something else.
            UnknownTable, OwnedElsewhere, StoreUnreachable
            ReplacedByCopy: a copy has replaced the table.
        """
        (origin, sequence), definition = numbered, changes.definition
        self.check_plain(key, definition)
        table = await self._catalog.prepare_write(*key, definition.schema, definition)
        self.check_plain(key, table.definition)
        if set(table.definition.primary_key) != set(definition.primary_key):
            raise BadRequest(  # created since the first message
                f"sync: primary key {list(definition.primary_key)}, table {'/'.join(key)} has"
                f" {list(table.definition.primary_key) or 'none'}"
            )
        origin_table = await self._owned(table, origin, sequence)
        covered: frozenset[PartitionKey] = frozenset()
        if new := origin_table.is_new(sequence):
            covered = origin_table.covered(sequence)
        if covered or not new:
            origin_table.check_repeat(sequence, content)
        return NewChanges(table, changes, covered) if new else None

    def check_plain(self, key: TableKey, definition: TableDefinition) -> None:
        """Raise ``NotAvailable`` for a table with transformers, which change rows."""
        if names := self._transformers_of(key, definition):
            raise NotAvailable(
                f"sync: table {key[0]}/{key[1]} has transformers ({', '.join(names)}), which"
                " would change the source's rows: use another table"
            )

    def records(self, key: TableKey, definition: TableDefinition) -> bool:
        """Whether a table can record a transaction: it has a key and no transformers."""
        return definition.keyed and not self._transformers_of(key, definition)

    def begin(self, tables: Sequence[NewChanges], origin: str, sequence: int) -> None:
        """Mark a sequence as in progress, in the step that submits its transaction.

        Raises:
            OwnedElsewhere, Superseded: another writer intervened; nothing is marked.
        """
        origin_tables = [self._origins.table(origin, one.table.key) for one in tables]
        with self._origins.get(origin).lock:  # no stream's thread begins one meanwhile
            for origin_table in origin_tables:
                if (refusal := origin_table.refusal) is not None:
                    raise refusal
                if not origin_table.fates.follows(sequence, None):
                    raise Superseded(
                        f"origin {origin!r} has a stream that writes to"
                        f" {'/'.join(origin_table.table)} at this moment",
                        retry_after_s=1.0,
                    )
            for origin_table in origin_tables:
                origin_table.fates.begin(sequence)

    def end(
        self,
        tables: Sequence[NewChanges],
        origin: str,
        sequence: int,
        error: BaseException | None,
    ) -> None:
        """Pass the outcome of a sequence to those that wait for it."""
        for one in tables:
            self._origins.table(origin, one.table.key).fates.end(sequence, error)

    async def _owned(self, table: TableBuffer, origin: str, sequence: int) -> OriginTable:
        """Take over an origin's sequences in a table from ``sequence`` on."""
        origin_table = self._origins.table(origin, table.key)
        begun = self._begun.get((origin, table.key))
        if begun is None or sequence < begun or not origin_table.owns(sequence):
            await self._takeover.take(table, origin, sequence)
            self._begun[origin, table.key] = sequence
        return origin_table
