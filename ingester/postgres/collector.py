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
from ingester.postgres.shape import Layout, Shape, ShapeDiffers
from ingester.postgres.sync_messages import SyncMessage, message_of
from ingester.postgres.types import ValueNotKept

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


MESSAGE_ROWS = 50_000
MESSAGE_BYTES = 8 << 20
"""The bytes of one message, about; the daemon's limit is several times that. A row that has more is
a message of its own."""
_ROW_BYTES = 48
"""What holding a change takes beside its bytes."""


class TruncatedTable(NamedTuple):
    """In the place of a message: all rows that the table has by now are gone."""

    target: str


class _PendingMessage:
    """Changes of one table that become one message."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.target = layout.shape.target
        self.changes: list[bytes] = []
        self.nbytes = 0


class Collector:
    """Collects the changes that were read and not sent yet."""

    def __init__(self, shapes: Mapping[int, Shape]) -> None:
        """Take the shapes of the tables that are followed, by OID.

        A table's is looked up at each Relation message, and at each change while there is none.
        """
        self._shapes = shapes
        self._relations: dict[int, Relation] = {}
        self._layouts: dict[int, Layout] = {}
        self._done: list[_PendingMessage | TruncatedTable] = []
        self._open: dict[str, _PendingMessage] = {}
        self._unsettled: dict[int, list[bytes]] = {}
        """Changes of the transaction that is being read, under REPLICA IDENTITY FULL."""
        self.upto: int | None = None
        """The end of the last transaction that is here in whole."""
        self.changes = 0
        """The number of changes that wait here."""
        self.nbytes = 0
        """The bytes that the changes take here."""

    def relation(self, relation: Relation) -> None:
        """Note a table as it is from now on; one without a shape is passed over.

        Raises:
            ShapeDiffers: and again at each change of the table.
        """
        oid = relation.oid
        known = self._layouts.get(oid)
        self._relations[oid] = relation
        shape = self._shapes.get(oid)
        if shape is not None and known == (relation, shape):
            return
        # Nothing that a transaction may have twice is left open when its table is altered.
        self._settle(oid)
        self._layouts.pop(oid, None)
        if shape is not None:
            self._layouts[oid] = Layout(relation, shape).checked()

    def add(self, change: Change) -> None:
        """Add a change of the transaction that is being read; of a table without a shape none.

        Raises:
            ShapeDiffers: what the last Relation message was refused for.
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
        """Forget what is here of a table; ``take`` yields :class:`TruncatedTable` in its place.

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
        """Note that all of a transaction is here.

        Raises:
            ShapeDiffers, UnknownMessage
        """
        for oid in list(self._unsettled):
            self._settle(oid)
        self.upto = end_lsn

    def take(
        self, passed_over: Callable[[ValueNotKept], None] | None = None
    ) -> Iterator[SyncMessage | TruncatedTable]:
        """Take everything out as messages. Only when no transaction is here in part.

        Args:
            passed_over: told of a piece that cannot be kept, in its place; else that is raised.

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
        """The layout of a table that had none at its Relation message."""
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
