"""An origin's first write at this daemon: the table's manifest says so before it is taken.

    stream of an origin, first sequence n ──▶ look: all from n on is ours ────────────────┬─▶ open
                                          └─▶ commit: all from n on is this daemon's ──┘

Law of this file: whoever had the origin before finds that in its next commit, and brings nothing
from ``n`` on any more; what it has below stays its own to bring. That holds for this daemon, too,
so every stream looks at the manifest first: the origin may have been elsewhere meanwhile. Streams
that wait at the same time share a commit. Loop only.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import structlog
import trio

from ingester.buffer import TableBuffer
from ingester.origins.origin_table import OriginTable
from ingester.origins.registry import Origins
from ingester.tables.commits import Commits
from ingester.tables.origin_claims import Claims
from persist.manifest import Origin, OriginMoved, TableState, WriterIdentity
from persist.manifest.origins import Process, taken_over
from persist.table import TableKey

log = structlog.get_logger(__name__)


class _Wish(NamedTuple):
    lane: OriginTable
    first: int


class Ownership:
    """Takes origins over."""

    def __init__(self, commits: Commits, origins: Origins, writer: WriterIdentity) -> None:
        self._commits = commits
        self.origins = origins
        self._process: Process = (writer.ingester_id, writer.epoch)
        self._looked_at: dict[TableKey, float] = {}
        self._wishes: dict[TableKey, dict[OriginTable, _Wish]] = {}

    async def take(self, table: TableBuffer, name: str, first: int) -> None:
        """Return when the table's manifest says that sequences from ``first`` on are ours.

        Raises:
            StoreAway: it has to be committed, and the store cannot be reached; or rows that came
                from this daemon before it lost the origin are still on their way to files.
        """
        lane = self.origins.lane(name, table.key)
        lane.ours = self._process
        asked_at = trio.current_time()
        if not lane.owns(first):
            wishes = self._wishes.setdefault(table.key, {})
            known = wishes.get(lane)
            wishes[lane] = _Wish(lane, first if known is None else min(first, known.first))
        try:
            async with self._commits.held(table.key):
                if lane.owns(first):
                    await self._look(table, asked_at)
                taken = lane.owns(first)
                while not taken:
                    # Whoever waits at the gate with a wish is served by who comes through it.
                    waiting = self._wishes.pop(table.key, {})
                    waiting.setdefault(lane, _Wish(lane, first))
                    taken = await self._commit(table, list(waiting.values()))
        finally:
            self._wishes.get(table.key, {}).pop(lane, None)

    async def _look(self, table: TableBuffer, asked_at: float) -> None:
        """See whether an origin was taken over meanwhile, unless somebody has just looked."""
        if self._looked_at.get(table.key, float("-inf")) >= asked_at:
            return
        began = trio.current_time()
        refresh = partial(self._commits.manifest(table.key).refresh, table.state)
        state = await self._commits.read(refresh)
        if state.version > table.state.version:
            self._commits.show(table, state)
        self._looked_at[table.key] = began

    async def _commit(self, table: TableBuffer, wishes: list[_Wish]) -> bool:
        """Whether the wishes are granted; else there is a newer version to start from."""
        now = (await self._commits.read(self._commits.store.now)).isoformat()
        state = table.state
        claims = Claims(
            tuple(self._wanted(state, wish, now) for wish in wishes),
            {lane.name: state.origins.get(lane.name) for lane, _ in wishes},
        )
        try:
            state = await self._commits.commit_held(table.key, state, claims.actions, claims)
        except OriginMoved as exc:
            self._commits.show(table, exc.state)
            return False
        for lane, _ in wishes:
            self.origins.claim(lane, state.origins[lane.name], self._process)
        self._commits.show(table, state)
        for lane, first in wishes:
            log.info("origin taken", table=table.key, origin=lane.name, first=first)
        return True

    def _wanted(self, state: TableState, wish: _Wish, now: str) -> Origin:
        lane, first = wish
        name = lane.name
        live = lane.live()
        known = state.origins.get(name)
        if known is None:
            known = lane.unknown_origin(self._process)
        self.origins.load(lane, known, self._process[0])
        foreign = lane.first_foreign(first)
        first = first if foreign is None else foreign
        return taken_over(known, self._process, first, now, live, lane.held())
