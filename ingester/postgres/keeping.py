"""An idle slot is kept moving, so that the server need not keep its log for it.

    nothing waits ─▶ a message into the source's log ─▶ it comes back by the stream ─▶ ``upto`` is
    put into a table's state ─▶ once that is in object storage ─▶ the slot may be told

Law of this file: the slot is told of no position that a start would not find here.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import msgspec

from ingester.client import TimedOut
from ingester.postgres.positions import Positions
from ingester.postgres.slot import current_lsn, send_heartbeat
from ingester.postgres.states import decode_state
from ingester.postgres.tables import Tables

UPTO_EVERY_S = 30.0
ASK_EVERY_S = 3.0
PERSIST_S = 5.0
WORTH_BYTES = 256 << 10
"""An idle slot is moved when the log has grown by so much."""


class Keeper:
    """Moves the bound of a session's positions. One thread."""

    def __init__(self, tables: Tables, positions: Positions, heartbeat_s: float) -> None:
        self._tables = tables
        self._positions = positions
        self._heartbeat_s = heartbeat_s
        self._beat_at = 0.0
        self._upto_at = 0.0
        self._asked_at = 0.0
        self._waits: tuple[str, int] | None = None

    def keep(self, connection: Any, hurry: bool) -> None:
        """Do what is due, where all that was read was sent; ``hurry``: somebody waits for it.

        Raises:
            SourceFailed, ClientError, psycopg2.OperationalError
        """
        at, positions = time.monotonic(), self._positions
        if at - self._beat_at >= (1.0 if hurry else self._heartbeat_s):
            self._beat_at = at
            if hurry or current_lsn(connection) - positions.read_upto >= WORTH_BYTES:
                send_heartbeat(connection)
        following = self._tables.following()
        if not following:
            # Nothing here depends on what the slot has: all will be copied from later on.
            positions.bound = max(positions.bound, positions.safe)
        elif self._waits is not None:
            self._look_after(at)
        elif self._is_worth(at):
            self._upto_at = at
            target = min(following)
            upto = positions.safe
            state = following[target]
            self._tables.put(target, msgspec.structs.replace(state, upto=upto))
            # A state without rows waits for rows, or for ``persist.max_age``.
            with suppress(TimedOut):
                self._tables.client.persist(self._tables.namespace, target, timeout_s=PERSIST_S)
            self._waits = (target, upto)

    def _is_worth(self, at: float) -> bool:
        positions = self._positions
        known = max(positions.bound, positions.main.durable)
        return (
            positions.settled
            and at - self._upto_at >= UPTO_EVERY_S
            and positions.safe - known >= WORTH_BYTES
        )

    def _look_after(self, at: float) -> None:
        assert self._waits is not None
        if at - self._asked_at < ASK_EVERY_S:
            return
        self._asked_at = at
        target, upto = self._waits
        # What the daemon had in its log only is gone with its disk, and what is left is durable.
        stored = self._tables.stored(target)
        if stored.durable_state is not None and _upto(stored.durable_state) >= upto:
            self._positions.bound = max(self._positions.bound, upto)
            self._waits = None
        elif stored.state is None or _upto(stored.state) < upto:
            self._waits = None


def _upto(state: bytes) -> int:
    return decode_state(state).upto
