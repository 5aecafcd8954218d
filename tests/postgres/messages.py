"""Messages as pgoutput writes them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ingester.postgres.pgoutput import UNCHANGED, Change, Relation

Text = str | bytes | None | object


def tuple_data(texts: Sequence[Text]) -> bytes:
    """A row; a cell may be None or UNCHANGED."""
    found = [struct.pack(">H", len(texts))]
    for text in texts:
        if text is None or text is UNCHANGED:
            found.append(b"n" if text is None else b"u")
        else:
            data = text if isinstance(text, bytes) else str(text).encode()
            found += [b"t", struct.pack(">I", len(data)), data]
    return b"".join(found)


def inserted(oid: int, new: Sequence[Text]) -> Change:
    """An insert."""
    return Change(oid, b"I" + struct.pack(">I", oid) + b"N" + tuple_data(new))


def updated(
    oid: int, new: Sequence[Text], old: Sequence[Text] | None = None, part: bytes = b"K"
) -> Change:
    """An update, with the old row where there is one: its key, or all of it as part ``O``."""
    before = b"" if old is None else part + tuple_data(old)
    return Change(oid, b"U" + struct.pack(">I", oid) + before + b"N" + tuple_data(new))


def deleted(oid: int, old: Sequence[Text], part: bytes = b"K") -> Change:
    """A delete."""
    return Change(oid, b"D" + struct.pack(">I", oid) + part + tuple_data(old))


def described(relation: Relation) -> bytes:
    """A Relation message."""
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
