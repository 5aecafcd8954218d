"""Replay: from the log back into the buffers, after a crash or a stop that ran out of time.

Oldest first, through the same tree as live writes. Parts that a committed manifest version has are
skipped, by (ingester id, epoch, spec, partition). Memory limits hold: replay waits for flushes,
which run meanwhile. After a crash during replay, the next start finds each operation in the log or
in a file, unless it belongs to another process. Above such an operation nothing counts as applied
that is completely in files, and no state of a source: its client sends all of it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import trio

from ingester.buffer import BufferTree, TableBuffer
from ingester.dml.control_records import decode_opened, decode_origins, decode_record
from ingester.dml.ipc import compact
from ingester.dml.operation import Operation, Part
from ingester.dml.record import DamagedRecord, LoggedOperation, checkpoint_of, decode_schema
from ingester.errors import StoreUnreachable, UnknownTable
from ingester.memory.ledger import MemoryLedger
from ingester.observability.logs import store_away
from ingester.origins.checkpoint_state import SharedBytes
from ingester.origins.checkpoints import MissingSequences
from ingester.origins.registry import Origins
from ingester.tables.catalog import Catalog
from persist.manifest.origins import Process, runs_of, verdict_of
from persist.store import StoreRetry, retry_async
from wal import Log, Record, RecordKind, RecordSource

REGISTER_RETRY = StoreRetry(first_s=0.2, cap_s=10.0, unreachable=(StoreUnreachable,))


class LogWithoutTable(Exception):
    """The log has rows of a table that the store does not have: most likely the wrong store."""


class LogOfAnotherTime(Exception):
    """The log has rows of a keyed table that another daemon owns by now."""


@dataclass(slots=True)
class ReplayReport:
    """Counts of a replay."""

    operations: int = 0
    rows: int = 0
    skipped_rows: int = 0
    """Rows that were not replayed: committed files had them, or they are ``foreign_rows``."""
    foreign_rows: int = 0
    """Rows of origins that another process took over; their clients have sent them there."""


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """The memory that replay may use, and what triggers flushes."""

    ledger: MemoryLedger
    relieve: Callable[[], None]


class Replay:
    """Applies a recovered log to the buffers."""

    def __init__(
        self,
        catalog: Catalog,
        tree: BufferTree,
        origins: Origins,
        limits: ReplayLimits,
        ingester_id: str,
    ) -> None:
        self.report = ReplayReport()
        self.interrupted: set[str] = set()
        """Origins with an open transaction at the end of the log."""
        self._catalog = catalog
        self._tree = tree
        self._origins = origins
        self._limits = limits
        self._ingester_id = ingester_id
        self._segment = -1
        self._carried: tuple[list[tuple[str, str, str, int]], Process] | None = None
        """The newest segment's record of origins, and its writer."""
        self._missing = MissingSequences()
        self._schemas: dict[int, pa.Schema] = {}
        self._shared: dict[str, SharedBytes] = {}
        """Bytes shared by checkpoints of the segment."""
        self._number_of: dict[int, int] = {}
        """The tree's number of each schema, by its number in the segment."""
        self._numbers: dict[bytes, int] = {}
        # Below zero, where live streams have no numbers, and not the tree's -1.
        self._next_number = itertools.count(-2, -1)

    async def run(
        self,
        wal: Log,
        on_segment: Callable[[int], None] = lambda segment: None,
        shipped: Mapping[int, RecordSource] | None = None,
    ) -> ReplayReport:
        """Replay everything.

        Args:
            on_segment: called with the number of each segment.
            shipped: by epoch, the operations in log objects that the log lacks.

        Raises:
            LogDamaged, ObjectDamaged, DamagedRecord: a segment, object or record is damaged.
            LogWithoutTable: the log belongs to another store.
            Fenced: a later process uses this id.
        """
        self._origins.replaying = True
        async for records in wal.replay(allocate=pa.allocate_buffer, others=shipped):
            for record in records:
                try:
                    if record.segment != self._segment:
                        self._begin_segment(record.segment)
                        on_segment(record.segment)
                    await self._replay(record)
                except DamagedRecord as exc:
                    raise DamagedRecord(
                        f"log segment {record.segment}, offset {record.offset}: {exc}"
                    ) from exc
                await self._wait_for_memory()
        if self._carried is not None:
            self._origins.restore_all(*self._carried)
        self._origins.replaying = False
        return self.report

    def _begin_segment(self, segment: int) -> None:
        """Begin a segment, which numbers its schemas from the beginning."""
        self._segment = segment
        self._schemas.clear()
        self._shared.clear()

    async def _replay(self, record: Record) -> None:
        if record.kind == RecordKind.SCHEMA:
            header, schema = decode_schema(record.payload)
            self._schemas[header.schema_number] = schema
            key = schema.serialize().to_pybytes()
            if key not in self._numbers:
                self._numbers[key] = next(self._next_number)
            self._number_of[header.schema_number] = self._numbers[key]
        elif record.kind == RecordKind.SHARED:
            shared = SharedBytes.of(record.payload.to_pybytes())
            self._shared[shared.id] = shared
        elif record.kind == RecordKind.ORIGINS:
            self._carried = (decode_origins(record.payload), (self._ingester_id, record.epoch))
        elif record.kind == RecordKind.OPERATION:
            self._apply(record, await self._opened(record))
        elif record.kind == RecordKind.OPENED:
            self.interrupted = set(decode_opened(record.payload))

    async def _opened(self, record: Record) -> list[tuple[TableBuffer, LoggedOperation]]:
        found = []
        for logged in decode_record(record.payload, self._schemas, record.operations):
            table = self._tree.tables.get((logged.header.namespace, logged.header.table))
            if table is None or not table.registered:
                table = await self._register(logged.header.namespace, logged.header.table)
            found.append((table, logged))
        return found

    def _apply(self, record: Record, found: list[tuple[TableBuffer, LoggedOperation]]) -> None:
        """Apply an operation, a coalesced batch, or a transaction over several tables."""
        self.interrupted -= {logged.header.origin for _, logged in found}
        self.report.operations += record.operations
        each = record.operations if len(found) == 1 else 1
        left = [
            operation
            for number, (table, logged) in enumerate(found)
            if (operation := self._left_of(record, number, each, table, logged)) is not None
        ]
        if sum(operation.rows for operation in left) < sum(logged.rows for _, logged in found):
            _detach(left, record.payload.size)
        self._tree.apply_together(left)
        for operation in left:
            table = self._tree.tables[operation.table]
            for part in operation.parts:
                partition = table.partitions[operation.spec_id, part.values]
                handle = partition.active or partition.frozen[-1]
                self._catalog.commits.overlap.note_replayed(table, handle)

    def _left_of(
        self,
        record: Record,
        number: int,
        operations: int,
        table: TableBuffer,
        logged: LoggedOperation,
    ) -> Operation | None:
        """The part of a record's operation or coalesced batch that files lack."""
        header, epoch, seq = logged.header, record.epoch, record.first_seq + number
        parts = tuple(
            part
            for part in logged.parts
            if table.state.applied_to(self._ingester_id, epoch, header.spec_id, part.values) < seq
        )
        rows = sum(part.batch.num_rows for part in parts)
        if rows:
            self._check_owner(table)
            self._check_made(table, header.spec_id)
        applies = self._is_to_apply(table, logged, parts, epoch)
        whole = self._is_whole(table, logged, epoch, applies)
        # Rows in files above those of another process would make these duplicates. The client
        # sends both to the origin's owner again, and rows in files are left out.
        if not applies or not (parts or whole):
            self.report.skipped_rows += logged.rows
            self.report.foreign_rows += rows
            if rows:
                table.dropped_epoch = max(table.dropped_epoch, epoch)
            return None
        self.report.rows += rows
        self.report.skipped_rows += logged.rows - rows
        return Operation(
            table=table.key,
            parts=parts,
            rows=rows,
            nbytes=sum(part.nbytes for part in parts),
            schema_number=self._number_of[header.schema_number],
            spec_id=header.spec_id,
            operations=operations,
            origin=header.origin,
            origin_sequence=header.origin_sequence,
            content=header.content,
            checkpoint=checkpoint_of(header, self._shared) if whole else None,
            messages=header.messages,
            # A record's operations and parts are views of its payload.
            shares_memory=len(logged.parts) > 1 or operations < record.operations,
            seq=seq,
            epoch=epoch,
            segment=record.segment,
            in_store=record.segment < 0,
        )

    def _is_whole(
        self, table: TableBuffer, logged: LoggedOperation, epoch: int, applies: bool
    ) -> bool:
        """Note an operation; return whether its origin's part of the log is complete up to it."""
        header = logged.header
        name, sequence = header.origin, header.origin_sequence
        if name is None or sequence is None:
            return True
        if applies:
            return self._missing.note(table.key, name, sequence, there=True)
        runs, process = runs_of(table.state.origins.get(name)), (self._ingester_id, epoch)
        there = all(
            verdict_of(runs, sequence, process, (header.spec_id, part.values)).durable
            for part in logged.parts
        )
        if not there:
            self._tree.checkpoints.forget_from(table.key, name, sequence)
        return self._missing.note(table.key, name, sequence, there=there)

    def _check_owner(self, table: TableBuffer) -> None:
        """Raise LogOfAnotherTime if another daemon owns the keyed table's writes by now."""
        owner = table.state.owner if table.definition.keyed else None
        if owner is not None and owner.ingester_id != self._ingester_id:
            raise LogOfAnotherTime(
                f"the log has acknowledged rows of table {table.namespace}/{table.name}, whose"
                f" writes daemon {owner.ingester_id!r} takes by now: which of two rows of a key is"
                " newer cannot be known. `ingester wal adopt` adopts the rest of this log; then"
                " move its folder aside"
            )

    def _check_made(self, table: TableBuffer, spec_id: int) -> None:
        """Raise LogOfAnotherTime for rows of a table that a copy has replaced."""
        if spec_id not in table.state.specs:
            raise LogOfAnotherTime(
                f"the log has acknowledged rows of table {table.namespace}/{table.name} that are in"
                " no file, but another daemon has replaced the table by a copy since. `ingester wal"
                " adopt` adopts the rest of this log; then move its folder aside"
            )

    def _is_to_apply(
        self, table: TableBuffer, logged: LoggedOperation, left: tuple[Part, ...], epoch: int
    ) -> bool:
        """Whether an operation, of which ``left`` is not applied, still belongs to this daemon.

        It does not if another process took over its origin, or if a flush skipped some of its rows
        while the origin was elsewhere. The origin may have come back since; then its client sends
        the operation again.
        """
        header = logged.header
        name, sequence = header.origin, header.origin_sequence
        if name is None or sequence is None:
            return True
        known = table.state.origins.get(name)
        origin_table = self._origins.table(name, table.key)
        if known is not None and origin_table.owner is None:
            self._origins.load(origin_table, known, self._ingester_id)
        runs, process = runs_of(known), (self._ingester_id, epoch)
        kept = {part.values for part in left}
        return verdict_of(runs, sequence, process).own and (
            known is None
            or all(
                verdict_of(runs, sequence, process, (header.spec_id, part.values)).durable
                for part in logged.parts
                if part.values not in kept
            )
        )

    async def _register(self, namespace: str, name: str) -> TableBuffer:
        """Open a table and commit our epoch to its manifest; only then does applying count."""

        async def once() -> TableBuffer:
            table = await self._catalog.open(namespace, name)
            await self._catalog.register(table)
            return table

        try:
            tell = store_away("replay waits")
            return await retry_async(once, REGISTER_RETRY, tell, sleep=trio.sleep)
        except UnknownTable as exc:
            raise LogWithoutTable(
                f"the log has acknowledged rows of table {namespace}/{name}, which store"
                f" {self._catalog.store.url} does not have; is this the right store? If it is, make"
                " the table there first, as it was, by a daemon of another id"
            ) from exc

    async def _wait_for_memory(self) -> None:
        ledger = self._limits.ledger
        if ledger.used <= ledger.watermarks.low:
            return
        self._limits.relieve()
        # Polled: memory is released in many places without a common event.
        while ledger.used > ledger.watermarks.high and (ledger.buffered or ledger.frozen):
            await trio.sleep(0.01)


def _detach(left: list[Operation], record_bytes: int) -> None:
    """Copy what is left of a record if it is much less than the record, which it keeps alive."""
    if 4 * sum(operation.nbytes for operation in left) > 3 * record_bytes:
        return
    for operation in left:
        operation.parts = tuple(
            part._replace(batch=compact(part.batch)) for part in operation.parts
        )
        operation.shares_memory = False
