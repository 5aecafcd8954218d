"""Log records other than single operations: transactions, and what a segment carries about origins.

A transaction is one record with several tables' operations, which are applied at once:

    payload ─ u64 mark │ u64 count │ u64 length of each │ operation payload 0 │ 1 │ …

The mark cannot start a plain operation's payload, whose header is never that long. Each
operation's payload is in the format of :mod:`ingester.dml.record` and uses one of the record's
sequences. Malformed input raises :class:`DamagedRecord` (tests/fuzz).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from ingester.dml.operation import Transaction
from ingester.dml.record import (
    DamagedRecord,
    LoggedOperation,
    TableRows,
    apart,
    decode_operation,
    encode_operation,
    operation_of,
    preambles_of,
)
from persist.manifest.actions import Content
from wal import Entry, RecordKind

# msgspec reports text that is not UTF-8 with Python's own exception.
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError)
_encode = msgspec.msgpack.Encoder().encode
_opened_of = msgspec.msgpack.Decoder(list[str]).decode
_origins_of = msgspec.msgpack.Decoder(list[tuple[str, str, str, int]]).decode


def encode_origins(carried: Sequence[tuple[str, str, str, int]]) -> bytes:
    return _encode(list(carried))


def encode_opened(origins: Sequence[str]) -> bytes:
    return _encode(list(origins))


def decode_origins(payload: pa.Buffer) -> list[tuple[str, str, str, int]]:
    try:
        return _origins_of(payload)
    except _UNDECODABLE as exc:
        raise DamagedRecord(f"origins record does not decode: {exc}") from exc


def decode_opened(payload: pa.Buffer) -> list[str]:
    try:
        return _opened_of(payload)
    except _UNDECODABLE as exc:
        raise DamagedRecord(f"opened record does not decode: {exc}") from exc


_MARK = (1 << 64) - 1
_WORD = struct.Struct("<Q")


def head_of(sizes: Sequence[int]) -> bytes:
    """Return the head of a transaction with operation payloads of these sizes in bytes."""
    return b"".join(_WORD.pack(word) for word in (_MARK, len(sizes), *sizes))


def make_transaction(
    tables: Sequence[TableRows],
    origin: tuple[str, int],
    changes: int,
    content: Content | None = None,
) -> Transaction:
    """Return a transaction with its log record.

    Args:
        origin: its name, and the transaction's sequence.
        changes: number of row changes that the rows were made of.
        content: what the transaction contains, if it is to be noted.
    """
    payloads = [encode_operation(rows, origin, content=content) for rows in tables]
    sizes = [sum(memoryview(piece).nbytes for piece in pieces) for pieces in payloads]
    entry = Entry(
        RecordKind.OPERATION,
        [head_of(sizes), *(piece for pieces in payloads for piece in pieces)],
        tuple(preamble for rows in tables for preamble in preambles_of(rows)),
        operations=len(tables),
    )
    operations = tuple(
        operation_of(rows, size, origin) for rows, size in zip(tables, sizes, strict=True)
    )
    for operation in operations:
        operation.content = content
    return Transaction(operations, entry, changes)


def decode_record(
    payload: pa.Buffer, schemas: dict[int, pa.Schema], operations: int = 1
) -> list[LoggedOperation]:
    """Decode the operations of a record, each with one sequence.

    A transaction has several, and so has a coalesced batch with origins. One without is decoded as
    one operation.

    Args:
        operations: number of operations according to the log.

    Raises:
        DamagedRecord: the content does not match its own header or schema.
    """
    if payload.size < _WORD.size or _word(payload, 0) != _MARK:
        logged = decode_operation(payload, schemas, operations)
        return apart(logged, operations) if logged.header.writes else [logged]
    if payload.size < 2 * _WORD.size or (count := _word(payload, 1)) != operations:
        raise DamagedRecord(f"a transaction in a record of {operations} operations")
    offset = (2 + count) * _WORD.size
    if payload.size < offset:
        raise DamagedRecord(f"transaction record has {payload.size} bytes, its head {offset}")
    found = []
    for number in range(count):
        size = _word(payload, 2 + number)
        if offset + size > payload.size:
            raise DamagedRecord(
                f"transaction record has {payload.size} bytes, operation {number} of it ends at"
                f" {offset + size}"
            )
        found.append(decode_operation(payload.slice(offset, size), schemas))
        offset += size
    return found


def _word(payload: pa.Buffer, index: int) -> int:
    return int(_WORD.unpack_from(payload, index * _WORD.size)[0])
