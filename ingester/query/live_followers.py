"""Who follows a table, by what their calls say, and which versions of it are coming.

    followers_prepare ─▶ coming, with each answer ─▶ a follower copies ─▶ its next call: prepared

Law of this file: nothing here outlives the process, and nobody is asked: followers say what they
have with every call, and whoever pushes a version names it again. A daemon that has just started
knows nobody, so that the list waits until all who are there have called; their time begins with the
first call of any table, or the first version that is coming: long before a swap asks for the list.
A follower that is left out all the same is late and not wrong: it copies the version once the table
is at it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import trio

from ingester.errors import InvalidRequest
from ingester.query.ticket import AskedBy
from persist.table import TableKey

ALIVE_S = 30.0
"""The time after its last call in which a follower counts as alive; it may be busy with files."""
SETTLE_S = 6.0
"""The time in which whoever follows has called a daemon that has started: two pauses of 2 s of a
client that was refused, and a call."""
FORGOTTEN_S = 600.0
"""The time after which a follower that does not call any more is listed no longer."""
MOST_COMING = 8
"""The versions that are coming of one table; the oldest go."""


class Coming(msgspec.Struct, frozen=True):
    """A table version that a push makes."""

    table_version: int
    push_id: str


class FollowerStatus(msgspec.Struct, frozen=True):
    """A follower of a table.

    Attributes:
        table_version: The one that its readers see.
        prepared: Other versions of which it has a copy.
    """

    name: str
    alive: bool
    table_version: int
    prepared: tuple[int, ...] = ()


class _Caller:
    """One follower, and when it called."""

    def __init__(self) -> None:
        self.said = AskedBy("", 1)
        self.called_at = 0.0
        self.has_gone: Callable[[], bool] | None = None
        """Tells of the call that waits, if one does, whether its client is gone."""
        self.gone = False
        """Whether the client of the last call had gone when that ended."""


class LiveFollowers:
    """The followers of all tables. Loop only, but for `coming`.

    Args:
        now: The clock, in seconds.
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
        """Count a follower as there, as long as its call waits and for a while after that."""
        self._begin()
        if said is None:
            yield
            return
        callers = self._callers.setdefault(table, {})
        if said.name not in callers:
            # Nobody may ever ask for the list, and a follower that begins anew has another name.
            self._forget(callers)
        caller = callers.setdefault(said.name, _Caller())
        caller.said, caller.called_at, caller.has_gone = said, self._now(), has_gone
        try:
            yield
        finally:
            if caller.has_gone is has_gone:  # else it has called again
                caller.called_at, caller.gone = self._now(), has_gone()
                caller.has_gone = None

    def coming(self, table: TableKey) -> tuple[Coming, ...]:
        """The versions that followers are to prepare. Any thread."""
        return self._coming.get(table, ())

    def prepare(self, table: TableKey, version: Coming) -> None:
        """Have followers prepare a version. Twice is fine.

        Raises:
            InvalidRequest: It is none, or nobody's.
        """
        if version.table_version < 1 or not version.push_id:
            raise InvalidRequest(
                "followers_prepare: expected a table_version from 1 on, and the push_id of its push"
            )
        self._begin()
        others = [each for each in self.coming(table) if each != version]
        self._coming[table] = (*others, version)[-MOST_COMING:]

    def switched(self, table: TableKey, table_version: int) -> None:
        """Take note of the version that counts: it is not coming any more."""
        if there := self._coming.get(table):
            left = tuple(each for each in there if each.table_version != table_version)
            self._coming[table] = left

    async def listed(self, table: TableKey) -> list[FollowerStatus]:
        """The followers of a table, by name, once all who are there can have called."""
        await trio.sleep(max(0.0, self._begin() + SETTLE_S - self._now()))
        callers = self._callers.get(table, {})
        self._forget(callers)
        return self._told(callers)

    def known(self) -> Iterator[tuple[TableKey, FollowerStatus]]:
        """Yield those who have called by now, and are not forgotten, by table and name."""
        for table, callers in sorted(self._callers.items()):
            self._forget(callers)
            if not callers:
                del self._callers[table]
            for each in self._told(callers):
                yield table, each

    def _told(self, callers: dict[str, _Caller]) -> list[FollowerStatus]:
        now = self._now()
        return [
            FollowerStatus(
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
        """When the first call came; it may be this one."""
        if self._first_call is None:
            self._first_call = self._now()
        return self._first_call


def _seen(caller: _Caller, now: float) -> float:
    return caller.called_at if caller.has_gone is None else now


def _is_alive(caller: _Caller, now: float) -> bool:
    if caller.has_gone is not None:
        return not caller.has_gone()
    return not caller.gone and now - caller.called_at < ALIVE_S
