"""The way of one table's entries: durable in the local log, or in the store too. Pure.

    LOCAL ──an entry asks for the store──▶ HELD ──earlier rows are in files──▶ SHIPPED

A route leaves LOCAL in the thread that writes the log, with the first entry that ships, so each
table's entries are applied in log order. While it is HELD, what the table has buffered from before
is flushed: no log object then lacks an entry of the table that is in no file
(tests/lost_machine). A route never goes back.
"""

from __future__ import annotations

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
    """The way of one table's entries. Any thread reads it; `Shipping` changes it."""

    __slots__ = ("name", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = LOCAL

    @property
    def ships(self) -> bool:
        """Whether the table's entries wait for the store."""
        return self.state is not LOCAL

    def __repr__(self) -> str:
        return f"Route({self.name!r}, {self.state.value})"
