"""Where the slot is held: the log that a table may need, which has to be read again for it.

    a copy is ordered, or a table set aside ─▶ held ─▶ its copy is there, or its state says
                                                       in object storage that it is not followed

Law of this file: what was passed over of a table is forgotten by the source only once no start,
whatever was lost here, takes that table for one that is followed.
"""

from __future__ import annotations

import time

import msgspec

from ingester.client import NotFound
from ingester.postgres.states import encode_state
from ingester.postgres.tables import Tables, now

SETTLE_EVERY_S = 3.0


class Holding:
    """Holds the slot for the tables of one origin. One thread."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._lsn: int | None = None
        self._settled_at = 0.0

    def begin(self, confirmed: int) -> int:
        """Hold the slot where it is, unless it is held, and return where."""
        if self._lsn is None:
            self._lsn = confirmed
        return self._lsn

    def at(self, confirmed: int) -> int | None:
        """Return what the slot may not pass; it is ``confirmed`` if a table needs that now."""
        return self.begin(confirmed) if self._tables.unsaid else self._lsn

    def end(self) -> None:
        """Hold the slot no more, as no copy is under way, unless a state has to be kept first."""
        if not self._tables.unsaid:
            self._lsn = None

    def settle(self) -> None:
        """Have it said that tables are not followed, while none is being copied.

        Raises:
            ClientError: the daemon does not answer.
        """
        if time.monotonic() - self._settled_at >= SETTLE_EVERY_S:
            self._settled_at = time.monotonic()
            for target in sorted(self._tables.unsaid):
                try:
                    self._settle(target)
                except NotFound:
                    self._tables.said(target)  # Somebody has dropped it here.

    def _settle(self, target: str) -> None:
        tables = self._tables
        state, order = tables.have.get(target), tables.orders.get(target)
        if state is None:
            tables.said(target)
        elif state.phase != "following":
            stored = tables.stored(target)
            if stored.state != encode_state(state):
                tables.put(target, state)  # The daemon has lost it.
            elif stored.durable:
                tables.said(target)
        elif order is None or order.tries:
            reason = "its copy was given up" if order is None else order.reason
            aside = msgspec.structs.replace(state, phase="set_aside", reason=reason, since=now())
            tables.put(target, aside)
