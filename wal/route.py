"""The way of one table's entries: durable in the local log, or in the store too. Pure.

    LOCAL ──an entry asks for the store──▶ HELD ──earlier rows are in files──▶ SHIPPED

A route leaves LOCAL in the thread that writes the log, with the first entry that ships, so each
table's entries are applied in log order. While it is HELD, what the table has buffered from before
is flushed: no log object then lacks an entry of the table that is in no file
(tests/lost_machine). A route never goes back.
"""

from __future__ import annotations

from collections import deque
from enum import Enum


class RouteState(Enum):
    LOCAL = "local"
    """Entries are durable when the local log is synced."""
    HELD = "held"
    """Entries wait until the table's earlier rows are in files."""
    SHIPPED = "shipped"
    """Entries are durable when their log object is in the store."""


# Names of the module, because looking up a member of an enum runs Python code.
LOCAL, HELD, SHIPPED = RouteState


class Route:
    """The way of one table's entries. Any thread reads it; `Shipping` changes its state."""

    __slots__ = ("_waiting", "name", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = LOCAL
        self._waiting: deque[int] = deque()

    def wait(self, seq: int) -> None:
        """Note that an entry of this sequence ships. In the thread that writes the log, before any
        later entry is applied.
        """
        self._waiting.append(seq)

    def applied(self, seq: int) -> None:
        """Note that the entries up to a sequence are applied. On the loop, in log order."""
        while self._waiting and self._waiting[0] <= seq:
            self._waiting.popleft()

    @property
    def first_waiting(self) -> int | None:
        """The lowest sequence of an entry that ships and is not applied yet. Any thread."""
        try:
            return self._waiting[0]
        except IndexError:
            return None

    @property
    def ships(self) -> bool:
        """Whether the table's entries wait for the store."""
        return self.state is not LOCAL
