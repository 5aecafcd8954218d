"""An origin's first write at this daemon: the table's manifest says so before it is let in.

    stream of an origin, first sequence n ─┬▶ look: all from n on is this daemon's ───┬─▶ let in
                                           └▶ commit: all from n on is this daemon's ─┘

Law of this file: whoever had the origin before finds that in its next commit, and brings nothing
from ``n`` on any more; what it has below stays its own to bring. That holds for this daemon, too,
so every stream looks at the manifest first: the origin may have been elsewhere meanwhile. Streams
that wait at the same time share a commit. Loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog
import trio

from ingester.buffer import TableBuffer
from ingester.errors import Saturated, StoreAway
from ingester.origins.origin_table import OriginTable
from ingester.origins.registry import Origins
from ingester.tables.claims import Claims
from ingester.tables.commits import Commits
from persist.manifest import Origin, OriginMoved, TableState, VersionSealed, WriterIdentity
from persist.manifest.origins import MOST_RUNS, Process, origin_of, owned, taken_over, with_ends
from persist.table import TableKey

FULL_RETRY_S = 30.0

log = structlog.get_logger(__name__)


@contextmanager
def store_asked_of(origin: str | None) -> Iterator[None]:
    """Say of a store that is away what it was needed for, and what helps.

    Args:
        origin: the origin that it was needed for; None where it is about several.

    Raises:
        StoreAway: as it was raised inside, with that.
    """
    try:
        yield
    except StoreAway as exc:
        of = "origins" if origin is None else f"origin {origin!r}"
        raise StoreAway(
            f"how far {of} came is asked of the object store, and noted there: wait until it"
            " answers, a client tries again by itself; writes without an origin go on into tables"
            f" that are open ({exc.message})",
            retry_after_s=exc.retry_after_s,
        ) from exc


class OriginTakeover:
    """Takes origins over for this daemon. Loop only."""

    def __init__(
        self,
        commits: Commits,
        origins: Origins,
        writer: WriterIdentity,
        begin_segment: Callable[[], Awaitable[None]],
    ) -> None:
        """``begin_segment`` has the log say anew what is applied of origins."""
        self._commits = commits
        self._begin_segment = begin_segment
        self.origins = origins
        self._process: Process = (writer.ingester_id, writer.epoch)
        self._looked_at: dict[TableKey, float] = {}
        self._wanted: dict[TableKey, dict[OriginTable, int]] = {}
        """The first sequences that streams wait for."""

    async def take(self, table: TableBuffer, name: str, first: int) -> None:
        """Return when the table's manifest says that sequences from ``first`` on are ours.

        Raises:
            StoreAway: it has to be committed, and the store cannot be reached; or rows that came
                from this daemon before it lost the origin are still on their way to files.
            Saturated: it has gone to and fro too often while its rows were in no file.
        """
        origin_table = self.origins.table(name, table.key)
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
                    # Whoever waits at the gate is served by who comes through it.
                    firsts = self._wanted.pop(table.key, {})
                    firsts.setdefault(origin_table, first)
                    owned = await self._commit(table, firsts)
        finally:
            self._wanted.get(table.key, {}).pop(origin_table, None)

    def _check_runs(self, state: TableState, one: OriginTable) -> None:
        """Refuse an origin that has gone to and fro too often while its rows were in no file."""
        known = state.origins.get(one.name)
        if known is None or len(known.runs) < MOST_RUNS:
            return
        done = self.origins.done(one, self._process, state.writers)
        runs = owned(origin_of(known.name, self._process, owned(known), known.at, done))
        if len(runs) < MOST_RUNS:
            return
        owners = sorted({run.owner[0] for run in runs if run.owner is not None})
        raise Saturated(
            f"origin {one.name!r} of table {'/'.join(one.table)} has gone from daemon to daemon"
            f" {len(runs)} times while rows of it are in no file yet: have {', '.join(owners)}"
            " persist the table, or adopt the log of one that does not come back",
            retry_after_s=FULL_RETRY_S,
        )

    async def _look(self, table: TableBuffer, asked_at: float) -> None:
        """See whether an origin was taken over meanwhile, unless somebody has just looked."""
        if self._looked_at.get(table.key, float("-inf")) >= asked_at:
            return
        began = trio.current_time()
        with store_asked_of(None):
            state = await self._commits.newest(table)
        if state.place > table.state.place:
            self._commits.show(table, state)
        self._looked_at[table.key] = began

    async def _commit(self, table: TableBuffer, firsts: dict[OriginTable, int]) -> bool:
        """Commit that these sequences are ours; False where a newer version has come."""
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
            table.moved = (state.table_version, state.version)  # before a row of it is seen here
        for one in firsts:
            self.origins.claim(one, state.origins[one.name], self._process)
        self._commits.show(table, state)
        for one, first in firsts.items():
            log.info("origin taken", table=table.key, origin=one.name, first=first)
        return True

    def _begin(self, state: TableState, one: OriginTable, first: int) -> int:
        """The sequence from which on an origin is to be taken: the first that another has."""
        known = state.origins.get(one.name) or one.unknown_origin(self._process)
        self.origins.load(one, known, self._process[0])
        foreign = one.first_foreign(first, self._process)
        return first if foreign is None else foreign

    def _claim(self, state: TableState, one: OriginTable, begin: int, now: str) -> Origin:
        """The action that takes an origin from a sequence on."""
        known = state.origins.get(one.name) or one.unknown_origin(self._process)
        done = self.origins.done(one, self._process, state.writers)
        return taken_over(known, self._process, begin, now, done, one.held())


def _takes_from_others(known: Origin | None, begin: int, process: Process) -> bool:
    """Whether another daemon had some of an origin's sequences from ``begin`` on.

    That of the newest ones may be this one all the while, and of older ones another.
    """
    runs = [] if known is None else owned(known)
    return any(
        run.owner is not None and run.owner[0] != process[0]
        for run, end in with_ends(runs)
        if end > begin
    )
