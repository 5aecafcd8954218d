"""Streams of writes are opened, and superseded.

Law of this file: there is one open stream per (origin, table); a newer one ends the older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from ingester.dml.record import encode_schema
from ingester.dml.sink import DmlSink
from ingester.errors import DiskFull, MemoryFull, Stopping, Superseded
from ingester.schema import DeleteNormaliser, Normaliser
from ingester.tables.catalog import Catalog
from ingester.tables.origin_takeover import Ownership
from ingester.write.admission import AdmissionGate
from ingester.write.dedup_sink import taken_away
from ingester.write.stream import Offer, WritePlan, WriteStream
from persist.table import TableDefinition
from wal import Preamble, RecordKind

if TYPE_CHECKING:
    from ingester.buffer import BufferTree, TableBuffer


MAX_PLANS_BYTES = 8 << 20
PLAN_BYTES = 512
"""What a plan counts for at least; beside it, the schema that was sent."""

_PlanKey = tuple[tuple[str, str], type[Normaliser], int, int, bytes]
"""Table, how its rows are made, schema and spec of the table, the schema that was sent."""


class Writes:
    """Opens write streams. Loop only."""

    def __init__(
        self,
        catalog: Catalog,
        tree: BufferTree,
        sink: DmlSink,
        ownership: Ownership,
        gate: AdmissionGate,
        *,
        offer: Offer,
        tell: Callable[[], None],
        epoch: int,
        shapes: Iterator[int],
    ) -> None:
        self.stopping = False
        self.on_disk_full: Callable[[], None] = lambda: None
        self.on_memory_full: Callable[[], None] = lambda: None
        self._gate = gate
        self._catalog = catalog
        self._tree = tree
        self._sink = sink
        self._offer = offer
        self._tell = tell
        self._ownership = ownership
        self._origins = ownership.origins
        self._origins.on_lost = self._lost
        self._epoch = epoch
        self._shapes = shapes
        self._plans: dict[_PlanKey, WritePlan] = {}
        self._plans_bytes = 0
        self._open: dict[tuple[str, tuple[str, str]], WriteStream] = {}

    async def open(
        self,
        namespace: str,
        table: str,
        origin: str | None,
        sent: pa.Schema,
        checked: int | None,
        deletes: bool = False,
    ) -> WriteStream | TableDefinition:
        """A stream of batches of one schema into one table.

        Args:
            deletes: the batches are keys to be deleted.
            checked: bytes of the first batch, which is known to fit. Without it, a table or columns
                that are new are not made, and the definition that they would have is returned.

        Raises:
            InvalidRequest, UnknownTable, StoreAway, Stopping
            Refused: a batch of so many bytes would not be let in now; nothing was made for it.
        """
        if self.stopping:
            raise Stopping("the daemon is stopping", retry_after_s=1.0)
        if checked is not None:
            self._check_room(checked)
        elif not deletes:
            draft = await self._catalog.draft(namespace, table, sent)
            if draft is not None:
                return draft
        if deletes:
            buffer = await self._catalog.prepare_delete(namespace, table)
        else:
            buffer = await self._catalog.prepare_write(namespace, table, sent)
        stream = WriteStream(
            self._sink,
            self._origins,
            self._gate,
            self._plan(buffer, sent, DeleteNormaliser if deletes else Normaliser, origin),
            offer=self._offer,
            tell=self._tell,
            origin=origin,
            epoch=self._epoch,
            newest_seq=lambda: self._tree.applied_seq,
        )
        stream.on_disk_full = self.on_disk_full
        stream.on_memory_full = self.on_memory_full
        if origin is not None:
            key = (origin, buffer.key)
            older = self._open.get(key)
            if older is not None:
                older.ended_by = Superseded(
                    f"a newer stream of origin {origin!r} into {namespace}/{table} has taken over"
                )
            else:
                self._origins.get(origin).open_streams += 1
            self._open[key] = stream
            stream.on_closed = lambda closed: self._closed(key, closed)
        return stream

    async def begin(self, stream: WriteStream, sequence: int) -> None:
        """See that the stream's origin is this daemon's from its first sequence on.

        Raises:
            StoreAway
        """
        assert stream.origin is not None
        await self._ownership.take(stream.plan.table, stream.origin, sequence)
        stream.first_sequence = sequence

    def _check_room(self, nbytes: int) -> None:
        if reasons := self._gate.reasons(nbytes):
            if isinstance(reasons[0], MemoryFull):
                self.on_memory_full()
            elif isinstance(reasons[0], DiskFull):
                self.on_disk_full()
            raise reasons[0]

    def _lost(self, origin: str, table: tuple[str, str]) -> None:
        stream = self._open.get((origin, table))
        # One that is about to begin takes it back.
        if stream is not None and stream.first_sequence is not None:
            stream.ended_by = taken_away(origin, table)

    def _closed(self, key: tuple[str, tuple[str, str]], stream: WriteStream) -> None:
        if self._open.get(key) is stream:
            del self._open[key]
            self._origins.get(key[0]).open_streams -= 1

    def _plan(
        self, table: TableBuffer, sent: pa.Schema, kind: type[Normaliser], origin: str | None
    ) -> WritePlan:
        """Shared by all streams of one schema: its schema record is written once a segment."""
        definition = table.definition
        known = None if origin is None else self._origins.find(origin)
        lane = None if known is None else known.lanes.get(table.key)
        if lane is not None and lane.spec_id is not None and not lane.idle:
            # What is said of an origin's rows in files, up to a sequence by partition, is said by
            # their spec: those of another come when none of these waits any more.
            definition = definition.by_spec(lane.spec_id)
        normalise = kind(definition, sent)
        ids = (definition.schema_id, definition.spec_id)
        key = (table.key, kind, *ids, sent.serialize().to_pybytes())
        plan = self._plans.get(key)
        if plan is None:
            # By the schemas that were sent: whoever sends ever new ones fills no memory with them.
            self._plans_bytes += PLAN_BYTES + len(key[-1])
            if self._plans_bytes > MAX_PLANS_BYTES:
                self._plans.clear()
                self._plans_bytes = PLAN_BYTES + len(key[-1])
            shape = next(self._shapes)
            record = encode_schema(shape, table.key, normalise.schema)
            plan = WritePlan(table, normalise, shape, Preamble(RecordKind.SCHEMA, (record,)))
            self._plans[key] = plan
        return plan
