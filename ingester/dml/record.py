"""An operation as a log record, and back. To the log a record is opaque bytes.

    operation payload ─ u32 header length │ header (msgpack) │ pad to 8 │ rows
    schema payload    ─ msgpack {shape (the schema number), namespace, table, schema (Arrow IPC)}

The rows are one Arrow IPC message without its schema, those of each partition behind each other;
the header has the number of each partition's rows. (Releases up to 0.1 wrote a message for each
partition, which is still read.) The schema is stored once per segment in a record of its own, which
the log writes before the first operation that uses its number. A coalesced batch is one such
record, which has the row counts of its operations in each partition, and lists the operations with
an origin. Messages are multiples of 8 bytes, so that replayed columns are aligned.

:func:`decode_operation` reads what :func:`encode_operation` writes; anything else raises
:class:`DamagedRecord` (tests/dml/test_record.py, tests/fuzz).
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec
import pyarrow as pa

from ingester.dml.content import ContentReader
from ingester.dml.ipc import (
    SMALL_BYTES,
    IpcMessage,
    MessageTemplate,
    compact,
    keeps_more,
    sizes_of,
)
from ingester.dml.operation import Operation, OriginWrite, Part, RowCounts
from ingester.origins.checkpoint_state import SharedBytes, SourceCheckpoint
from ingester.schema.normalise import validate_fully
from persist.manifest.actions import Content
from persist.partitioning import PartitionedRows, PartitionValues
from persist.table import TableKey
from wal import Entry, Preamble, RecordKind

SLICED_BYTES = 2 << 20
"""Parts of a larger message are copied, so that none keeps the memory of all others alive."""
_LENGTH = struct.Struct("<I")


class DamagedRecord(ValueError):
    """A record with valid checksums and invalid content; an operator must look."""


class PartHeader(msgspec.Struct, array_like=True, frozen=True):
    """An operation's rows in one partition."""

    values: PartitionValues
    nbytes: int
    """Bytes of its own message; 0 if it has none."""
    row_counts: RowCounts | None = None
    rows: int | None = None
    """Number of its rows in the message of all partitions; None if it has its own message."""


class OperationHeader(msgspec.Struct, array_like=True, frozen=True):
    """An operation without its rows. New fields are only added at the end."""

    schema_number: int
    namespace: str
    table: str
    spec_id: int
    parts: tuple[PartHeader, ...]
    origin: str | None = None
    origin_sequence: int | None = None
    checkpoint_partition: str | None = None
    checkpoint_state: bytes | None = None
    messages: int = 0
    checkpoint_at: str | None = None
    checkpoint_shared: str | None = None
    content_rows: int | None = None
    content_digest: int | None = None
    origins: tuple[str, ...] = ()
    writes: tuple[tuple[int, int, int, int | None, int | None], ...] = ()
    """Writes of a coalesced batch that have an origin: number, index of the origin, sequence, and
    rows and digest of the content."""

    @property
    def content(self) -> Content | None:
        """The content of the origin's sequence, if it was noted."""
        if self.content_rows is None or self.content_digest is None:
            return None
        return Content(self.content_rows, self.content_digest)


class SchemaRecord(msgspec.Struct, frozen=True):
    """The columns behind a schema number within one segment."""

    schema_number: int = msgspec.field(name="shape")
    namespace: str
    table: str
    schema: bytes


class LoggedOperation(NamedTuple):
    """A decoded operation record."""

    header: OperationHeader
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """Number of rows in all parts."""
        return sum(part.batch.num_rows for part in self.parts)


# The log identifies a preamble by object identity. If two threads create one at the same time, the
# segment gets it twice, which is harmless.
_preambles: weakref.WeakKeyDictionary[SharedBytes, Preamble] = weakref.WeakKeyDictionary()


LAYOUT_2 = Preamble(RecordKind.LAYOUT_2, ())
"""Precedes operations that releases up to 0.1 cannot read, so that these stop: those with several
partitions in one message, and coalesced batches with origins."""


def preamble_of(shared: SharedBytes) -> Preamble:
    """Return the record of these shared bytes, created on first use."""
    known = _preambles.get(shared)
    if known is None:
        known = _preambles[shared] = Preamble(RecordKind.SHARED, (shared.state,))
    return known


# msgspec reports text that is not UTF-8 with Python's own exception.
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError)

# Raised by pyarrow for an empty message and for invalid sizes.
_OUT_OF_RANGE = (EOFError, ValueError, IndexError, OverflowError)

_encode = msgspec.msgpack.Encoder().encode
_header_of = msgspec.msgpack.Decoder(OperationHeader).decode
_schema_of = msgspec.msgpack.Decoder(SchemaRecord).decode


def encode_schema(number: int, table: TableKey, schema: pa.Schema) -> bytes:
    sent = schema.remove_metadata().serialize().to_pybytes()
    return _encode(SchemaRecord(number, table[0], table[1], sent))


@dataclass(frozen=True, slots=True, eq=False)
class LoggedSchema:
    """A table's schema as referred to by operations of this process."""

    number: int
    table: TableKey
    preamble: Preamble
    """The schema record, which the log writes before the first operation that uses it."""
    template: MessageTemplate = field(default_factory=MessageTemplate)
    contents: ContentReader | None = None
    """Finds the content of rows of this schema; None if the content is not noted."""

    @classmethod
    def of(cls, number: int, table: TableKey, schema: pa.Schema) -> LoggedSchema:
        """Return a schema with a number that is unique in this process."""
        record = encode_schema(number, table, schema)
        preamble = Preamble(RecordKind.SCHEMA, (record,))
        return cls(number, table, preamble, contents=ContentReader(schema))


class TableRows(NamedTuple):
    """A table's rows, ordered by partition, with the bytes that the log stores."""

    schema: LoggedSchema
    spec_id: int
    """The partition spec of the parts."""
    parts: tuple[Part, ...] = ()
    message: IpcMessage | None = None
    """The IPC message of all parts' rows, one part behind the other; None without rows."""
    shares_memory: bool = False
    """Whether each part keeps the memory of all of them alive."""
    origin_messages: int = 0
    """Number of replication messages that the rows were made of."""


def table_rows(
    schema: LoggedSchema,
    spec_id: int,
    ordered: PartitionedRows,
    *,
    owned: bool = False,
    most_bytes: int | None = None,
    row_counts: Sequence[RowCounts | None] = (),
) -> TableRows:
    """Make parts and a message of rows that are ordered by partition.

    Args:
        owned: the rows' memory was allocated here and holds nothing else.
        most_bytes: upper bound of the rows' size, if known.
        row_counts: of each partition, for a coalesced batch.
    """
    rows, starts = ordered.rows, ordered.starts
    counts = row_counts or [None] * len(ordered.values)
    if not ordered.values:
        return TableRows(schema, spec_id)
    if len(ordered.values) == 1:
        small = most_bytes is not None and most_bytes < SMALL_BYTES
        message = IpcMessage.serialized(rows) if small else schema.template.message(rows)
        if not (owned or message.metadata or _fits(rows, message.size)):
            rows = pa.ipc.read_record_batch(message.body, rows.schema)
        # The message's size is known already and close to the size in memory.
        part = Part(ordered.values[0], rows, message.size, counts[0])
        return TableRows(schema, spec_id, (part,), message)
    message = IpcMessage.serialized(rows)
    rows = pa.ipc.read_record_batch(message.body, rows.schema)
    shares = message.size <= SLICED_BYTES
    parts = []
    sizes, spans = sizes_of(rows, starts), pairwise(starts)
    for values, (start, stop), size, each in zip(ordered.values, spans, sizes, counts, strict=True):
        part_rows, nbytes = rows.slice(start, stop - start), size
        if not shares:
            part_rows = compact(part_rows)
            nbytes = int(part_rows.get_total_buffer_size())
        parts.append(Part(values, part_rows, nbytes, each))
    return TableRows(schema, spec_id, tuple(parts), message, shares)


def _fits(rows: pa.RecordBatch, nbytes: int) -> bool:
    """Return whether rows keep little more memory alive than their own.

    For few rows a copy is faster than finding out, so they count as not compact.
    """
    return nbytes >= SMALL_BYTES and not keeps_more(rows, nbytes)


def encode_operation(
    rows: TableRows,
    origin: tuple[str, int] | None = None,
    checkpoint: SourceCheckpoint | None = None,
    content: Content | None = None,
    writes: Sequence[OriginWrite] = (),
) -> list[pa.Buffer | bytes]:
    """Return the payload of an operation record as a sequence of buffers."""
    namespace, table = rows.schema.table
    names = {
        name: index for index, name in enumerate(dict.fromkeys(each.origin for each in writes))
    }
    header = _encode(
        OperationHeader(
            schema_number=rows.schema.number,
            namespace=namespace,
            table=table,
            spec_id=rows.spec_id,
            parts=_part_headers(rows),
            origin=origin[0] if origin else None,
            origin_sequence=origin[1] if origin else None,
            checkpoint_partition=checkpoint.partition if checkpoint else None,
            checkpoint_state=checkpoint.state if checkpoint else None,
            messages=rows.origin_messages,
            checkpoint_at=checkpoint.at if checkpoint else None,
            checkpoint_shared=checkpoint.shared.id if checkpoint and checkpoint.shared else None,
            content_rows=content.rows if content else None,
            content_digest=content.digest if content else None,
            origins=tuple(names),
            writes=tuple(
                (one.number, names[one.origin], one.sequence, *(one.content or (None, None)))
                for one in writes
            ),
        )
    )
    pad = -(_LENGTH.size + len(header)) % 8
    head = _LENGTH.pack(len(header)) + header + bytes(pad)
    if rows.message is None:
        return [head]
    return [head + rows.message.metadata, rows.message.body]


def _part_headers(rows: TableRows) -> tuple[PartHeader, ...]:
    if len(rows.parts) == 1 and rows.message is not None:
        part = rows.parts[0]
        return (PartHeader(part.values, rows.message.size, part.row_counts),)
    return tuple(
        PartHeader(part.values, 0, part.row_counts, part.batch.num_rows) for part in rows.parts
    )


def preambles_of(rows: TableRows, writes: Sequence[OriginWrite] = ()) -> tuple[Preamble, ...]:
    """Return the records that have to precede the operation."""
    newer = writes or len(rows.parts) > 1
    return (rows.schema.preamble, LAYOUT_2) if newer else (rows.schema.preamble,)


def make_operation(
    rows: TableRows,
    *,
    operations: int = 1,
    origin: tuple[str, int] | None = None,
    checkpoint: SourceCheckpoint | None = None,
    content: Content | None = None,
    writes: tuple[OriginWrite, ...] = (),
) -> Operation:
    """Return an operation with its log record.

    Args:
        operations: number of writes in a coalesced batch.
        origin: its name, and the operation's sequence.
        content: what the sequence contains, if it is to be noted.
        writes: those of a coalesced batch that have an origin, by number.
    """
    payload = encode_operation(rows, origin, checkpoint, content, writes)
    preambles = preambles_of(rows, writes)
    if checkpoint is not None and checkpoint.shared is not None:
        preambles += (preamble_of(checkpoint.shared),)
    entry = Entry(RecordKind.OPERATION, payload, preambles, operations=operations)
    made = operation_of(rows, entry.payload_bytes, origin)
    made.entry, made.operations, made.checkpoint = entry, operations, checkpoint
    made.content, made.writes = content, writes
    return made


def operation_of(rows: TableRows, nbytes: int, origin: tuple[str, int] | None) -> Operation:
    """Return an operation without a record; ``nbytes`` is its share of another's record."""
    return Operation(
        table=rows.schema.table,
        parts=rows.parts,
        rows=sum(part.batch.num_rows for part in rows.parts),
        nbytes=nbytes,
        schema_number=rows.schema.number,
        spec_id=rows.spec_id,
        origin=origin[0] if origin else None,
        origin_sequence=origin[1] if origin else None,
        messages=rows.origin_messages,
        shares_memory=rows.shares_memory,
    )


def shrink(operation: Operation, left: tuple[Part, ...]) -> None:
    """Reduce an unlogged operation, and its record, to these of its parts."""
    assert operation.entry is not None
    preamble, *_ = operation.entry.preambles
    schema = LoggedSchema(operation.schema_number, operation.table, preamble)
    columns = operation.parts[0].batch.schema
    ordered = PartitionedRows.joined([(part.values, part.batch) for part in left], columns)
    rows = table_rows(schema, operation.spec_id, ordered)
    name, sequence = operation.origin, operation.origin_sequence
    smaller = make_operation(
        rows,
        origin=None if name is None or sequence is None else (name, sequence),
        checkpoint=operation.checkpoint,
        content=operation.content,
    )
    operation.entry, operation.parts = smaller.entry, smaller.parts
    operation.rows, operation.nbytes = smaller.rows, smaller.nbytes
    operation.shares_memory = smaller.shares_memory


def decode_operation(
    payload: pa.Buffer, schemas: dict[int, pa.Schema], operations: int = 1
) -> LoggedOperation:
    """Decode an operation or a coalesced batch. Its columns are views that keep ``payload`` alive.

    Args:
        operations: number of operations according to the log.

    Raises:
        DamagedRecord: the content does not match its own header or schema.
    """
    try:
        (size,) = _LENGTH.unpack_from(payload, 0)
        header = _header_of(memoryview(payload)[_LENGTH.size : _LENGTH.size + size])
        schema = schemas.get(header.schema_number)
        if schema is None:
            raise DamagedRecord(
                f"operation refers to schema number {header.schema_number}, no schema record has it"
            )
        offset = _LENGTH.size + size
        offset += -offset % 8
        parts = []
        for headers in _messages_of(header.parts):
            message = pa.ipc.read_message(payload.slice(offset, headers[0].nbytes or None))
            batch = pa.ipc.read_record_batch(message, schema)
            # Validated fully, because offsets out of bounds would crash the process later.
            validate_fully([batch])
            parts += _parts_of(headers, batch, operations)
            offset += headers[0].nbytes
    except DamagedRecord:
        raise
    except (*_UNDECODABLE, pa.ArrowException, struct.error, OSError, *_OUT_OF_RANGE) as exc:
        raise DamagedRecord(f"operation record does not decode: {exc}") from exc
    if offset > payload.size:
        raise DamagedRecord(f"operation record has {payload.size} bytes, its parts need {offset}")
    return LoggedOperation(header, tuple(parts))


def _messages_of(headers: Sequence[PartHeader]) -> list[Sequence[PartHeader]]:
    """Return the parts of each message."""
    if any(each.rows is not None for each in headers):
        return [headers]
    return [[each] for each in headers]


def _parts_of(headers: Sequence[PartHeader], batch: pa.RecordBatch, operations: int) -> list[Part]:
    """Return the parts of one message."""
    rows = batch.num_rows
    if len(headers) == 1:
        (one,) = headers
        _check_row_counts(one.row_counts, rows, operations)
        return [Part(one.values, batch, int(batch.nbytes), one.row_counts)]
    counts = [-1 if each.rows is None else each.rows for each in headers]
    starts = [0, *accumulate(counts)]
    if min(counts) < 0 or starts[-1] != rows:
        raise DamagedRecord(f"a message of {rows} rows for partitions of {counts} rows")
    parts = []
    sizes = sizes_of(batch, starts)
    for each, start, count, nbytes in zip(headers, starts, counts, sizes, strict=False):
        _check_row_counts(each.row_counts, count, operations)
        parts.append(Part(each.values, batch.slice(start, count), nbytes, each.row_counts))
    return parts


def apart(logged: LoggedOperation, operations: int) -> list[LoggedOperation]:
    """Return the operations of a coalesced batch one by one, each with its origin.

    Raises:
        DamagedRecord: they are not numbered as they should be.
    """
    header = logged.header
    if len(logged.parts) and logged.parts[0].row_counts is None:
        raise DamagedRecord("writes of a record that is no coalesced batch")
    parts: list[list[Part]] = [[] for _ in range(operations)]
    for part in logged.parts:
        start = 0
        for number, count in part.row_counts or ():
            rows = part.batch.slice(start, count)
            parts[number].append(Part(part.values, rows, int(rows.nbytes)))
            start += count
    alone = msgspec.structs.replace(header, origins=(), writes=())
    headers = [alone] * operations
    before = -1
    for number, index, sequence, rows, digest in header.writes:
        if not (before < number < operations and 0 <= index < len(header.origins)):
            raise DamagedRecord(f"write {number} of a record of {operations} operations")
        headers[number] = msgspec.structs.replace(
            alone,
            origin=header.origins[index],
            origin_sequence=sequence,
            content_rows=rows,
            content_digest=digest,
        )
        before = number
    return [
        LoggedOperation(
            msgspec.structs.replace(
                one, parts=tuple(PartHeader(part.values, part.nbytes) for part in its)
            ),
            tuple(its),
        )
        for one, its in zip(headers, parts, strict=True)
    ]


def _check_row_counts(row_counts: RowCounts | None, rows: int, operations: int) -> None:
    if row_counts is None:
        if operations > 1:
            raise DamagedRecord(f"record of {operations} operations without row counts")
        return
    numbers = [number for number, _ in row_counts]
    counts = [count for _, count in row_counts]
    if (
        any(low >= high for low, high in pairwise([-1, *numbers, operations]))
        or any(count < 1 for count in counts)
        or sum(counts) != rows
    ):
        raise DamagedRecord(
            f"{rows} rows do not match row counts {row_counts} of {operations} operations"
        )


def checkpoint_of(
    header: OperationHeader, shared: Mapping[str, SharedBytes]
) -> SourceCheckpoint | None:
    """Return the checkpoint that came with an operation, or None.

    Args:
        shared: the segment's shared bytes by id.

    Raises:
        DamagedRecord: the segment lacks the shared bytes that it refers to.
    """
    if header.checkpoint_partition is None:
        return None
    bulk = None
    if header.checkpoint_shared is not None:
        bulk = shared.get(header.checkpoint_shared)
        if bulk is None:
            raise DamagedRecord(
                f"checkpoint of partition {header.checkpoint_partition!r} refers to shared state"
                f" {header.checkpoint_shared}, which no record before it has"
            )
    at, state = header.checkpoint_at, header.checkpoint_state
    return SourceCheckpoint(header.checkpoint_partition, state, bulk, at)


def decode_schema(payload: pa.Buffer) -> tuple[SchemaRecord, pa.Schema]:
    try:
        record = _schema_of(payload)
        return record, pa.ipc.read_schema(pa.py_buffer(record.schema))
    except (*_UNDECODABLE, pa.ArrowException, OSError, EOFError) as exc:
        raise DamagedRecord(f"schema record does not decode: {exc}") from exc
