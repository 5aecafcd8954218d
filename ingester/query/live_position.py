"""Positions of a live feed, and what of a table cannot be told any more behind them.

    position   (epoch, sequence): the last operation that a follower has
    gone       operations that have left memory, each with the version whose files have them

Law of this file: pure. An answer lacks nothing if everything that is gone lies at or before the
position, or is in the files that the follower has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

MAX_GONE = 64
"""The facts that are kept of what is gone; older ones are made one, which says no less."""


class Position(NamedTuple):
    """An operation of one daemon's log. Positions are ordered as the log is."""

    epoch: int
    sequence: int


BEGINNING = Position(-1, -1)
"""Before every operation."""
NO_VERSION = -1
"""The version of a follower that does not say whose files it has."""


class Gone(NamedTuple):
    """Operations that are in files only."""

    last: Position
    version: int
    """The first version whose files have them."""


class GoneOperations:
    """What is gone of one table, in as few facts as say it."""

    def __init__(self) -> None:
        self._facts: list[Gone] = []

    def note(self, last: Position, version: int) -> None:
        """Note that operations up to ``last`` are gone, which files have as of ``version``."""
        new = Gone(last, version)
        if any(fact.last >= last and fact.version >= version for fact in self._facts):
            return
        self._facts = [f for f in self._facts if f.last > last or f.version > version]
        self._facts.append(new)
        if len(self._facts) > MAX_GONE:
            first, second, *rest = self._facts
            merged = Gone(max(first.last, second.last), max(first.version, second.version))
            self._facts = rest
            self.note(*merged)

    def behind(self, position: Position, version: int) -> Gone | None:
        """Something that is gone, behind the position and not in the version's files."""
        for fact in self._facts:
            if fact.last > position and fact.version > version:
                return fact
        return None


@dataclass(frozen=True, slots=True)
class LogPast:
    """What a daemon knows of operations by their epochs: its own, and those that its log had."""

    ingester_id: str
    epoch: int
    ends: Mapping[int, int]
    """The last sequence of each epoch that the log had at the start."""

    def knows(self, position: Position) -> bool:
        """Whether the operation of an earlier epoch was in the log at the start, or before it."""
        end = self.ends.get(position.epoch)
        return end is not None and position.sequence <= end
