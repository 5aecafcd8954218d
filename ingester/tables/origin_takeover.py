"""An origin's first write at this daemon is recorded in the table's manifest before it is admitted.

    stream of an origin, first sequence n ─┬▶ look: everything from n is this daemon's ───┬─▶
    admitted
                                           └▶ commit: everything from n is this daemon's ─┘

The previous owner sees this in its next commit and flushes nothing from ``n`` on; what it has
below remains its to flush. The same holds for this daemon, so every stream first looks at the
manifest: the origin may have moved meanwhile. Before that, it waits for what earlier streams have
on its way to the log: applied after a claim, that would make duplicates of all that lies below it
(tests/origins/test_under_way). Streams that wait at the same time share a commit (tests/origins).
Event loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog
import trio

from ingester.buffer import TableBuffer
from ingester.errors import Saturated, StoreUnreachable
from ingester.origins.origin_table import Fates, OriginTable
from ingester.origins.registry import Origins
from ingester.tables.claims import Claims
from ingester.tables.commits import Commits
from persist.manifest import OriginAction, OriginMoved, TableState, VersionSealed, WriterIdentity
from persist.manifest.origins import MOST_RUNS, Process, origin_of, owned, taken_over, with_ends
from persist.table import TableKey

FULL_RETRY_S = 30.0

log = structlog.get_logger(__name__)


@contextmanager
def store_asked_of(origin: str | None) -> Iterator[None]:
    """Add to a store error what the store was needed for and what helps.

    Args:
        origin: the origin it was needed for; None for several.

    Raises:
        StoreUnreachable: the error raised inside, with the addition.
    """
    try:
        yield
    except StoreUnreachable as exc:
        of = "origins" if origin is None else f"origin {origin!r}"
        raise StoreUnreachable(
            f"the progress of {of} is read from and recorded in the object store, which cannot be"
            " reached: the client retries by itself; writes without an origin to open tables"
            f" continue ({exc.message})",
            retry_after_s=exc.retry_after_s,
        ) from exc


class OriginTakeover:
    """Takes origins over for this daemon. Event loop only."""

    def __init__(
        self,
        commits: Commits,
        origins: Origins,
        writer: WriterIdentity,
        begin_segment: Callable[[], Awaitable[None]],
    ) -> None:
        """``begin_segment``: starts a log segment, which repeats what is applied of origins."""
        self._commits = commits
        self._begin_segment = begin_segment
        self.origins = origins
        self._process: Process = (writer.ingester_id, writer.epoch)
        self._looked_at: dict[TableKey, float] = {}
        self._wanted: dict[TableKey, dict[OriginTable, int]] = {}
        """The first sequences that streams wait for."""

    async def take(self, table: TableBuffer, name: str, first: int) -> None:
        """Return once the table's manifest says that sequences from ``first`` on are this daemon's.

        Raises:
            StoreUnreachable: a commit is needed and the store cannot be reached, or rows from
                before this daemon lost the origin are still being flushed.
            Saturated: the origin moved too often while its rows were in no file.
        """
        origin_table = self.origins.table(name, table.key)
        await _nothing_under_way(origin_table.fates)
        asked_at = trio.current_time()
        if not origin_table.owns(first):
            firsts = self._wanted.setdefault(table.key, {})
            firsts[origin_table] = min(first, firsts.get(origin_table, first))
        try:
            async with self._commits.held(table.key):
                if origin_table.owns(first):
                    await self._look(table, asked_at)
                owned = origin_table.owns(first)
                while not owned:
                    self._check_runs(table.state, origin_table)
                    # The first task through the gate commits for all that wait there.
                    firsts = self._wanted.pop(table.key, {})
                    firsts.setdefault(origin_table, first)
                    owned = await self._commit(table, firsts)
        finally:
            self._wanted.get(table.key, {}).pop(origin_table, None)

    def _check_runs(self, state: TableState, one: OriginTable) -> None:
        """Refuse an origin that moved too often while its rows were in no file."""
        known = state.origins.get(one.name)
        if known is None or len(known.runs) < MOST_RUNS:
            return
        done = self.origins.done(one, self._process, state.writers)
        owner = (known.owner_id, known.owner_epoch)
        runs = owned(origin_of(known, owner, owned(known), known.at, done))
        if len(runs) < MOST_RUNS:
            return
        owners = sorted({run.owner[0] for run in runs if run.owner is not None})
        raise Saturated(
            f"origin {one.name!r} of table {'/'.join(one.table)} moved between daemons {len(runs)}"
            f" times while some of its rows are unflushed: run `ingester persist` on"
            f" {', '.join(owners)}, or adopt the log of a daemon that does not come back",
            retry_after_s=FULL_RETRY_S,
        )

    async def _look(self, table: TableBuffer, asked_at: float) -> None:
        """Check whether an origin was taken over meanwhile, unless another task has just looked."""
        if self._looked_at.get(table.key, float("-inf")) >= asked_at:
            return
        began = trio.current_time()
        with store_asked_of(None):
            state = await self._commits.newest(table)
        if state.place > table.state.place:
            self._commits.show(table, state)
        self._looked_at[table.key] = began

    async def _commit(self, table: TableBuffer, firsts: dict[OriginTable, int]) -> bool:
        """Commit that these sequences are this daemon's; False if a newer version exists."""
        with store_asked_of(None):
            now = (await self._commits.read(self._commits.store.now)).isoformat()
        state = table.state
        had = {one.name: state.origins.get(one.name) for one in firsts}
        begins = {one: self._begin(state, one, first) for one, first in firsts.items()}
        if any(self.origins.is_told(one, begin) for one, begin in begins.items()):
            await self._begin_segment()
        claims = Claims(
            tuple(self._claim(state, one, begin, now) for one, begin in begins.items()),
            had,
        )
        try:
            with store_asked_of(None):
                state = await self._commits.commit_held(table.key, state, claims.actions, claims)
        except OriginMoved as exc:
            self._commits.show(table, exc.state)
            return False
        except VersionSealed:
            await self._commits.follow_switch(table)
            return False
        if any(
            _takes_from_others(had[one.name], begin, self._process) for one, begin in begins.items()
        ):
            table.moved = (
                state.table_version,
                state.version,
            )  # before any of its rows is visible here
        for one in firsts:
            self.origins.claim(one, state.origins[one.name], self._process)
        self._commits.show(table, state)
        for one, first in firsts.items():
            log.info("origin taken", table=table.key, origin=one.name, first=first)
        return True

    def _begin(self, state: TableState, one: OriginTable, first: int) -> int:
        """Return the first sequence to take: the first one that another daemon has."""
        known = state.origins.get(one.name) or one.unknown_origin(self._process)
        self.origins.load(one, known, self._process[0])
        foreign = one.first_foreign(first, self._process)
        return first if foreign is None else foreign

    def _claim(self, state: TableState, one: OriginTable, begin: int, now: str) -> OriginAction:
        """Return the action that takes an origin from a sequence on."""
        known = state.origins.get(one.name) or one.unknown_origin(self._process)
        done = self.origins.done(one, self._process, state.writers)
        return taken_over(known, self._process, begin, now, done, one.held())


async def _nothing_under_way(fates: Fates) -> None:
    while fates.under_way:
        ended = trio.Event()

        def hear(error: BaseException | None, ended: trio.Event = ended) -> None:
            ended.set()

        fates.await_first(-1, hear)  # no sequence: this is the repeat of none
        await ended.wait()


def _takes_from_others(known: OriginAction | None, begin: int, process: Process) -> bool:
    """Return whether another daemon had some of an origin's sequences from ``begin`` on.

    This daemon may own the newest ones while another owns older ones.
    """
    runs = [] if known is None else owned(known)
    return any(
        run.owner is not None and run.owner[0] != process[0]
        for run, end in with_ends(runs)
        if end > begin
    )
