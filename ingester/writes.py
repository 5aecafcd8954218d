"""Streams of writes on the loop's side: opened, superseded, answered in order.

Law of this file: answers of one stream leave in the order of its batches. After a refusal nothing
later from that stream is applied. There is one open stream per (origin, table); a newer one ends
the older.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from ingester.admission import AdmissionGate
from ingester.catalog import Catalog
from ingester.errors import DiskFull, MemoryFull, Stopping, Superseded
from ingester.flight.answers import PutAnswer
from ingester.ipc_messages import MessageTemplate
from ingester.origins import Origins
from ingester.ownership import Ownership
from ingester.record import encode_schema
from ingester.schema import Normaliser
from ingester.sinks import DmlSink, Operation
from ingester.sinks.origin_sink import taken_away
from persist.table import TableDefinition
from wal import Line, Preamble, RecordKind

if TYPE_CHECKING:
    from ingester.buffer import BufferTree, TableBuffer

Outcome = PutAnswer | BaseException


@dataclass(frozen=True, slots=True)
class WritePlan:
    """How batches of one schema become operations of one table."""

    table: TableBuffer
    normalise: Normaliser
    shape: int
    preamble: Preamble
    template: MessageTemplate = field(default_factory=MessageTemplate)
    """Of the batches that ``normalise`` makes."""


class WriteStream:
    """One DoPut stream. Loop only, but for what says otherwise.

    ``deliver`` hands outcomes to the stream's own thread.
    """

    def __init__(
        self,
        sink: DmlSink,
        origins: Origins,
        gate: AdmissionGate,
        plan: WritePlan,
        *,
        origin: str | None,
        epoch: int,
        newest_seq: Callable[[], int],
    ) -> None:
        self.plan = plan
        self.gate = gate
        self.origin = origin
        self.first_sequence: int | None = None
        """From which on the origin is this daemon's; None until a batch has one."""
        self.refusal: BaseException | None = None
        """Why a batch of this stream failed: nothing later from it is applied."""
        self.ended_by: BaseException | None = None
        """Why batches that are not read yet are refused; those on their way go on."""
        self.deliver: Callable[[Outcome], None] = lambda outcome: None
        self.on_disk_full: Callable[[], None] = lambda: None
        self.on_memory_full: Callable[[], None] = lambda: None
        self.on_closed: Callable[[WriteStream], None] = lambda stream: None
        self._sink = sink
        self._origins = origins
        self._epoch = epoch
        # A duplicate has no sequence of its own: all of its rows are visible up to the newest one.
        self._newest_seq = newest_seq
        # One thread adds to it, the loop takes from it.
        self._slots: deque[list[Outcome]] = deque()
        self._line = Line()
        self._on_drained: Callable[[], None] | None = None

    def submit(self, operation: Operation) -> None:
        """Send one batch on its way; its answer comes through ``deliver``.

        With an origin on the loop, without one in the thread that reads the stream: nothing can
        fail there but the log, which keeps the stream's order by its line.
        """
        if self.origin is None and operation.entry is not None:
            operation.entry.line = self._line
        slot: list[Outcome] = []
        self._slots.append(slot)
        if self.origin is not None and self.refusal is not None:
            self.gate.leave(operation.admitted_bytes)
            self._fill(slot, self.refusal)
            return
        self._sink.submit(operation, lambda op, error: self._answered(slot, op, error))

    def admit(self, nbytes: int, sequence: int | None) -> int:
        """The bytes that the next batch counts for until it is answered. Any thread.

        What is known to be written already costs nothing and is let in always.

        Raises:
            IngesterError: why it is refused; it ends the stream.
        """
        if self._is_known(sequence):
            return 0
        refusal = self.gate.enter(nbytes)
        if refusal is not None:
            raise refusal
        return nbytes

    def would_admit(self, nbytes: int, sequence: int | None) -> None:
        """Raise what :meth:`admit` would raise now, before anything is asked of the store.

        Raises:
            IngesterError
        """
        if not self._is_known(sequence) and (reasons := self.gate.reasons(nbytes)):
            raise reasons[0]

    def _is_known(self, sequence: int | None) -> bool:
        """Whether the batch is known to be written already. Raises what has ended the stream."""
        refusal = self.ended_by or self.refusal
        if refusal is not None:
            raise refusal
        return (
            self.origin is not None
            and sequence is not None
            and self._origins.is_applied(self.origin, self.plan.table.key, sequence)
        )

    def refuse(self, error: BaseException) -> None:
        """A batch that never became an operation; it ends the stream in its turn."""
        if isinstance(error, DiskFull):
            self.on_disk_full()
        elif isinstance(error, MemoryFull):
            self.on_memory_full()
        self.refusal = self.refusal or error
        slot: list[Outcome] = []
        self._slots.append(slot)
        self._fill(slot, error)

    def finish(self, then: Callable[[], None]) -> None:
        """Call ``then`` when everything submitted so far has been answered."""
        if not self._slots:
            then()
        else:
            self._on_drained = then

    def close(self) -> None:
        """The client has gone or has finished."""
        self.on_closed(self)

    def _answered(
        self, slot: list[Outcome], operation: Operation, error: BaseException | None
    ) -> None:
        self.gate.leave(operation.admitted_bytes)
        if error is not None:
            self.refusal = self.refusal or error
            self._fill(slot, error)
        else:
            self._fill(slot, self._answer(operation))

    def _answer(self, operation: Operation) -> PutAnswer:
        memory = durable = None
        first = False
        if self.origin is not None:
            origin = self._origins.get(self.origin)
            memory, durable = origin.memory_sequence, origin.durable_sequence
            first, origin.answered = not origin.answered, True
        return PutAnswer(
            accepted=True,
            sequence=operation.seq or self._newest_seq(),
            epoch=self._epoch,
            duplicate=operation.duplicate,
            memory_sequence=memory,
            durable_sequence=durable,
            first=first,
        )

    def _fill(self, slot: list[Outcome], outcome: Outcome) -> None:
        slot.append(outcome)
        while self._slots and self._slots[0]:
            self.deliver(self._slots.popleft()[0])
        if not self._slots and self._on_drained is not None:
            self._on_drained()


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
        epoch: int,
    ) -> None:
        self.stopping = False
        self.on_disk_full: Callable[[], None] = lambda: None
        self.on_memory_full: Callable[[], None] = lambda: None
        self._gate = gate
        self._catalog = catalog
        self._tree = tree
        self._sink = sink
        self._ownership = ownership
        self._origins = ownership.origins
        self._origins.on_lost = self._lost
        self._epoch = epoch
        self._shapes = itertools.count(1)
        self._plans: dict[tuple[tuple[str, str], int, bytes], WritePlan] = {}
        self._open: dict[tuple[str, tuple[str, str]], WriteStream] = {}

    async def open(
        self, namespace: str, table: str, origin: str | None, sent: pa.Schema, checked: bool
    ) -> WriteStream | TableDefinition:
        """A stream of batches of one schema into one table.

        Args:
            checked: whether the first batch is known to fit. Without it, a table or columns that
                are new are not made, and the definition that they would have is returned.

        Raises:
            InvalidRequest, UnknownTable, StoreAway, Stopping
        """
        if self.stopping:
            raise Stopping("the daemon is stopping", retry_after_s=1.0)
        if not checked:
            draft = await self._catalog.draft(namespace, table, sent)
            if draft is not None:
                return draft
        buffer = await self._catalog.prepare_write(namespace, table, sent)
        stream = WriteStream(
            self._sink,
            self._origins,
            self._gate,
            self._plan(buffer, sent),
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

    def _lost(self, origin: str, table: tuple[str, str]) -> None:
        stream = self._open.get((origin, table))
        # One that is about to begin takes it back.
        if stream is not None and stream.first_sequence is not None:
            stream.ended_by = taken_away(origin, table)

    def _closed(self, key: tuple[str, tuple[str, str]], stream: WriteStream) -> None:
        if self._open.get(key) is stream:
            del self._open[key]
            self._origins.get(key[0]).open_streams -= 1

    def _plan(self, table: TableBuffer, sent: pa.Schema) -> WritePlan:
        """Shared by all streams of one schema: its schema record is written once a segment."""
        normalise = Normaliser(table.definition, sent)
        key = (table.key, table.definition.schema_id, sent.serialize().to_pybytes())
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= 10_000:
                self._plans.clear()
            shape = next(self._shapes)
            record = encode_schema(shape, table.key, normalise.schema)
            plan = WritePlan(table, normalise, shape, Preamble(RecordKind.SCHEMA, (record,)))
            self._plans[key] = plan
        return plan
