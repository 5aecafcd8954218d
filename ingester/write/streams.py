"""Opens the write streams of a daemon.

There is one open stream per (origin, table); a newer one supersedes the older one
(tests/write/test_superseded_stream).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from ingester.buffer import TableBuffer
from ingester.config.settings import Level
from ingester.dml.operation import Operation
from ingester.errors import Superseded
from ingester.quotas.use import NamespaceUse
from ingester.schema import DeleteNormaliser, Normaliser
from ingester.schema.definition import draft_definition
from ingester.tables.catalog import Catalog, is_wide
from ingester.tables.origin_takeover import OriginTakeover
from ingester.write.plan import Plans
from ingester.write.stream import Deliver, Write, WritePath, WriteStream
from ingester.write.transform.chain import Chain
from ingester.write.transform.transforms import Transforms
from persist.table import TableDefinition, TableKey


class Target(NamedTuple):
    """The target of a stream."""

    namespace: str
    table: str
    origin: str | None = None
    deletes: bool = False
    """Whether the batches are keys to delete."""
    numbers_rows: bool = False
    """Whether a sequence is the number of a row, so that a repeat may be divided differently."""
    ack: Level | None = None
    """The level of acknowledgements that the client asks for; None means the table's."""


class TransformedBy(NamedTuple):
    """The table's transformers: the stream has to be opened with a chain of them."""

    names: tuple[str, ...]


class Writes:
    """Opens write streams. Loop only.

    Args:
        schema_numbers: one for each schema of incoming rows.
    """

    def __init__(
        self,
        catalog: Catalog,
        takeover: OriginTakeover,
        path: WritePath,
        schema_numbers: Iterator[int],
        transforms: Transforms,
    ) -> None:
        self.transforms = transforms
        self.levels = path.levels
        self._catalog = catalog
        self._takeover = takeover
        self._path = path
        self._origins = path.origins
        self._plans = Plans(schema_numbers)
        self._open: dict[tuple[str, TableKey], WriteStream] = {}

    async def open(
        self,
        target: Target,
        sent: pa.Schema,
        deliver: Deliver,
        checked: int | None = None,
        chain: Chain | None = None,
    ) -> WriteStream | TableDefinition | TransformedBy:
        """Open a stream of batches of one schema into one table.

        Args:
            sent: the schema of the batches as they come to the sender.
            deliver: receives the outcomes of the batches, in order.
            checked: bytes of the first batch, which is known to fit. Without it, a new table or new
                columns are not created; the definition that they would lead to is returned.
            chain: the transformers of the stream. If the table has others, their names are returned
                and nothing else is done.

        Raises:
            UnknownTable, StoreUnreachable, Stopping
            BadRequest: also for a lower level of acknowledgements than the table's.
            LimitReached: no room for a new origin.
            OverQuota: the namespace has reached its quota of streams or tables.
            Refused: a batch of ``checked`` bytes would not be admitted now; nothing was created.
        """
        namespace, name, origin, deletes, numbers_rows, _ = target
        admission = self._path.admission
        era, use = admission.era, self._entered(namespace)
        if origin is not None:
            self._origins.check_room(origin)
        if checked is not None:
            self._check_room(checked, use)
        elif not deletes:
            found = await self._catalog.find(namespace, name)
            self._at_store(target, found)
            if (others := self._others(target, found, chain)) is not None:
                return others
            draft = await self._drafted(found, sent)
            if draft is not None:
                self._catalog.check_draft((namespace, name), found, draft)
                return draft
        made: Normaliser | None = None
        if deletes:
            table = await self._catalog.prepare_delete(namespace, name)
        else:
            prepared = await self._prepared(target, sent, chain)
            if isinstance(prepared, TransformedBy):
                return prepared
            table, made = prepared
            await self._record(table, chain)
        kind = DeleteNormaliser if deletes else Normaliser
        plan = self._plans.get(table, self._definition(table, origin), sent, kind, made)
        self._check_streams(table.use)  # other streams may have opened meanwhile
        if era != admission.era:  # the manifest may say that this daemon has stopped writing
            raise admission.refusal()
        stream = WriteStream(self._path, plan, origin, deliver, self._closed)
        # Transformers need not make the same rows of a repeated batch.
        stream.at_store = self._at_store(target, table)
        stream.notes_contents = origin is not None and chain is None and not numbers_rows
        stream.use.writers += 1
        if origin is not None:
            self._supersede(origin, table.key, stream)
        return stream

    async def columns_of(self, target: Target) -> int | None:
        """Return the number of columns of the target's table; 0 if it does not exist.

        None if transformers change the columns.

        Raises:
            BadRequest, UnknownTable, StoreUnreachable, Stopping, OverQuota: as :meth:`open`.
        """
        self._entered(target.namespace)
        table = await self._catalog.find(target.namespace, target.table)
        if self._others(target, table, None) is not None:
            return None
        return 0 if table is None else len(table.definition.schema)

    def check_partitions(self, table: TableKey, count: int) -> None:
        """Raise if a table, new or not, has no room for a batch of ``count`` partitions.

        Any thread.

        Raises:
            IngesterError: names the limit.
        """
        self._path.partitions.check(table, count)

    async def begin(self, stream: WriteStream, sequence: int) -> None:
        """Take the stream's origin over, from its first sequence on.

        Raises:
            StoreUnreachable
        """
        assert stream.origin is not None
        table = stream.plan.table
        await self._takeover.take(table, stream.origin, sequence)
        stream.origin_table = self._origins.table(stream.origin, table.key)

    async def decide(self, stream: WriteStream, write: Write, operation: Operation) -> None:
        """Submit a batch of an origin that may be a repeat."""
        stream.decide(write, operation)

    async def _drafted(self, table: TableBuffer | None, sent: pa.Schema) -> TableDefinition | None:
        """Draft the definition that a write leads to; None if the table has it."""

        def draft(have: TableDefinition | None) -> TableDefinition | None:
            return draft_definition(have, sent)

        if table is None:
            return await self._catalog.wide.work(sent, partial(draft, None))
        return await self._catalog.wide.of_table(table, sent, draft)

    async def _prepared(
        self, target: Target, sent: pa.Schema, chain: Chain | None
    ) -> tuple[TableBuffer, Normaliser | None] | TransformedBy:
        """Prepare the table. The normaliser of a wide schema is made in a thread.

        On return the table has the columns of ``sent``, with no await since.
        """
        made: Normaliser | None = None
        while True:
            table = await self._catalog.prepare_write(target.namespace, target.table, sent)
            # Another writer may have created the table meanwhile.
            if (others := self._others(target, table, chain)) is not None:
                return others
            definition = self._definition(table, target.origin)
            if made or not is_wide(sent) or self._plans.has(table, definition, sent):
                return table, made
            made = await self._catalog.wide.work(sent, partial(Normaliser, definition, sent))

    def _others(
        self, target: Target, table: TableBuffer | None, chain: Chain | None
    ) -> TransformedBy | None:
        """Name the table's transformers if they differ from those of the chain."""
        key = (target.namespace, target.table)
        names = self.transforms.names_of(key, None if table is None else table.definition)
        return None if names == (() if chain is None else chain.names) else TransformedBy(names)

    def _at_store(self, target: Target, table: TableBuffer | None) -> bool:
        """Whether the stream is acknowledged at ``store``; raise BadRequest if it asks for less."""
        own = None if table is None else table.definition.ack
        return self.levels.at_store((target.namespace, target.table), own, target.ack)

    async def _record(self, table: TableBuffer, chain: Chain | None) -> None:
        """Record the transformers in force in the manifest; a no-op for most tables."""
        if chain is not None or table.definition.transformers:
            used = () if chain is None else chain.used
            await self._catalog.record_transformers(table, used)

    def _entered(self, namespace: str) -> NamespaceUse:
        """Return the namespace's use; raise if it may not open another stream."""
        admission = self._path.admission
        if admission.stopping:
            raise admission.refusal()
        use = admission.namespaces.of(namespace)
        self._check_streams(use)
        return use

    def _check_streams(self, use: NamespaceUse) -> None:
        self._path.admission.namespaces.check_streams(use, use.writers)

    def _check_room(self, nbytes: int, use: NamespaceUse) -> None:
        if reasons := self._path.admission.reasons(nbytes, use):
            self._path.relieve(reasons[0])
            raise reasons[0]

    def _supersede(self, origin: str, table: TableKey, stream: WriteStream) -> None:
        """End the open stream of the same origin and table for a newer one."""
        older = self._open.get((origin, table))
        if older is not None:
            older.supersede(
                Superseded(
                    f"a newer stream of origin {origin!r} into {table[0]}/{table[1]} has taken over"
                )
            )
        else:
            self._origins.get(origin).open_streams += 1
        self._open[origin, table] = stream

    def _closed(self, stream: WriteStream) -> None:
        stream.use.writers -= 1
        if stream.origin is None:
            return
        key = (stream.origin, stream.plan.table.key)
        if self._open.get(key) is stream:
            del self._open[key]
            self._origins.get(stream.origin).open_streams -= 1
            self._origins.forget_unused(stream.origin)

    def _definition(self, table: TableBuffer, origin: str | None) -> TableDefinition:
        """Return the table's definition with the partition spec of the origin's rows."""
        known = None if origin is None else self._origins.find(origin)
        origin_table = None if known is None else known.tables.get(table.key)
        if origin_table is None or origin_table.spec_id is None or origin_table.idle:
            return table.definition
        # The manifest records an origin's rows in files per partition of one spec. Rows of another
        # spec follow once none of these waits.
        return table.definition.by_spec(origin_table.spec_id)
