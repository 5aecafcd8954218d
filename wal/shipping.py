"""Entries that also go into the store before they are applied. Pure.

    written ─▶ `Shipping.takes` ─▶ `Waiting` ─▶ a log object (`wal.objects`) ─▶ `Log.shipped`

`Waiting` keeps them in log order for each table: those on a route that is HELD wait aside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


class NoShipping:
    """A log whose entries are all durable in it."""

    def takes(self, entry: Entry) -> bool:
        return False

    def submit(self, entries: Sequence[Entry]) -> None:
        raise NotImplementedError

    def announce(self) -> None:
        raise NotImplementedError


class Waiting:
    """Entries that wait for the store, and those that wait for their routes. Under the caller's
    lock.
    """

    def __init__(self) -> None:
        self.ready: list[Entry] = []
        """The entries of the next log objects, in an order that is log order for each table."""
        self.held: list[Entry] = []
        self._blocked: set[Route] = set()
        """The routes of held entries: what follows on one of them is held too."""

    def __len__(self) -> int:
        return len(self.ready) + len(self.held)

    def add(self, entries: Iterable[Entry]) -> None:
        """Queue entries, in log order."""
        for entry in entries:
            blocked = any(route.state is HELD or route in self._blocked for route in entry.routes)
            if blocked:
                self._blocked.update(entry.routes)
                self.held.append(entry)
            else:
                self.ready.append(entry)

    def release(self) -> None:
        """Queue the held entries again, after a route has become SHIPPED."""
        held, self.held = self.held, []
        self._blocked.clear()
        self.add(held)

    def take(self, most_bytes: int) -> list[Entry]:
        """Remove the entries of the next log object: at least one, if any is ready."""
        count = nbytes = 0
        for entry in self.ready:
            nbytes += entry.stored_bytes
            if count and nbytes > most_bytes:
                break
            count += 1
        taken, self.ready = self.ready[:count], self.ready[count:]
        return taken

    @property
    def first_seq(self) -> int | None:
        """The lowest sequence of all entries, or None."""
        seqs = [each[0].seq for each in (self.ready, self.held) if each]
        return min(seqs, default=None)

    @property
    def first_segment(self) -> int | None:
        """The oldest segment with one of the entries, or None."""
        segments = [each[0].segment for each in (self.ready, self.held) if each]
        return min(segments, default=None)
