"""Files and folders in memory, as they are and as they would be after a power cut.

    write, truncate ──▶ File.now, pending ──fsync──▶ File.kept
    create, link, rename, unlink ──▶ Folder.now, pending ──fsync of the folder──▶ Folder.kept

Law of this file: only an fsync moves anything from ``now`` to ``kept``. A cut gives, for every
file, ``kept`` and any of the pending sectors; for every folder ``kept`` and the first so many of
its pending changes. That is what POSIX allows, and more than most file systems do.
"""

from __future__ import annotations

import random
from typing import NamedTuple

SECTOR = 512


class Change(NamedTuple):
    """One change of a folder: these names are gone, these are there."""

    gone: tuple[str, ...]
    there: tuple[tuple[str, Node], ...]


class Node:
    """A file or a folder."""

    def survivor(self, dice: random.Random, done: dict[Node, Node]) -> Node:
        """What is left of it after a cut. ``done``: those made already, by what they were."""
        raise NotImplementedError


class File(Node):
    """Bytes."""

    def __init__(self, data: bytes = b"") -> None:
        self.now = bytearray(data)
        self._kept = bytearray(data)
        self._pending: list[tuple[int, bytes] | int] = []

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes at a place."""
        _put(self.now, offset, data)
        self._pending.append((offset, data))

    def resize(self, size: int) -> None:
        """Cut, or grow with zeros."""
        _resize(self.now, size)
        self._pending.append(size)

    def sync(self) -> None:
        """Everything so far survives a cut."""
        for each in self._pending:
            if isinstance(each, int):
                _resize(self._kept, each)
            else:
                _put(self._kept, *each)
        self._pending.clear()

    def survivor(self, dice: random.Random, done: dict[Node, Node]) -> Node:
        """See `Node.survivor`."""
        if self not in done:
            data = bytearray(self._kept)
            for each in self._pending:
                if isinstance(each, int):
                    if dice.random() < 0.5:
                        _resize(data, each)
                else:
                    _put_some(data, *each, dice)
            done[self] = File(bytes(data))
        return done[self]


class Folder(Node):
    """Names."""

    def __init__(self, kept: dict[str, Node] | None = None) -> None:
        self._kept: dict[str, Node] = dict(kept or {})
        self.now: dict[str, Node] = dict(self._kept)
        self._pending: list[Change] = []

    def change(self, gone: tuple[str, ...], there: tuple[tuple[str, Node], ...]) -> None:
        """Take names away and put names there, in one step."""
        change = Change(gone, there)
        _apply(self.now, change)
        self._pending.append(change)

    def sync(self) -> None:
        """Its names so far survive a cut."""
        for change in self._pending:
            _apply(self._kept, change)
        self._pending.clear()

    def survivor(self, dice: random.Random, done: dict[Node, Node]) -> Node:
        """See `Node.survivor`."""
        if self not in done:
            left = dict(self._kept)
            for change in self._pending[: dice.randint(0, len(self._pending))]:
                _apply(left, change)
            folder = done[self] = Folder()
            folder._kept = {name: node.survivor(dice, done) for name, node in left.items()}
            folder.now = dict(folder._kept)
        return done[self]


def after_cut(root: Folder, seed: int) -> Folder:
    """The tree that is found when the power is back."""
    survivor = root.survivor(random.Random(seed), {})
    assert isinstance(survivor, Folder)
    return survivor


def _apply(names: dict[str, Node], change: Change) -> None:
    for name in change.gone:
        names.pop(name, None)
    names.update(change.there)


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _put(data: bytearray, offset: int, piece: bytes) -> None:
    if len(data) < offset + len(piece):
        _resize(data, offset + len(piece))
    data[offset : offset + len(piece)] = piece


def _put_some(data: bytearray, offset: int, piece: bytes, dice: random.Random) -> None:
    """All, none or some of the sectors that a write has touched."""
    fate = dice.random()
    if fate < 0.3:
        return
    first = offset // SECTOR * SECTOR
    for start in range(first, offset + len(piece), SECTOR):
        if fate > 0.6 or dice.random() < 0.5:
            begin, end = max(start, offset), min(start + SECTOR, offset + len(piece))
            _put(data, begin, piece[begin - offset : end - offset])
