"""Messages as pgoutput writes them, and a slow parser of their rows as an oracle."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ingester.postgres.pgoutput import Change, Relation, UnknownMessage

Text = str | bytes | None | object


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = _Unchanged()
"""A large value that an update did not change and that the log therefore omits."""
Cell = bytes | None | _Unchanged
Cells = tuple[Cell, ...]


def tuple_data(texts: Sequence[Text]) -> bytes:
    """Encode a row; a cell may be None or UNCHANGED."""
    found = [struct.pack(">H", len(texts))]
    for text in texts:
        if text is None or text is UNCHANGED:
            found.append(b"n" if text is None else b"u")
        else:
            data = text if isinstance(text, bytes) else str(text).encode()
            found += [b"t", struct.pack(">I", len(data)), data]
    return b"".join(found)


def inserted(oid: int, new: Sequence[Text]) -> Change:
    return Change(oid, b"I" + struct.pack(">I", oid) + b"N" + tuple_data(new))


def updated(
    oid: int, new: Sequence[Text], old: Sequence[Text] | None = None, part: bytes = b"K"
) -> Change:
    """Return an update; the old row, if any, is the key, or the whole row as part ``O``."""
    before = b"" if old is None else part + tuple_data(old)
    return Change(oid, b"U" + struct.pack(">I", oid) + before + b"N" + tuple_data(new))


def deleted(oid: int, old: Sequence[Text], part: bytes = b"K") -> Change:
    return Change(oid, b"D" + struct.pack(">I", oid) + part + tuple_data(old))


def described(relation: Relation) -> bytes:
    """Encode a Relation message."""
    names = f"{relation.schema}\0{relation.name}\0{relation.identity}".encode()
    columns = b"".join(
        bytes([column.name in relation.key])
        + column.name.encode()
        + b"\0"
        + struct.pack(">Ii", column.type_oid, column.type_modifier)
        for column in relation.columns
    )
    head = b"R" + struct.pack(">I", relation.oid) + names
    return head + struct.pack(">H", len(relation.columns)) + columns


def kind_of(change: Change) -> str:
    """Return ``I``, ``U`` or ``D``."""
    return chr(change.data[0])


def cells_of(change: Change) -> tuple[Cells | None, Cells | None]:
    """Return the old and the new row, parsed cell by cell.

    Raises:
        UnknownMessage: the message is malformed.
    """
    try:
        return _rows(change.data)
    except (struct.error, IndexError, ValueError) as exc:
        raise UnknownMessage(f"pgoutput: {change.data[:40]!r}: {exc}") from exc


def _rows(data: bytes) -> tuple[Cells | None, Cells | None]:
    kind, part, at = chr(data[0]), chr(data[5]), 6
    old = new = None
    if part in "KO" and kind in "UD":
        old, at = _cells(data, at)
        part = ""
        if kind == "U":
            part, at = chr(data[at]), at + 1
    if part == "N" and kind in "IU":
        new, at = _cells(data, at)
    elif part:
        raise ValueError(f"part {part!r} of a change of kind {kind!r}")
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes too many")
    return old, new


def _cells(data: bytes, at: int) -> tuple[Cells, int]:
    (count,) = struct.unpack_from(">H", data, at)
    at += 2
    found: list[Cell] = []
    for _ in range(count):
        kind, at = chr(data[at]), at + 1
        if kind == "t":
            (length,) = struct.unpack_from(">I", data, at)
            at += 4 + length
            if at > len(data):
                raise IndexError("it ends within a cell")
            found.append(data[at - length : at])
        elif kind in "nu":
            found.append(None if kind == "n" else UNCHANGED)
        else:
            raise ValueError(f"a cell of kind {kind!r}")
    return tuple(found), at
