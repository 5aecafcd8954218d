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
from collections.abc import Iterable, Iterator

from ingester.postgres.pgoutput import UnknownMessage

_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">H")
_INSERT, _UPDATE, _DELETE = b"IUD"
_OLD, _NEW = b"ON"
_UNCHANGED, _TEXT = b"ut"
_HEAD_BYTES = 6


class NotWhole(ValueError):
    """An update or delete that does not have its whole old row."""


def settle(changes: Iterable[bytes]) -> Iterator[bytes]:
    """The changes of one transaction and table, as net deletes and then net inserts.

    Args:
        changes: messages as they came, in order.

    Returns:
        Messages of the same kind; all changes are read before the first of them.

    Raises:
        NotWhole, UnknownMessage
    """
    counts: dict[bytes, int] = {}
    oid = b""
    for change in changes:
        oid = change[1:5]
        old, new = _rows(change)
        if old is not None:
            counts[old] = counts.get(old, 0) - 1
        if new is not None:
            # Behind all others: the row that came last stands last.
            counts[new] = counts.pop(new, 0) + 1
    gone = [row for row, count in counts.items() if count < 0]
    come = [row for row, count in counts.items() if count > 0]
    counts.clear()
    for row in drained(gone):
        yield b"D" + oid + b"O" + row
    for row in drained(come):
        yield b"I" + oid + b"N" + row


def drained(messages: list[bytes]) -> Iterator[bytes]:
    """The messages one by one, each let go of before the next: they are not here twice."""
    messages.reverse()
    while messages:
        yield messages.pop()


def _rows(change: bytes) -> tuple[bytes | None, bytes | None]:
    """The old and the new row as tuple data; the new one with what it has left unchanged."""
    try:
        kind, part = change[0], change[5]
        if kind == _INSERT and part == _NEW:
            return None, change[_HEAD_BYTES:]
        if kind == _DELETE and part == _OLD:
            return change[_HEAD_BYTES:], None
        if kind != _UPDATE or part != _OLD:
            raise NotWhole("an update or delete is without its old row")
        end, _ = _walk(change, _HEAD_BYTES)
        if change[end] != _NEW:
            raise UnknownMessage("pgoutput: an update without its new row")
        _, unchanged = _walk(change, end + 1)
        new = _filled(change, end) if unchanged else change[end + 1 :]
        return change[_HEAD_BYTES:end], new
    except (IndexError, struct.error) as exc:
        raise UnknownMessage(f"pgoutput: {change[:40]!r}: {exc}") from exc


def _walk(change: bytes, at: int) -> tuple[int, bool]:
    """Where a tuple ends, and whether it has left something unchanged."""
    (count,) = _COUNT.unpack_from(change, at)
    at += 2
    unchanged = False
    for _ in range(count):
        kind = change[at]
        if kind == _TEXT:
            at += 5 + _LENGTH.unpack_from(change, at + 1)[0]
        else:
            unchanged |= kind == _UNCHANGED
            at += 1
    return at, unchanged


def _filled(change: bytes, end: int) -> bytes:
    """The new row, behind the old one's end, with the cells of the old one that it has left."""
    old, new = _cells(change, _HEAD_BYTES), _cells(change, end + 1)
    if len(old) != len(new):
        raise UnknownMessage("pgoutput: rows of different length")
    cells = [was if is_ == b"u" else is_ for was, is_ in zip(old, new, strict=True)]
    return _COUNT.pack(len(cells)) + b"".join(cells)


def _cells(change: bytes, at: int) -> list[bytes]:
    """The cells of a tuple as they stand there."""
    (count,) = _COUNT.unpack_from(change, at)
    at += 2
    cells = []
    for _ in range(count):
        start = at
        at += 5 + _LENGTH.unpack_from(change, at + 1)[0] if change[at] == _TEXT else 1
        cells.append(change[start:at])
    return cells
