"""A transaction as one log record and back: operations of several tables, applied at once.

    payload ─ u64 mark │ u64 count │ u64 length of each │ operation payload 0 │ 1 │ …

The mark cannot begin the payload of a plain operation, whose header is never that long. Each
operation's payload is what :mod:`ingester.dml.record` says, and takes one sequence of the record's.

Law of this file: pure; anything that does not check out is :class:`DamagedRecord`.
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
    decode_operation,
    encode_operation,
    operation_of,
)
from wal import Entry, RecordKind

# msgspec reports text that is not UTF-8 as Python does.
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError)
_encode = msgspec.msgpack.Encoder().encode
_opened_of = msgspec.msgpack.Decoder(list[str]).decode
_origins_of = msgspec.msgpack.Decoder(list[tuple[str, str, str, int]]).decode


def encode_origins(carried: Sequence[tuple[str, str, str, int]]) -> bytes:
    """Encode the payload of an origins record."""
    return _encode(list(carried))


def encode_opened(origins: Sequence[str]) -> bytes:
    """Encode the payload of an opened record."""
    return _encode(list(origins))


def decode_origins(payload: pa.Buffer) -> list[tuple[str, str, str, int]]:
    """Read an origins record."""
    try:
        return _origins_of(payload)
    except _UNDECODABLE as exc:
        raise DamagedRecord(f"origins record does not decode: {exc}") from exc


def decode_opened(payload: pa.Buffer) -> list[str]:
    """Read an opened record."""
    try:
        return _opened_of(payload)
    except _UNDECODABLE as exc:
        raise DamagedRecord(f"opened record does not decode: {exc}") from exc


_MARK = (1 << 64) - 1
_WORD = struct.Struct("<Q")


def head_of(sizes: Sequence[int]) -> bytes:
    """Encode what stands before the operations' payloads, which have so many bytes each."""
    return b"".join(_WORD.pack(word) for word in (_MARK, len(sizes), *sizes))


def make_transaction(
    tables: Sequence[TableRows], origin: tuple[str, int], changes: int
) -> Transaction:
    """Make a transaction with its record for the log.

    Args:
        origin: its name and the sequence that it gave the transaction.
        changes: the changes that the rows were made of.
    """
    payloads = [encode_operation(rows, origin) for rows in tables]
    sizes = [sum(memoryview(piece).nbytes for piece in pieces) for pieces in payloads]
    entry = Entry(
        RecordKind.OPERATION,
        [head_of(sizes), *(piece for pieces in payloads for piece in pieces)],
        tuple(rows.schema.preamble for rows in tables),
        operations=len(tables),
    )
    operations = tuple(
        operation_of(rows, size, origin) for rows, size in zip(tables, sizes, strict=True)
    )
    return Transaction(operations, entry, changes)


def decode_record(
    payload: pa.Buffer, schemas: dict[int, pa.Schema], operations: int = 1
) -> list[LoggedOperation]:
    """Decode the operations of a record: several in a transaction, each with one sequence.

    Args:
        operations: the number of operations, as the log says.

    Raises:
        DamagedRecord: the content does not fit its own header or schema.
    """
    if payload.size < _WORD.size or _word(payload, 0) != _MARK:
        return [decode_operation(payload, schemas, operations)]
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
