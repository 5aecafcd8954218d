"""What a transaction leaves of a table that is followed by whole rows (REPLICA IDENTITY FULL).

    UPDATE s SET id = id + 1      1 → 2, 2 → 3, 3 → 4     one by one: 4
    settled                       out: 1; in: 4           (2 and 3 went out as they came in)

The key of such a table may be deferrable: in the middle of a transaction it may stand there twice,
and changes one by one would hit the wrong row. At its end each key stands there once.

Law of this file: pure. Each whole old row goes out of a multiset, each new one into it; a row that
comes and goes in equal number is as it was before. What is left to go out goes before what comes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ingester.postgres.pgoutput import UnknownMessage

_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">H")
_INSERT, _UPDATE, _DELETE = b"IUD"
_OLD, _NEW = b"ON"
_NULL, _UNCHANGED, _TEXT = b"nut"
_HEAD_BYTES = 6


class NotWhole(ValueError):
    """An update or delete that does not have its whole old row."""


def settle(changes: Sequence[bytes]) -> list[bytes]:
    """The changes of one transaction and table, as net deletes and then net inserts.

    Args:
        changes: messages as they came, in order.

    Returns:
        Messages of the same kind.

    Raises:
        NotWhole, UnknownMessage
    """
    counts: dict[bytes, int] = {}
    for change in changes:
        old, new = _rows(change)
        if old is not None:
            counts[old] = counts.get(old, 0) - 1
        if new is not None:
            # Behind all others: the row that came last stands last.
            counts[new] = counts.pop(new, 0) + 1
    oid = changes[0][1:5]
    gone = [b"D" + oid + b"O" + row for row, count in counts.items() if count < 0]
    come = [b"I" + oid + b"N" + row for row, count in counts.items() if count > 0]
    return gone + come


def _rows(change: bytes) -> tuple[bytes | None, bytes | None]:
    """The old and the new row as tuple data; the new one with what it has left unchanged."""
    try:
        kind, part = change[0], change[5]
        if kind == _INSERT and part == _NEW:
            return None, change[_HEAD_BYTES:]
        if kind not in (_UPDATE, _DELETE) or part not in (_OLD, _NEW):
            raise NotWhole(f"a change that begins as {change[:_HEAD_BYTES]!r}")
        if part == _NEW:
            raise NotWhole("an update without its old row")
        if kind == _DELETE:
            return change[_HEAD_BYTES:], None
        old, end = _cells(change, _HEAD_BYTES)
        if change[end] != _NEW:
            raise UnknownMessage("pgoutput: an update without its new row")
        if b"u" not in change[end:]:
            return change[_HEAD_BYTES:end], change[end + 1 :]
        new, _ = _cells(change, end + 1)
        if len(old) != len(new):
            raise UnknownMessage("pgoutput: rows of different length")
        cells = [was if is_ == b"u" else is_ for was, is_ in zip(old, new, strict=True)]
        return change[_HEAD_BYTES:end], _COUNT.pack(len(cells)) + b"".join(cells)
    except (IndexError, struct.error) as exc:
        raise UnknownMessage(f"pgoutput: {change[:40]!r}: {exc}") from exc


def _cells(change: bytes, at: int) -> tuple[list[bytes], int]:
    """The cells of a tuple as they stand there, and where it ends."""
    (count,) = _COUNT.unpack_from(change, at)
    at += 2
    cells = []
    for _ in range(count):
        start = at
        kind = change[at]
        at += 1
        if kind == _TEXT:
            at += 4 + _LENGTH.unpack_from(change, at)[0]
        elif kind not in (_NULL, _UNCHANGED):
            raise UnknownMessage(f"pgoutput: a cell of kind {chr(kind)!r}")
        cells.append(change[start:at])
    if at > len(change):
        raise UnknownMessage("pgoutput: a change ends too early")
    return cells, at
