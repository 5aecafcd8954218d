"""Law: pending entries keep their order, from the append to their group or their refusal.

::

    append ─▶ queued ─▶ drawn, while drafts are made into entries ─▶ ready ─▶ group

All of it is the queue's, under the queue's lock, but for `make`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import cast

from wal.entry import Draft, Entry
from wal.errors import LogError

Item = Entry | Draft
Make = Callable[[list[Draft]], list[Entry]]
"""Makes entries of drafts, in the thread that calls it; must not raise."""


class PendingEntries:
    """Entries and drafts that no group has taken yet."""

    def __init__(self) -> None:
        self.ready: deque[Entry] = deque()
        """The entries that the next group is formed from."""
        self.nbytes = 0
        self._queued: deque[Item] = deque()
        self._drawn: list[Item] = []
        self._drawn_bytes = 0
        self._made: list[Entry] = []
        self._refused: list[Item] = []
        self._refusal: LogError | None = None

    def __len__(self) -> int:
        return len(self.ready) + len(self._queued) + len(self._drawn)

    @property
    def waits(self) -> bool:
        """Whether there is something for the next group."""
        return bool(self.ready or self._queued)

    def add(self, item: Item) -> None:
        """Put an item behind all that is queued."""
        self._queued.append(item)
        self.nbytes += item.stored_bytes

    def draw(self) -> bool:
        """Draw what is queued; False where nothing is. After True come `make` and `end`."""
        if self.ready or not self._queued:
            return False
        self._drawn_bytes = self.nbytes  # nothing else is pending now
        self._drawn = list(self._queued)
        self._queued.clear()
        return True

    def make(self, make: Make) -> None:
        """Make entries of what was drawn. Without the lock: this is what takes time."""
        for kind, items in groupby(self._drawn, type):
            if issubclass(kind, Draft):
                self._made += make(cast(list[Draft], list(items)))
                continue
            for item in cast(Iterable[Entry], items):
                # Not before: a draft of its session may have been refused just now.
                if refusal_of(item) is None:
                    self._made.append(item)
                else:
                    self._refused.append(item)

    def end(self) -> tuple[list[Item], LogError | None]:
        """End the draw; return the items refused in it, and the error if it is no session's."""
        made, self._made = self._made, []
        refused, self._refused = self._refused, []
        self.nbytes -= self._drawn_bytes
        self._drawn = []
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            end_sessions(made, refusal)
            return [*made, *refused], refusal
        self.ready.extend(made)
        self.nbytes += sum(entry.stored_bytes for entry in made)
        return refused, None

    def take(self, error: LogError) -> list[Item]:
        """Remove and return all items, to be refused; those in the making are refused later."""
        taken = [*self.ready, *self._queued]
        self.ready.clear()
        self._queued.clear()
        self.nbytes -= sum(item.stored_bytes for item in taken)
        end_sessions(taken, error)
        if self._drawn:
            end_sessions(self._drawn, error)
            self._refusal = error
        return taken

    def lost(self) -> list[Item]:
        """The items that were drawn by a thread that is no more."""
        lost, self._drawn, self._made = self._drawn, [], []
        return lost


def refusal_of(item: Item) -> LogError | None:
    """The error that ended one of the item's sessions; None where all go on."""
    for session in item.sessions:
        if session.refusal is not None:
            return session.refusal
    return None


def end_sessions(items: Iterable[Item], error: LogError) -> None:
    """End the sessions of these items: nothing may stand behind them."""
    for item in items:
        for session in item.sessions:
            session.refusal = session.refusal or error


def no_drafts(drafts: list[Draft]) -> list[Entry]:
    """Refuse drafts, in a log that takes entries only."""
    raise RuntimeError(f"{len(drafts)} drafts in a log that was not told what to make of them")


def answer(items: Iterable[Item], error: LogError | None) -> None:
    """Answer everyone; the first exception that a callback raised comes out afterwards."""
    raised: Exception | None = None
    for item in items:
        try:
            item.answer(error)
        except Exception as exc:
            raised = raised or exc
    if raised is not None:
        raise raised
