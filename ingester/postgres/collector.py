"""Collects the changes of transactions by table, until they are sent.

    changes ─▶ per table: pieces of at most 8 MB, as they came ─ take ─▶ columns ─▶ arrays

Changes of a table keep their order; changes of different tables need none, as all that is sent
together becomes visible at once. Tables under REPLICA IDENTITY FULL are settled per transaction:

    UPDATE s SET id = id + 1      1 → 2, 2 → 3, 3 → 4     one by one: 4
    settled                       out: 1; in: 4           (2 and 3 went out as they came in)

Their key may be deferrable: within a transaction two rows may have the same key, and changes one
by one would hit the wrong row. At its end each key is unique. :func:`settle` takes each old row out
of a multiset and puts each new one in; what remains to go out precedes what comes in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ingester.postgres.pgoutput import Change, Relation, UnknownMessage
from ingester.postgres.states import Layout, Shape, ShapeDiffers
from ingester.postgres.sync_messages import SyncMessage, message_of
from ingester.postgres.types import ValueNotKept

_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">H")
_INSERT, _UPDATE, _DELETE = b"IUD"
_OLD, _NEW = b"ON"
_UNCHANGED, _TEXT = b"ut"
_HEAD_BYTES = 6
MESSAGE_ROWS = 50_000
MESSAGE_BYTES = 8 << 20
"""The approximate size of a message, several times below the daemon's limit. A larger row becomes a
message of its own."""
_ROW_BYTES = 48
"""Overhead of a collected change."""


class NotWhole(ValueError):
    """An update or delete without its whole old row."""


def settle(changes: Iterable[bytes]) -> Iterator[bytes]:
    """Reduce the changes of one transaction and table to net deletes and then net inserts.

    Args:
        changes: messages in order.

    Returns:
        Messages of the same kind; all changes are read before the first one is returned.

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
            # Move it to the end: the last row in is the last one out.
            counts[new] = counts.pop(new, 0) + 1
    gone = [row for row, count in counts.items() if count < 0]
    come = [row for row, count in counts.items() if count > 0]
    counts.clear()
    for row in drained(gone):
        yield b"D" + oid + b"O" + row
    for row in drained(come):
        yield b"I" + oid + b"N" + row


def drained(messages: list[bytes]) -> Iterator[bytes]:
    """Yield messages and free each before the next, so they are not held twice."""
    messages.reverse()
    while messages:
        yield messages.pop()


def _rows(change: bytes) -> tuple[bytes | None, bytes | None]:
    """The old and the new row as tuple data; unchanged cells are filled in."""
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
    """The end of a tuple, and whether it has unchanged cells."""
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
    """The new row, which follows the old one, with unchanged cells filled in."""
    old, new = _cells(change, _HEAD_BYTES), _cells(change, end + 1)
    if len(old) != len(new):
        raise UnknownMessage("pgoutput: rows of different length")
    cells = [was if is_ == b"u" else is_ for was, is_ in zip(old, new, strict=True)]
    return _COUNT.pack(len(cells)) + b"".join(cells)


def _cells(change: bytes, at: int) -> list[bytes]:
    """The cells of a tuple, encoded."""
    (count,) = _COUNT.unpack_from(change, at)
    at += 2
    cells = []
    for _ in range(count):
        start = at
        at += 5 + _LENGTH.unpack_from(change, at + 1)[0] if change[at] == _TEXT else 1
        cells.append(change[start:at])
    return cells


class TruncatedTable(NamedTuple):
    """Yielded in place of a message: all rows of the table so far are deleted."""

    target: str


class _PendingMessage:
    """Changes of one table that become one message."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.target = layout.shape.target
        self.changes: list[bytes] = []
        self.nbytes = 0


class Collector:
    """Collects changes that were read and not sent yet."""

    def __init__(self, shapes: Mapping[int, Shape]) -> None:
        """Take the shapes of followed tables, by OID.

        A shape is looked up at each Relation message, and at each change while it is missing.
        """
        self._shapes = shapes
        self._relations: dict[int, Relation] = {}
        self._layouts: dict[int, Layout] = {}
        self._done: list[_PendingMessage | TruncatedTable] = []
        self._open: dict[str, _PendingMessage] = {}
        self._unsettled: dict[int, list[bytes]] = {}
        """Changes of the current transaction under REPLICA IDENTITY FULL."""
        self.upto: int | None = None
        """The end of the last complete transaction."""
        self.changes = 0
        """The number of collected changes."""
        self.nbytes = 0
        """The bytes of collected changes."""

    def relation(self, relation: Relation) -> None:
        """Take a table's Relation message; a table without a shape is ignored.

        Raises:
            ShapeDiffers: repeated at each change of the table.
        """
        oid = relation.oid
        known = self._layouts.get(oid)
        self._relations[oid] = relation
        shape = self._shapes.get(oid)
        if shape is not None and known == (relation, shape):
            return
        # A transaction may alter the table: settle the changes before that.
        self._settle(oid)
        self._layouts.pop(oid, None)
        if shape is not None:
            self._layouts[oid] = Layout(relation, shape).checked()

    def add(self, change: Change) -> None:
        """Add a change of the current transaction; a table without a shape is ignored.

        Raises:
            ShapeDiffers: the last Relation message did not fit.
            UnknownMessage: there was no Relation message.
        """
        oid, data = change
        layout = self._layouts.get(oid) or self._late(oid)
        if layout is None:
            return
        if layout.shape.full_identity:
            self._unsettled.setdefault(oid, []).append(data)
            self._count(1, len(data) + _ROW_BYTES)
        else:
            self._append(layout, data)

    def truncate(self, oid: int) -> None:
        """Discard the table's changes; ``take`` yields :class:`TruncatedTable` instead.

        Raises:
            ShapeDiffers, UnknownMessage
        """
        layout = self._layouts.get(oid) or self._late(oid)
        if layout is None:
            return
        target = layout.shape.target
        for other in [oid for oid in self._unsettled if self._target(oid) == target]:
            self._unsettled_of(other)
        if target in self._open:
            self._done.append(self._open.pop(target))
        for piece in self._done:
            if piece.target == target and isinstance(piece, _PendingMessage):
                self._count(-len(piece.changes), -piece.nbytes)
        self._done = [piece for piece in self._done if piece.target != target]
        self._done.append(TruncatedTable(target))

    def commit(self, end_lsn: int) -> None:
        """Note the end of a transaction.

        Raises:
            ShapeDiffers, UnknownMessage
        """
        for oid in list(self._unsettled):
            self._settle(oid)
        self.upto = end_lsn

    def take(
        self, passed_over: Callable[[ValueNotKept], None] | None = None
    ) -> Iterator[SyncMessage | TruncatedTable]:
        """Take all changes as messages, between transactions.

        Args:
            passed_over: called instead of raising ``ValueNotKept``; the piece is skipped.

        Raises:
            ValueNotKept: with the table's name, the row's key and the column.
            UnknownMessage
        """
        assert not self._unsettled
        waiting = [*self._done, *self._open.values()][::-1]
        self._done, self._open, self.upto = [], {}, None
        self.changes = self.nbytes = 0
        while waiting:
            piece = waiting.pop()
            if isinstance(piece, TruncatedTable):
                yield piece
                continue
            try:
                message = message_of(piece.changes, piece.layout)
            except ValueNotKept as exc:
                if passed_over is None:
                    raise
                passed_over(exc)
            else:
                yield message

    def _late(self, oid: int) -> Layout | None:
        """The layout of a table that had no shape at its Relation message."""
        if oid not in self._shapes:
            return None
        if oid not in self._relations:
            raise UnknownMessage(f"pgoutput: a change of table {oid} before what the table is")
        self.relation(self._relations[oid])
        return self._layouts[oid]

    def _count(self, changes: int, nbytes: int) -> None:
        self.changes += changes
        self.nbytes += nbytes

    def _append(self, layout: Layout, data: bytes) -> None:
        piece = self._open.get(layout.shape.target)
        nbytes = len(data) + _ROW_BYTES
        if (
            piece is None
            or piece.layout is not layout
            or piece.nbytes + nbytes > MESSAGE_BYTES
            or len(piece.changes) >= MESSAGE_ROWS
        ):
            if piece is not None:
                self._done.append(piece)
            piece = self._open[layout.shape.target] = _PendingMessage(layout)
        piece.changes.append(data)
        piece.nbytes += nbytes
        self.changes += 1
        self.nbytes += nbytes

    def _target(self, oid: int) -> str:
        return self._layouts[oid].shape.target

    def _unsettled_of(self, oid: int) -> list[bytes]:
        changes = self._unsettled.pop(oid, [])
        self._count(-len(changes), -sum(len(data) + _ROW_BYTES for data in changes))
        return changes

    def _settle(self, oid: int) -> None:
        changes = self._unsettled_of(oid)
        if not changes:
            return
        layout = self._layouts[oid]
        try:
            for data in settle(drained(changes)) if len(changes) > 1 else changes:
                self._append(layout, data)
        except NotWhole as exc:
            raise ShapeDiffers(oid, layout.shape.target, str(exc)) from exc
