"""Messages of PostgreSQL's `pgoutput` plugin, protocol version 1.

Law of this file: pure; bytes become values, whatever is not known is refused.

Source: PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_FLAGGED_KEY = 1
_LSN3 = struct.Struct(">bqqq")
_U16 = struct.Struct(">h")
_U32 = struct.Struct(">i")
_COLUMN_TYPE = struct.Struct(">ii")


class UnknownMessage(ValueError):
    """A message that this version does not know, or one that ends too early."""


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = _Unchanged()
"""A large value that an update has left as it was, and that the log does not have."""
Cell = str | None | _Unchanged
Cells = tuple[Cell, ...]


class Column(NamedTuple):
    """A column as the source has it."""

    name: str
    type_oid: int
    type_modifier: int


class Relation(NamedTuple):
    """A table as it is from now on."""

    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    """The columns that changes have of old rows; all of them under REPLICA IDENTITY FULL."""


class Commit(NamedTuple):
    """The end of a transaction, which is all that came since the last one."""

    end_lsn: int
    """The position in the log after it."""


class Change(NamedTuple):
    """A row: inserted without ``old``, deleted without ``new``."""

    relation: int
    old: Cells | None
    """The old row, where the key has changed or the row is gone; cells that are not of the key may
    be null."""
    new: Cells | None
    is_update: bool = False
    """A row was there before; under the same key, where there is no ``old``."""


class Truncate(NamedTuple):
    """The end of all rows of some tables."""

    relations: tuple[int, ...]


Message = Relation | Commit | Change | Truncate


def parse(data: bytes) -> Message | None:
    """The message, or :class:`UnknownMessage`; None for one that says nothing of rows."""
    try:
        return _parse(_Reader(data))
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as exc:
        raise UnknownMessage(f"pgoutput: {data[:40]!r}: {exc}") from exc


class _Reader:
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

    def text(self) -> str:
        end = self._data.index(0, self._at)
        found = self._data[self._at : end].decode()
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
        return found.decode()


def _parse(reader: _Reader) -> Message | None:
    kind = reader.letter()
    if kind == "R":
        return _relation(reader)
    if kind == "C":
        _, _, end_lsn, _ = reader.unpack(_LSN3)
        return Commit(end_lsn)
    if kind in "IUD":
        return _change(kind, reader)
    if kind == "T":
        (count,) = reader.unpack(_U32)
        reader.letter()
        return Truncate(tuple(reader.unpack(_U32)[0] for _ in range(count)))
    if kind in "BOYM":
        return None
    raise ValueError(f"a message of kind {kind!r}")


def _relation(reader: _Reader) -> Relation:
    (oid,) = reader.unpack(_U32)
    schema, name = reader.text(), reader.text()
    reader.letter()
    (count,) = reader.unpack(_U16)
    columns, key = [], []
    for _ in range(count):
        flagged = ord(reader.letter()) & _FLAGGED_KEY
        columns.append(Column(reader.text(), *reader.unpack(_COLUMN_TYPE)))
        key += [columns[-1].name] if flagged else []
    return Relation(oid, schema, name, tuple(columns), tuple(key))


def _change(kind: str, reader: _Reader) -> Change:
    (oid,) = reader.unpack(_U32)
    old = new = None
    part = reader.letter()
    if part in "KO":
        old = reader.cells()
        part = reader.letter() if kind == "U" else ""
    if part == "N":
        new = reader.cells()
    if (new is None) != (kind == "D"):
        raise ValueError(f"parts of a change of kind {kind!r}")
    return Change(oid, old, new, kind == "U")
