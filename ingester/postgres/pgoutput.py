"""Messages of PostgreSQL's ``pgoutput`` plugin, protocol version 1.

A change keeps its bytes; ``sync_messages`` reads the rows of many changes at once. Unknown messages
are refused.

Source: PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_FLAGGED_KEY = 1
_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">bQQq")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_COLUMN_TYPE = struct.Struct(">Ii")
_EPOCH_S = 946_684_800
"""The epoch of PostgreSQL's clock, the year 2000, in Unix time."""
_CHANGES = frozenset(b"IUD")
_TRUNCATE_CASCADE, _TRUNCATE_RESTART = 1, 2


class UnknownMessage(ValueError):
    """An unknown or truncated message."""


class RelationColumn(NamedTuple):
    """A column at the source."""

    name: str
    type_oid: int
    type_modifier: int


class Relation(NamedTuple):
    """A table, as the following changes describe it."""

    oid: int
    schema: str
    name: str
    columns: tuple[RelationColumn, ...]
    key: tuple[str, ...] = ()
    """The columns of old rows in changes; all under REPLICA IDENTITY FULL."""
    identity: str = "d"
    """The table's REPLICA IDENTITY: 'd' default, 'n' nothing, 'f' full, 'i' an index."""


class BeginMessage(NamedTuple):
    """The beginning of a committed transaction."""

    final_lsn: int
    """The position of its commit."""
    xid: int
    committed_at: float = 0.0
    """The commit time by the source's clock, in Unix time."""


class CommitMessage(NamedTuple):
    """The end of a transaction."""

    end_lsn: int
    """The position after it."""


class Change(NamedTuple):
    """The message of an inserted, updated or deleted row, unparsed."""

    relation: int
    data: bytes


class Truncate(NamedTuple):
    """A TRUNCATE of some tables."""

    relations: tuple[int, ...]
    cascade: bool = False
    restart: bool = False


Message = Relation | BeginMessage | CommitMessage | Change | Truncate


def parse(data: bytes) -> Message | None:
    """Parse a message; None if it does not concern rows.

    The rows of a :class:`Change` are parsed later.

    Raises:
        UnknownMessage
    """
    try:
        if data[0] in _CHANGES:
            return Change(_U32.unpack_from(data, 1)[0], data)
        return _parse(_MessageReader(data))
    except (struct.error, IndexError, ValueError) as exc:
        raise UnknownMessage(f"pgoutput: {data[:40]!r}: {exc}") from exc


class _MessageReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def letter(self) -> str:
        self._at += 1
        return chr(self._data[self._at - 1])

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        found = form.unpack_from(self._data, self._at)
        self._at += form.size
        return found

    def name(self) -> str:
        """A name; invalid UTF-8, as in a SQL_ASCII database, is escaped."""
        end = self._data.index(0, self._at)
        found = self._data[self._at : end].decode(errors="backslashreplace")
        self._at = end + 1
        return found

    def end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes too many")


def _parse(reader: _MessageReader) -> Message | None:
    kind = reader.letter()
    message: Message
    if kind == "R":
        message = _relation(reader)
    elif kind == "B":
        final_lsn, microseconds, xid = reader.unpack(_BEGIN)
        message = BeginMessage(final_lsn, xid, _EPOCH_S + microseconds / 1e6)
    elif kind == "C":
        _, _, end_lsn, _ = reader.unpack(_COMMIT)
        message = CommitMessage(end_lsn)
    elif kind == "T":
        (count,) = reader.unpack(_U32)
        options = ord(reader.letter())
        if options & ~(_TRUNCATE_CASCADE | _TRUNCATE_RESTART):
            raise ValueError(f"options {options} of a truncation")
        oids = tuple(reader.unpack(_U32)[0] for _ in range(count))
        message = Truncate(
            oids, bool(options & _TRUNCATE_CASCADE), bool(options & _TRUNCATE_RESTART)
        )
    elif kind in "OYM":
        return None
    else:
        raise ValueError(f"a message of kind {kind!r}")
    reader.end()
    return message


def _relation(reader: _MessageReader) -> Relation:
    (oid,) = reader.unpack(_U32)
    schema, name = reader.name(), reader.name()
    identity = reader.letter()
    if identity not in "dnfi":
        raise ValueError(f"a replica identity {identity!r}")
    (count,) = reader.unpack(_U16)
    columns, key = [], []
    for _ in range(count):
        flagged = ord(reader.letter()) & _FLAGGED_KEY
        column = reader.name()
        columns.append(RelationColumn(column, *reader.unpack(_COLUMN_TYPE)))
        key += [column] if flagged else []
    # The schema ``pg_catalog`` is sent as an empty name.
    return Relation(oid, schema or "pg_catalog", name, tuple(columns), tuple(key), identity)
