"""The write streams of a daemon: they are opened, and superseded by newer ones.

Law of this file: there is one open stream per (origin, table); a newer one ends the older.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from ingester.buffer import TableBuffer
from ingester.errors import Superseded
from ingester.quotas.use import NamespaceUse
from ingester.schema import DeleteNormaliser, Normaliser
from ingester.schema.definition import draft_definition
from ingester.tables.catalog import Catalog, is_wide
from ingester.tables.origin_takeover import OriginTakeover
from ingester.write.plan import Plans
from ingester.write.stream import Deliver, WritePath, WriteStream
from ingester.write.transform.chain import Chain
from ingester.write.transform.transforms import Transforms
from persist.table import TableDefinition, TableKey


class Target(NamedTuple):
    """The target of a stream's batches."""

    namespace: str
    table: str
    origin: str | None = None
    deletes: bool = False
    """Whether the batches are keys to be deleted."""


class TransformedBy(NamedTuple):
    """The classes that a table's batches go through first: the stream is opened with a chain."""

    names: tuple[str, ...]


class Writes:
    """Opens write streams. Loop only.

    Args:
        schema_numbers: one for each schema that rows come in, whoever writes them.
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
            deliver: takes the outcomes of the batches, in order.
            checked: bytes of the first batch, which is known to fit. Without it, a table or columns
                that are new are not made, and the definition that they would have is returned.
            chain: the transformers that batches have gone through. Where the table has others,
                their names are returned, and nothing else is done.

        Raises:
            InvalidRequest, UnknownTable, StoreAway, Stopping
            LimitReached: there is no room for a new origin.
            OverQuota: the namespace has as many streams, or tables, as it may have.
            Refused: a batch of so many bytes would not be let in now; nothing was made for it.
        """
        namespace, name, origin, deletes = target
        admission = self._path.admission
        era, use = admission.era, self._entered(namespace)
        if origin is not None:
            self._origins.check_room(origin)
        if checked is not None:
            self._check_room(checked, use)
        elif not deletes:
            found = await self._catalog.find(namespace, name)
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
        self._check_streams(table.use)  # others may have come meanwhile
        if era != admission.era:  # the manifest may say that this daemon writes no more
            raise admission.refusal()
        stream = WriteStream(self._path, plan, origin, deliver, self._closed)
        stream.use.writers += 1
        if origin is not None:
            self._supersede(origin, table.key, stream)
        return stream

    async def columns_of(self, target: Target) -> int | None:
        """Return how many columns the target's table has; 0 where it is still to be made.

        None where transformers make others of those that are sent.

        Raises:
            InvalidRequest, UnknownTable, StoreAway, Stopping, OverQuota: as :meth:`open`.
        """
        self._entered(target.namespace)
        table = await self._catalog.find(target.namespace, target.table)
        if self._others(target, table, None) is not None:
            return None
        return 0 if table is None else len(table.definition.schema)

    def check_partitions(self, table: TableKey, count: int) -> None:
        """Raise where a table, new or not, has no room for a batch of so many partitions.

        Any thread.

        Raises:
            IngesterError: what is full.
        """
        self._path.partitions.check(table, count)

    async def begin(self, stream: WriteStream, sequence: int) -> None:
        """See that the stream's origin is this daemon's from its first sequence on.

        Raises:
            StoreAway
        """
        assert stream.origin is not None
        table = stream.plan.table
        await self._takeover.take(table, stream.origin, sequence)
        stream.origin_table = self._origins.table(stream.origin, table.key)

    async def _drafted(self, table: TableBuffer | None, sent: pa.Schema) -> TableDefinition | None:
        """Draft the definition that a write leads to; None where the table has it."""

        def draft(have: TableDefinition | None) -> TableDefinition | None:
            return draft_definition(have, sent)

        if table is None:
            return await self._catalog.wide.work(sent, partial(draft, None))
        return await self._catalog.wide.of_table(table, sent, draft)

    async def _prepared(
        self, target: Target, sent: pa.Schema, chain: Chain | None
    ) -> tuple[TableBuffer, Normaliser | None] | TransformedBy:
        """Prepare the table, and make what is made of a wide schema, which would hold the loop up.

        The table has the columns of ``sent`` on return, and nobody else was at it since.
        """
        made: Normaliser | None = None
        while True:
            table = await self._catalog.prepare_write(target.namespace, target.table, sent)
            # Somebody else may have made the table since.
            if (others := self._others(target, table, chain)) is not None:
                return others
            definition = self._definition(table, target.origin)
            if made or not is_wide(sent) or self._plans.has(table, definition, sent):
                return table, made
            made = await self._catalog.wide.work(sent, partial(Normaliser, definition, sent))

    def _others(
        self, target: Target, table: TableBuffer | None, chain: Chain | None
    ) -> TransformedBy | None:
        """Name the table's transformers, if they are others than those of the chain."""
        key = (target.namespace, target.table)
        names = self.transforms.names_of(key, None if table is None else table.definition)
        return None if names == (() if chain is None else chain.names) else TransformedBy(names)

    async def _record(self, table: TableBuffer, chain: Chain | None) -> None:
        """See that the manifest says which transformers are in force; nothing for most tables."""
        if chain is not None or table.definition.transformers:
            used = () if chain is None else chain.used
            await self._catalog.record_transformers(table, used)

    def _entered(self, namespace: str) -> NamespaceUse:
        """Return the use of a namespace that may have another stream now."""
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
        """End the open stream of the same origin and table, if there is one, for a newer one."""
        older = self._open.get((origin, table))
        if older is not None:
            older.superseded = Superseded(
                f"a newer stream of origin {origin!r} into {table[0]}/{table[1]} has taken over"
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
        """The table's definition, by the partition spec that the origin's rows are split by."""
        known = None if origin is None else self._origins.find(origin)
        origin_table = None if known is None else known.tables.get(table.key)
        if origin_table is None or origin_table.spec_id is None or origin_table.idle:
            return table.definition
        # What is said of an origin's rows in files, up to a sequence by partition, is said by
        # their spec: those of another come when none of these waits any more.
        return table.definition.by_spec(origin_table.spec_id)
