"""The live feed: calls of followers, which wait for the next operation and then have an answer.

    call ─▶ checked ─▶ waits on an event ─▶ snapshot ─▶ answer, up to a position
                         applied · another version · wait_s over · stop

Law of this file: whoever waits holds a thread of gRPC's and a place of a follower, and nothing of
the table; it is woken by events alone. A table that nobody waits for is not told of
operations at all. Under constant writes a table's followers are woken once in :data:`PULSE_S`,
more seldom where there are many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import trio

from ingester.buffer import TableBuffer
from ingester.errors import InvalidRequest, OverQuota, StaleVersion, Stopping, TooManyStreams
from ingester.query.cpu_account import CpuAccount, always_wanted
from ingester.query.live_followers import Coming, LiveFollowers
from ingester.query.live_position import BEGINNING, NO_VERSION, Gone, Position
from ingester.query.live_reader import LiveReader
from ingester.query.live_tail import LiveTails
from ingester.query.live_takeover import may_have_moved
from ingester.query.queries import Queries
from ingester.query.read_context import Selection
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.stream import AnswerStream
from ingester.query.ticket import DEFAULT_WAIT_S, Ticket
from ingester.query.version_tail import check_table_version
from ingester.tables.catalog import Catalog

PULSE_S = 0.05
"""The time in which a table's new operations are told at most once."""
FOLLOWER_S = 0.005
"""The same, for each follower that calls: a call costs most of a millisecond of a processor."""
TAKEN_BACK = "is before rows were taken back, which another daemon has: it has their origin now"
FOLLOWED_S = 5.0
"""The time after its last call in which a table is looked after as one that is followed."""


@dataclass(eq=False)
class _Followed:
    """What those who follow a table wait for."""

    table: TableBuffer
    changed: trio.Event = field(default_factory=trio.Event)
    waiting: int = 0
    called_at: float = 0.0
    pulsed_at: float = 0.0
    pulsed: Position = BEGINNING
    """The newest operation at the last pulse: whoever lacks any up to it need not wait."""

    def tell(self) -> None:
        """Wake whoever waits. Operations do not call again before somebody waits again."""
        self.table.on_applied = None
        self.changed.set()

    def is_due(self, after: Position, version: int, pulse_s: float) -> bool:
        """Whether whoever has this position and version is to be told something now.

        Args:
            pulse_s: the time between two pulses.
        """
        if self.table.state.version != version:
            return True
        if self.table.newest <= after:
            return False
        if after < self.pulsed:
            return True
        now = time.monotonic()
        if now < self.pulsed_at + pulse_s:
            return False
        self.pulsed, self.pulsed_at = Position(*self.table.newest), now
        return True

    async def change(self, after: Position, pulse_s: float) -> None:
        """Wait for an operation or another version, or where there is one for the next pulse."""
        if self.table.newest > after:
            await trio.sleep(max(0.0, self.pulsed_at + pulse_s - time.monotonic()))
            return
        if self.changed.is_set():
            self.changed = trio.Event()
        self.table.on_applied = self.tell
        await self.changed.wait()


class LiveFeed:
    """Answers followers. Loop only, but for `answer`."""

    def __init__(
        self,
        catalog: Catalog,
        queries: Queries,
        tails: LiveTails,
        *,
        refresh_s: float,
    ) -> None:
        """``refresh_s``: how often commits of others are looked for while somebody follows."""
        self._catalog = catalog
        self._queries = queries
        self._tails = tails
        self._refresh_s = refresh_s
        self._stopping = False
        self.followers = LiveFollowers()
        self._moved: dict[tuple[TableBuffer, int, int], bool] = {}
        """Whether an origin went elsewhere between a version and the start."""
        self._followed: dict[TableBuffer, _Followed] = {}
        self._calls: dict[trio.CancelScope, tuple[str, Callable[[], bool]]] = {}
        """The calls that wait: the namespace, and what tells that a client has gone."""
        self._somebody = trio.Event()
        catalog.commits.followers.append(self._version_changed)

    async def run(self) -> None:
        """Look after the tables that are followed, until cancelled.

        Commits of others are looked for, and what was kept long enough goes.
        """
        while True:
            await self._somebody.wait()
            if not self._tails.sweep():
                self._somebody = trio.Event()
            since = time.monotonic() - FOLLOWED_S
            for followed in list(self._followed.values()):
                if followed.waiting or followed.called_at > since:
                    await self._catalog.look(followed.table, self._refresh_s)
            # Polled: a store does not tell of commits. Only while somebody follows.
            await trio.sleep(self._refresh_s)

    def stop(self) -> None:
        """End the calls that wait, and let none wait any more: the daemon stops."""
        self._stopping = True
        for followed in self._followed.values():
            followed.tell()

    def check(self, table: TableBuffer, ticket: Ticket) -> None:
        """Raise InvalidRequest where the table cannot be asked for this. Any thread."""
        self._queries.selection(table.definition, ticket, self._queries.account(table))

    async def wait(
        self, table: TableBuffer, ticket: Ticket, is_gone: Callable[[], bool] = lambda: False
    ) -> None:
        """Return when there is something to tell, or it was waited long enough.

        Args:
            is_gone: says whether the client has gone meanwhile.

        Raises:
            InvalidRequest, StaleVersion, StoreAway, Stopping, TooManyStreams
        """
        with self.followers.calling(table.key, ticket.follower, is_gone):
            await self._wait(table, ticket, is_gone)

    async def _wait(self, table: TableBuffer, ticket: Ticket, is_gone: Callable[[], bool]) -> None:
        await self._queries.version_tail.check_current(table, ticket)
        await self._check_version(table, ticket.version)
        after = self._start(table, ticket)
        self._tails.followed(table)
        self._somebody.set()
        if after is None or after == BEGINNING:
            return  # to begin needs nothing new
        await self._check_takeovers(table, after, _told(ticket))
        if (gone := self._tails.missing(table, after, _known(ticket))) is not None:
            raise _stale(table, after, gone)
        followed = self._followed.setdefault(table, _Followed(table))
        followed.called_at = time.monotonic()
        version = _told(ticket)
        version = table.state.version if version == NO_VERSION else version
        wait_s = DEFAULT_WAIT_S if ticket.wait_s is None else ticket.wait_s
        before = self._told_of(table)

        def is_due() -> bool:
            other = self._told_of(table) != before
            return other or followed.is_due(after, version, self._pulse_s())

        if wait_s and not is_due():
            with self._place(followed, wait_s, is_gone):
                while not is_due():
                    if self._stopping:
                        raise Stopping("the daemon is stopping", retry_after_s=1.0)
                    await followed.change(after, self._pulse_s())

    def prepare(self, table: TableBuffer, version: Coming) -> None:
        """Have the table's followers prepare a version, unless it counts already.

        Raises:
            InvalidRequest: It is none, or nobody's.
        """
        self.followers.prepare(table.key, version)
        self._version_changed(table)  # what counts already is not coming

    def _told_of(self, table: TableBuffer) -> tuple[object, ...]:
        """What whoever waits is told of at once, beside rows and manifest versions."""
        return (table.state.table_version, self.followers.coming(table.key))

    def answer(
        self, table: TableBuffer, ticket: Ticket, check_wanted: Callable[[], None] = always_wanted
    ) -> AnswerStream:
        """Open the answer of now. Any thread.

        Args:
            check_wanted: as in :meth:`Queries.answer`.

        Raises:
            InvalidRequest, StaleVersion, Stopping, TooManyStreams
        """
        check_table_version(table, ticket)
        after, tails = self._start(table, ticket), self._tails
        # In turns: many are woken at once, and writers are not to wait for all of them.
        turn = self._queries.account(table)
        with self._queries.row_groups.scheduler.turn(turn):
            snapshot = tails.snapshot(table, after, _known(ticket))
            check_table_version(table, ticket)  # it may have been switched since
            if isinstance(snapshot, Gone):
                raise _stale(table, BEGINNING if after is None else after, snapshot)
            live = snapshot

            def reader(
                selection: Selection, row_groups: RowGroupCache, account: CpuAccount
            ) -> LiveReader:
                return LiveReader(live, selection, row_groups, tails.rows, account)

            return self._queries.answer(table, snapshot, ticket, reader, check_wanted)

    def _pulse_s(self) -> float:
        """The time between two pulses of a table: more where more followers are to be told."""
        return max(PULSE_S, FOLLOWER_S * self._queries.places.followers)

    def _start(self, table: TableBuffer, ticket: Ticket) -> Position | None:
        """The position that an answer begins behind; None for that of now."""
        if ticket.after is None:
            return None if ticket.version is None else BEGINNING
        past, after = self._tails.past, Position(ticket.after.epoch, ticket.after.sequence)
        if ticket.after.ingester_id not in (None, past.ingester_id):
            raise _stale(
                table,
                after,
                f"is of daemon {ticket.after.ingester_id!r}, this is {past.ingester_id!r}",
            )
        now = self._tails.now()
        if after.epoch == now.epoch:
            if after > now:
                raise InvalidRequest(
                    f"after: sequence {after.sequence} is ahead of this daemon, whose newest"
                    f" operation of epoch {now.epoch} is {now.sequence}"
                )
        elif not past.knows(after):
            raise _stale(
                table, after, f"is not in the log of this daemon, which is in epoch {now.epoch}"
            )
        if self._tails.were_taken_back(table, after, _told(ticket)):
            raise _stale(table, after, TAKEN_BACK)
        return after

    async def _check_takeovers(self, table: TableBuffer, after: Position, told: int) -> None:
        """Raise StaleVersion where rows told before a restart may have been left to others."""
        opened_at, own = self._tails.opened_at(table), self._tails.past
        if after.epoch == own.epoch or told >= opened_at:
            return
        since = max(told, 1)
        asked = (table, table.state.table_version, since)
        if asked not in self._moved:
            manifest = self._catalog.manifest(table.key)
            self._moved[asked] = await self._catalog.commits.read(
                partial(may_have_moved, manifest, own.ingester_id, since, opened_at)
            )
        if self._moved[asked]:
            raise _stale(table, after, TAKEN_BACK)

    async def _check_version(self, table: TableBuffer, version: int | None) -> None:
        """See to it that the table answers from a version as new as the follower's."""
        if version is None or version <= table.state.version:
            return
        await self._catalog.refresh(table, -1.0)
        if version > table.state.version:
            raise InvalidRequest(
                f"version {version} of {table.namespace}/{table.name} does not exist,"
                f" the newest is {table.state.version}"
            )

    @contextmanager
    def _place(
        self, followed: _Followed, wait_s: float, is_gone: Callable[[], bool]
    ) -> Iterator[None]:
        """A place among the calls that wait, for so long at most."""
        places, namespace = self._queries.places, followed.table.namespace
        try:
            places.check("live", namespace)
        except (TooManyStreams, OverQuota):
            self._drop_gone()
            places.check("live", namespace)
        with trio.move_on_after(wait_s) as own:
            self._calls[own] = (namespace, is_gone)
            places.wait(namespace)
            followed.waiting += 1
            try:
                yield
            finally:
                followed.waiting -= 1
                self._forget_call(own)

    def _forget_call(self, call: trio.CancelScope) -> None:
        """Stop counting a call that waits, if it is counted."""
        known = self._calls.pop(call, None)
        if known is not None:
            self._queries.places.wait_no_more(known[0])

    def _drop_gone(self) -> None:
        """End the calls whose clients have gone; they would end by themselves, but not at once."""
        for scope in [scope for scope, (_, gone) in self._calls.items() if gone()]:
            scope.cancel()
            self._forget_call(scope)

    def _version_changed(self, table: TableBuffer) -> None:
        self._tails.opened(table)
        self.followers.switched(table.key, table.state.table_version)
        followed = self._followed.get(table)
        if followed is not None:
            followed.tell()


def _known(ticket: Ticket) -> int:
    return NO_VERSION if ticket.version is None else ticket.version


def _told(ticket: Ticket) -> int:
    """The newest version that a follower says it was told."""
    if ticket.after is not None and ticket.after.version is not None:
        return ticket.after.version
    return _known(ticket)


def _stale(table: TableBuffer, after: Position, why: Gone | str) -> StaleVersion:
    newest, anew = table.state.version, isinstance(why, str)
    where = f"position (epoch {after.epoch}, sequence {after.sequence})"
    if after == BEGINNING:
        where = "what that version lacks"
    if isinstance(why, Gone):
        why = (
            f"is not all in buffers any more: operations up to {why.last.sequence} of epoch"
            f" {why.last.epoch} went into files by version {why.version}"
        )
    ask = "ask again without a position" if anew else "ask again"
    return StaleVersion(
        f"{table.namespace}/{table.name}: {where} {why}; load version {newest} and {ask}",
        retry_after_s=0.0,
        details={"manifest_version": newest, "version": newest, "anew": anew},
    )
