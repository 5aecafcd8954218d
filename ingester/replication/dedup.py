"""What of a transaction is new, table by table: a sequence is applied once in each.

Law of this file: a transaction is under way in all of its tables or in none; whoever waits for one
of its sequences hears of its fate. Loop only.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingester.buffer import TableBuffer
from ingester.errors import InvalidRequest, Superseded
from ingester.origins.origin_table import OriginTable
from ingester.replication.commit import NewChanges
from ingester.replication.open_transactions import TableChanges
from ingester.tables.catalog import Catalog
from ingester.tables.origin_takeover import Ownership
from persist.table import TableKey


class TransactionDedup:
    """Judges the sequences of transactions."""

    def __init__(self, catalog: Catalog, ownership: Ownership) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._origins = ownership.origins
        self._begun: dict[tuple[str, TableKey], int] = {}
        """From which sequence on an origin is known to be this daemon's in a table."""

    async def new_in(
        self, key: TableKey, changes: TableChanges, origin: str, sequence: int
    ) -> NewChanges | None:
        """What is new in a table, which is made ready for it; None where it has the sequence.

        Raises:
            InvalidRequest, UnknownTable, OwnedElsewhere, StoreAway
        """
        definition = changes.definition
        table = await self._catalog.prepare_write(*key, definition.schema, definition.primary_key)
        if set(table.definition.primary_key) != set(definition.primary_key):
            raise InvalidRequest(  # somebody has made it since the first message
                f"sync: primary key {list(definition.primary_key)}, table {'/'.join(key)} has"
                f" {list(table.definition.primary_key) or 'none'}"
            )
        origin_table = await self._owned(table, origin, sequence)
        if not origin_table.is_new(sequence):
            return None
        return NewChanges(table, changes, origin_table.covered(sequence))

    def begin(self, tables: Sequence[NewChanges], origin: str, sequence: int) -> None:
        """In the step that submits a transaction: its sequence is under way.

        Raises:
            OwnedElsewhere, Superseded: somebody else has come in between; nothing has begun.
        """
        origin_tables = [self._origins.table(origin, one.table.key) for one in tables]
        for origin_table in origin_tables:
            if (refusal := origin_table.refusal) is not None:
                raise refusal
            if origin_table.fates.newest >= sequence:
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
        """It is durable and visible, or never will be."""
        for one in tables:
            for fate in self._origins.table(origin, one.table.key).fates.end(sequence, error):
                fate(error)

    async def _owned(self, table: TableBuffer, origin: str, sequence: int) -> OriginTable:
        """The origin's sequences into a table, taken for this daemon from ``sequence`` on."""
        origin_table = self._origins.table(origin, table.key)
        begun = self._begun.get((origin, table.key))
        if begun is None or sequence < begun or not origin_table.owns(sequence):
            await self._ownership.take(table, origin, sequence)
            self._begun[origin, table.key] = sequence
        return origin_table
