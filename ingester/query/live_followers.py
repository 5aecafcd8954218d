"""Which followers a table has, and which table versions are announced to them.

    followers_prepare ─▶ announced with each answer ─▶ a follower copies ─▶ its next call: prepared

Nothing here is durable: followers repeat what they have with every call, and a push repeats its
announcements. After a start the list of followers waits until all of them can have called; that
time begins with the first call to any table or the first announcement, long before a switch
needs the list. A follower that is missed is late, not wrong: it copies the version after the
switch (tests/query/test_live_followers.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import trio

from ingester.errors import BadRequest
from ingester.query.ticket import AskedBy
from persist.table import TableKey

ALIVE_S = 30.0
"""A follower counts as alive this long after its last call, in seconds: it may be reading files."""
SETTLE_S = 6.0
"""Time in which every follower calls a restarted daemon, in seconds: two pauses of 2 s after
refusals, and a call."""
FORGOTTEN_S = 600.0
"""A follower that has stopped calling is listed this long, in seconds."""
MOST_COMING = 8
"""Limit on announced versions per table; the oldest are dropped."""


class Coming(msgspec.Struct, frozen=True):
    """A table version that a push is preparing."""

    table_version: int
    push_id: str


class KnownFollower(msgspec.Struct, frozen=True):
    """A follower of a table.

    Attributes:
        table_version: The version that its readers see.
        prepared: Further versions that it has copied.
    """

    name: str
    alive: bool
    table_version: int
    prepared: tuple[int, ...] = ()


class _Caller:
    """A follower and the time of its last call."""

    def __init__(self) -> None:
        self.said = AskedBy("", 1)
        self.called_at = 0.0
        self.has_gone: Callable[[], bool] | None = None
        """Whether the client of the waiting call has disconnected; None if no call waits."""
        self.gone = False
        """Whether the client of the last call had disconnected when it ended."""


class LiveFollowers:
    """The followers of all tables. Event loop only, except `coming`.

    Args:
        now: the clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._callers: dict[TableKey, dict[str, _Caller]] = {}
        self._coming: dict[TableKey, tuple[Coming, ...]] = {}
        self._first_call: float | None = None

    @contextmanager
    def calling(
        self, table: TableKey, said: AskedBy | None, has_gone: Callable[[], bool]
    ) -> Iterator[None]:
        """Count a follower as alive while its call waits and for a while afterwards."""
        self._begin()
        if said is None:
            yield
            return
        callers = self._callers.setdefault(table, {})
        if said.name not in callers:
            # The list may never be requested, and a restarted follower has a new name.
            self._forget(callers)
        caller = callers.setdefault(said.name, _Caller())
        caller.said, caller.called_at, caller.has_gone = said, self._now(), has_gone
        try:
            yield
        finally:
            if caller.has_gone is has_gone:  # otherwise it has called again
                caller.called_at, caller.gone = self._now(), has_gone()
                caller.has_gone = None

    def coming(self, table: TableKey) -> tuple[Coming, ...]:
        """Return the versions that followers should prepare. Thread-safe."""
        return self._coming.get(table, ())

    def prepare(self, table: TableKey, version: Coming) -> None:
        """Announce a version to followers. Idempotent.

        Raises:
            BadRequest: the version or push id is missing.
        """
        if version.table_version < 1 or not version.push_id:
            raise BadRequest(
                "followers_prepare: expected a table_version from 1 on, and the push_id of its push"
            )
        self._begin()
        others = [each for each in self.coming(table) if each != version]
        self._coming[table] = (*others, version)[-MOST_COMING:]

    def switched(self, table: TableKey, table_version: int) -> None:
        """Record the current version, which is no longer announced."""
        if there := self._coming.get(table):
            left = tuple(each for each in there if each.table_version != table_version)
            self._coming[table] = left

    async def listed(self, table: TableKey) -> list[KnownFollower]:
        """Return a table's followers by name, once all of them can have called."""
        await trio.sleep(max(0.0, self._begin() + SETTLE_S - self._now()))
        callers = self._callers.get(table, {})
        self._forget(callers)
        return self._told(callers)

    def known(self) -> Iterator[tuple[TableKey, KnownFollower]]:
        """Yield the known followers by table and name."""
        for table, callers in sorted(self._callers.items()):
            self._forget(callers)
            if not callers:
                del self._callers[table]
            for each in self._told(callers):
                yield table, each

    def _told(self, callers: dict[str, _Caller]) -> list[KnownFollower]:
        now = self._now()
        return [
            KnownFollower(
                name,
                _is_alive(each, now),
                each.said.table_version,
                tuple(sorted(set(each.said.prepared))),
            )
            for name, each in sorted(callers.items())
        ]

    def _forget(self, callers: dict[str, _Caller]) -> None:
        now = self._now()
        for name in [n for n, each in callers.items() if now - _seen(each, now) > FORGOTTEN_S]:
            del callers[name]

    def _begin(self) -> float:
        """Return when the first call came; the current one may be the first."""
        if self._first_call is None:
            self._first_call = self._now()
        return self._first_call


def _seen(caller: _Caller, now: float) -> float:
    return caller.called_at if caller.has_gone is None else now


def _is_alive(caller: _Caller, now: float) -> bool:
    if caller.has_gone is not None:
        return not caller.has_gone()
    return not caller.gone and now - caller.called_at < ALIVE_S
