"""Entries that also go into the store before they are applied. Pure.

    written ─▶ `Shipping.takes` ─▶ `Waiting` ─▶ a log object (`wal.objects`) ─▶ `Log.shipped`

`Waiting` keeps them in log order for each table: those on a route that is HELD wait aside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from wal.entry import Entry
from wal.route import HELD, Route


class Shipping(Protocol):
    """Takes the entries that ship. Its methods are called in the thread that writes the log."""

    def takes(self, entry: Entry) -> bool:
        """Whether an entry that the local log has is applied only by `Log.shipped`."""

    def submit(self, entries: Sequence[Entry]) -> None:
        """Take entries over, in log order, before later entries of the log are applied."""

    def announce(self) -> None:
        """Handle routes that have left LOCAL; entries before them are queued to be applied."""


class Waiting:
    """Entries that wait for the store, and those that wait for their routes, with the times at
    which they came. Under the caller's lock.
    """

    def __init__(self) -> None:
        self.ready: list[tuple[float, Entry]] = []
        """The entries of the next log objects, in an order that is log order for each table."""
        self.ready_bytes = 0
        self._held: list[tuple[float, Entry]] = []
        self._blocked: set[Route] = set()
        """The routes of held entries: what follows on one of them is held too."""

    def add(self, entries: Iterable[Entry], at: float) -> None:
        """Queue entries that came at a time, in log order."""
        self._add((at, entry) for entry in entries)

    def _add(self, items: Iterable[tuple[float, Entry]]) -> None:
        for item in items:
            routes = item[1].routes
            if any(route.state is HELD or route in self._blocked for route in routes):
                self._blocked.update(routes)
                self._held.append(item)
            else:
                self.ready.append(item)
                self.ready_bytes += item[1].stored_bytes

    def release(self) -> None:
        """Queue the held entries again, after a route has become SHIPPED."""
        held, self._held = self._held, []
        self._blocked.clear()
        self._add(held)

    def take(self, most_bytes: int) -> list[tuple[float, Entry]]:
        """Remove the entries of the next log object: at least one, if any is ready."""
        count = nbytes = 0
        for _, entry in self.ready:
            if count and nbytes + entry.stored_bytes > most_bytes:
                break
            nbytes += entry.stored_bytes
            count += 1
        taken, self.ready = self.ready[:count], self.ready[count:]
        self.ready_bytes -= nbytes
        return taken

    def take_all(self) -> list[Entry]:
        """Remove everything."""
        taken = [entry for _, entry in (*self.ready, *self._held)]
        self.ready, self._held, self.ready_bytes = [], [], 0
        self._blocked.clear()
        return taken

    def all(self) -> Iterator[tuple[float, Entry]]:
        """Everything that waits, with its time."""
        yield from self.ready
        yield from self._held
