"""The live feed: followers' calls wait for the next operation and then return an answer.

    call ─▶ checked ─▶ waits on an event ─▶ snapshot ─▶ answer, up to a position
                         applied · another version · wait_s over · stop

A waiting call holds a gRPC thread and a follower's place, and no rows. Only events wake it; a
table without waiting calls is not notified at all. Under constant writes a table's followers
wake once per :data:`PULSE_S`, less often if there are many (tests/query/test_live_feed.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import trio

from ingester.buffer import TableBuffer
from ingester.errors import BadRequest, OverQuota, StaleVersion, Stopping, TooManyStreams
from ingester.query.fair_scheduler import CpuAccount, always_wanted
from ingester.query.live_followers import Coming, LiveFollowers
from ingester.query.live_groups import BEGINNING, NO_VERSION, GoneOperation, Position
from ingester.query.live_tail import LiveReader, LiveTails
from ingester.query.queries import Queries
from ingester.query.read_context import Selection
from ingester.query.row_group_cache import RowGroupCache
from ingester.query.stream import AnswerStream
from ingester.query.ticket import DEFAULT_WAIT_S, Ticket
from ingester.query.version_tail import check_table_version
from ingester.tables.catalog import Catalog
from persist.manifest import Manifest, OriginAction, VersionNotKept


def may_have_moved(manifest: Manifest, ingester_id: str, since: int, until: int) -> bool:
    """Return whether an origin that was this daemon's at one version was another's by a later one.

    An origin that continues at another daemon takes its buffered rows along: no file of this
    daemon has them, though ``applied`` covers them. A running daemon remembers this; after a
    restart the manifest tells. Returns True if it cannot be known. Reads the store: call it in a
    thread.

    Raises:
        StoreError: the store cannot be read now.
    """
    try:
        origins = manifest.load(since).origins
        ours = {name for name, origin in origins.items() if origin.owner_id == ingester_id}
        for change in manifest.changes(since, until):
            for action in change.actions:
                if not isinstance(action, OriginAction):
                    continue
                if action.owner_id == ingester_id:
                    ours.add(action.name)
                elif action.name in ours:
                    return True
    except VersionNotKept:
        return True
    return False


PULSE_S = 0.05
"""Shortest interval at which a table's followers are told of new operations, in seconds."""
FOLLOWER_S = 0.005
"""Addition to that interval per follower, because a call costs almost a millisecond of CPU."""
TAKEN_BACK = "precedes a takeover: another daemon now owns the origin of rows after it"
FOLLOWED_S = 5.0
"""A table is maintained for its followers until this long after the last call, in seconds."""


@dataclass(eq=False)
class _Followed:
    """The event that the followers of one table wait for."""

    table: TableBuffer
    changed: trio.Event = field(default_factory=trio.Event)
    waiting: int = 0
    called_at: float = 0.0
    pulsed_at: float = 0.0
    pulsed: Position = BEGINNING
    """Newest operation at the last pulse. A follower that is missing some of them does not wait."""

    def tell(self) -> None:
        """Wake all waiting calls. Operations do not notify again until a call waits again."""
        self.table.on_applied = None
        self.changed.set()

    def is_due(self, after: Position, version: int, pulse_s: float) -> bool:
        """Return whether a follower at this position and version should be answered now.

        Args:
            pulse_s: interval between two pulses, in seconds.
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
        """Wait for an operation or another version; if there is one, for the next pulse."""
        if self.table.newest > after:
            await trio.sleep(max(0.0, self.pulsed_at + pulse_s - time.monotonic()))
            return
        if self.changed.is_set():
            self.changed = trio.Event()
        self.table.on_applied = self.tell
        await self.changed.wait()


class LiveFeed:
    """Answers followers. Event loop only, except `answer`."""

    def __init__(
        self,
        catalog: Catalog,
        queries: Queries,
        tails: LiveTails,
        *,
        refresh_s: float,
    ) -> None:
        """Args: refresh_s: interval at which others' commits are loaded while the table is
        followed.
        """
        self._catalog = catalog
        self._queries = queries
        self._tails = tails
        self._refresh_s = refresh_s
        self._stopping = False
        self.followers = LiveFollowers()
        self._moved: dict[tuple[TableBuffer, int, int], bool] = {}
        """Whether an origin moved to another daemon between a version and the start."""
        self._followed: dict[TableBuffer, _Followed] = {}
        self._calls: dict[trio.CancelScope, tuple[str, Callable[[], bool]]] = {}
        """Waiting calls: namespace, and whether the client has disconnected."""
        self._somebody = trio.Event()
        catalog.commits.followers.append(self._version_changed)

    async def run(self) -> None:
        """Load others' commits for followed tables and drop expired rows, until cancelled."""
        while True:
            await self._somebody.wait()
            if not self._tails.sweep():
                self._somebody = trio.Event()
            since = time.monotonic() - FOLLOWED_S
            for followed in list(self._followed.values()):
                if followed.waiting or followed.called_at > since:
                    await self._catalog.look(followed.table, self._refresh_s)
            # Polled, because a store does not announce commits; only while a table is followed.
            await trio.sleep(self._refresh_s)

    def stop(self) -> None:
        """End all waiting calls and accept no more: the daemon stops."""
        self._stopping = True
        for followed in self._followed.values():
            followed.tell()

    def check(self, table: TableBuffer, ticket: Ticket) -> None:
        """Raise BadRequest if the ticket does not fit the table. Thread-safe."""
        self._queries.selection(table.definition, ticket, self._queries.account(table))

    async def wait(
        self, table: TableBuffer, ticket: Ticket, is_gone: Callable[[], bool] = lambda: False
    ) -> None:
        """Return when there is something to report, or the waiting time is over.

        Args:
            is_gone: whether the client has disconnected.

        Raises:
            BadRequest, StaleVersion, StoreUnreachable, Stopping, TooManyStreams
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
            return  # the first answer needs nothing new
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
        """Announce a version for the table's followers to prepare, unless it is already current.

        Raises:
            BadRequest: the version or push id is missing.
        """
        self.followers.prepare(table.key, version)
        self._version_changed(table)  # a version that is already current is not announced

    def _told_of(self, table: TableBuffer) -> tuple[object, ...]:
        """What a waiting call reports at once, besides rows and manifest versions."""
        return (table.state.table_version, self.followers.coming(table.key))

    def answer(
        self, table: TableBuffer, ticket: Ticket, check_wanted: Callable[[], None] = always_wanted
    ) -> AnswerStream:
        """Open the current answer. Thread-safe.

        Args:
            check_wanted: as in :meth:`Queries.answer`.

        Raises:
            BadRequest, StaleVersion, Stopping, TooManyStreams
        """
        check_table_version(table, ticket)
        after, tails = self._start(table, ticket), self._tails
        # In turns: many followers wake at once, and writers must not wait for all of them.
        turn = self._queries.account(table)
        with self._queries.row_groups.scheduler.turn(turn):
            snapshot = tails.snapshot(table, after, _known(ticket))
            check_table_version(table, ticket)  # a switch may have happened meanwhile
            if isinstance(snapshot, GoneOperation):
                raise _stale(table, BEGINNING if after is None else after, snapshot)
            live = snapshot

            def reader(
                selection: Selection, row_groups: RowGroupCache, account: CpuAccount
            ) -> LiveReader:
                return LiveReader(live, selection, row_groups, tails.rows, account)

            return self._queries.answer(table, snapshot, ticket, reader, check_wanted)

    def _pulse_s(self) -> float:
        """Return the interval between two pulses of a table, longer with more followers."""
        return max(PULSE_S, FOLLOWER_S * self._queries.places.followers)

    def _start(self, table: TableBuffer, ticket: Ticket) -> Position | None:
        """Return the position after which an answer begins; None for the current one."""
        if ticket.after is None:
            return None if ticket.version is None else BEGINNING
        past, after = self._tails.past, Position(ticket.after.epoch, ticket.after.sequence)
        if ticket.after.ingester_id not in (None, past.ingester_id):
            raise _stale(
                table,
                after,
                f"belongs to daemon {ticket.after.ingester_id!r}, this is {past.ingester_id!r}",
            )
        now = self._tails.now(table)
        if after.epoch == now.epoch:
            if after > now:
                raise BadRequest(
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
        """Raise StaleVersion if rows reported before a restart may have moved to another daemon."""
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
        """Make sure that the table's version is at least the follower's."""
        if version is None or version <= table.state.version:
            return
        await self._catalog.refresh(table, -1.0)
        if version > table.state.version:
            raise BadRequest(
                f"version {version} of {table.namespace}/{table.name} does not exist,"
                f" the newest is {table.state.version}"
            )

    @contextmanager
    def _place(
        self, followed: _Followed, wait_s: float, is_gone: Callable[[], bool]
    ) -> Iterator[None]:
        """Hold a place among the waiting calls, for at most ``wait_s``."""
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
        """Stop counting a waiting call; idempotent."""
        known = self._calls.pop(call, None)
        if known is not None:
            self._queries.places.wait_no_more(known[0])

    def _drop_gone(self) -> None:
        """End calls of disconnected clients at once, instead of at their time limit."""
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
    """Return the newest version that the follower says it was told of."""
    if ticket.after is not None and ticket.after.version is not None:
        return ticket.after.version
    return _known(ticket)


def _stale(table: TableBuffer, after: Position, why: GoneOperation | str) -> StaleVersion:
    newest, anew = table.state.version, isinstance(why, str)
    where = f"position (epoch {after.epoch}, sequence {after.sequence})"
    if after == BEGINNING:
        where = "the tail of that version"
    if isinstance(why, GoneOperation):
        why = (
            f"is no longer fully buffered: operations up to {why.last.sequence} of epoch"
            f" {why.last.epoch} were flushed by version {why.version}"
        )
    ask = "ask again without a position" if anew else "ask again"
    return StaleVersion(
        f"{table.namespace}/{table.name}: {where} {why}; load version {newest} and {ask}",
        retry_after_s=0.0,
        details={"manifest_version": newest, "version": newest, "anew": anew},
    )
