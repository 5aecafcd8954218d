"""Files and folders in memory: their current state, and their state after a power cut.

    write, truncate ──▶ a file's bytes: see tests.drivers.unsynced
    create, link, rename, unlink ──▶ Folder.now, pending ──fsync of the folder──▶ Folder.kept

Only an fsync moves changes from ``now`` to ``kept``. A cut leaves, for every file, the synced
bytes and any subset of the other sectors; for every folder, ``kept`` and a prefix of its pending
changes. POSIX permits that, and most file systems lose less.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.drivers.unsynced import UnsyncedBytes


class Change(NamedTuple):
    """One change of a folder: names that disappear and names that appear."""

    gone: tuple[str, ...]
    there: tuple[tuple[str, Node], ...]


class Node:
    """A file or a folder."""

    def survivor(self, dice: random.Random, done: dict[Node, Node]) -> Node:
        """Return the state after a cut. ``done`` maps nodes to their survivors made so far."""
        raise NotImplementedError


class File(UnsyncedBytes, Node):
    """A file's bytes; see :mod:`tests.drivers.unsynced`."""

    def survivor(self, dice: random.Random, done: dict[Node, Node]) -> Node:
        """See `Node.survivor`."""
        if self not in done:
            done[self] = File(self.after_cut(dice))
        return done[self]


class Folder(Node):
    """A folder's names: current, pending and kept."""

    def __init__(self, kept: dict[str, Node] | None = None) -> None:
        self._kept: dict[str, Node] = dict(kept or {})
        self.now: dict[str, Node] = dict(self._kept)
        self._pending: list[Change] = []

    def change(self, gone: tuple[str, ...], there: tuple[tuple[str, Node], ...]) -> None:
        """Remove names and add names in one step."""
        change = Change(gone, there)
        _apply(self.now, change)
        self._pending.append(change)

    def sync(self) -> None:
        """Make all names so far survive a cut."""
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
    """Return the tree that is found after a power cut."""
    survivor = root.survivor(random.Random(seed), {})
    assert isinstance(survivor, Folder)
    return survivor


def _apply(names: dict[str, Node], change: Change) -> None:
    for name in change.gone:
        names.pop(name, None)
    names.update(change.there)
