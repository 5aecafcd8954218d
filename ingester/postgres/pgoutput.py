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
"""PostgreSQL's clock begins in the year 2000; this is what it is in Unix time."""
_CHANGES = frozenset(b"IUD")
_TRUNCATE_CASCADE, _TRUNCATE_RESTART = 1, 2


class UnknownMessage(ValueError):
    """A message that this version does not know, or one that ends too early."""


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = _Unchanged()
"""A large value that an update has left as it was, and that the log does not have."""
Cell = bytes | None | _Unchanged
Cells = tuple[Cell, ...]


class RelationColumn(NamedTuple):
    """A column as the source has it."""

    name: str
    type_oid: int
    type_modifier: int


class Relation(NamedTuple):
    """A table as it is from now on."""

    oid: int
    schema: str
    name: str
    columns: tuple[RelationColumn, ...]
    key: tuple[str, ...] = ()
    """The columns that changes have of old rows; all of them under REPLICA IDENTITY FULL."""
    identity: str = "d"
    """The table's REPLICA IDENTITY: 'd' default, 'n' nothing, 'f' full, 'i' an index."""


class BeginMessage(NamedTuple):
    """The beginning of a transaction that has been committed."""

    final_lsn: int
    """The position of its commit."""
    xid: int
    committed_at: float = 0.0
    """The time of the commit by the source's clock, in seconds of Unix time."""


class CommitMessage(NamedTuple):
    """The end of a transaction, which is all that came since the last one."""

    end_lsn: int
    """The position in the log after it."""


class Change(NamedTuple):
    """A row that was inserted, updated or deleted, as the message of it came."""

    relation: int
    data: bytes

    @property
    def kind(self) -> str:
        """``I``, ``U`` or ``D``."""
        return chr(self.data[0])

    def rows(self) -> tuple[Cells | None, Cells | None]:
        """The old row and the new one, cell by cell; slow: for messages and tests.

        The old one is there where the key has changed or the row is gone, and always under
        REPLICA IDENTITY FULL; otherwise its cells that are not of the key are null.

        Raises:
            UnknownMessage
        """
        try:
            return _rows(self.data)
        except (struct.error, IndexError, ValueError) as exc:
            raise UnknownMessage(f"pgoutput: {self.data[:40]!r}: {exc}") from exc


class Truncate(NamedTuple):
    """The end of all rows of some tables."""

    relations: tuple[int, ...]
    cascade: bool = False
    restart: bool = False


Message = Relation | BeginMessage | CommitMessage | Change | Truncate


def parse(data: bytes) -> Message | None:
    """The message, or :class:`UnknownMessage`; None for one that says nothing of rows.

    The rows of a :class:`Change` are read later, and may be found to be no good then.
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
        """A name; what is no UTF-8 in it, as a SQL_ASCII database may have it, is escaped."""
        end = self._data.index(0, self._at)
        found = self._data[self._at : end].decode(errors="backslashreplace")
        self._at = end + 1
        return found

    def cells(self) -> Cells:
        (count,) = self.unpack(_U16)
        return tuple(self._cell() for _ in range(count))

    def _cell(self) -> Cell:
        kind = self.letter()
        if kind == "n":
            return None
        if kind == "u":
            return UNCHANGED
        if kind != "t":
            raise ValueError(f"a cell of kind {kind!r}")
        (length,) = self.unpack(_U32)
        found = self._data[self._at : self._at + length]
        if len(found) != length:
            raise IndexError("it ends within a cell")
        self._at += length
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
    # The catalogue's own schema is told as an empty name.
    return Relation(oid, schema or "pg_catalog", name, tuple(columns), tuple(key), identity)


def _rows(data: bytes) -> tuple[Cells | None, Cells | None]:
    reader = _MessageReader(data)
    kind = reader.letter()
    reader.unpack(_U32)
    part = reader.letter()
    old = new = None
    if part in "KO" and kind in "UD":
        old = reader.cells()
        part = reader.letter() if kind == "U" else ""
    if part == "N" and kind in "IU":
        new = reader.cells()
    elif part:
        raise ValueError(f"part {part!r} of a change of kind {kind!r}")
    reader.end()
    return old, new
