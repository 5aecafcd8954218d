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
    origin_table: OriginTable
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
        origin_table = self.origins.table(name, table.key)
        asked_at = trio.current_time()
        if not origin_table.owns(first):
            wishes = self._wishes.setdefault(table.key, {})
            known = wishes.get(origin_table)
            wishes[origin_table] = _Wish(
                origin_table, first if known is None else min(first, known.first)
            )
        try:
            async with self._commits.held(table.key):
                if origin_table.owns(first):
                    await self._look(table, asked_at)
                taken = origin_table.owns(first)
                while not taken:
                    # Whoever waits at the gate with a wish is served by who comes through it.
                    waiting = self._wishes.pop(table.key, {})
                    waiting.setdefault(origin_table, _Wish(origin_table, first))
                    taken = await self._commit(table, list(waiting.values()))
        finally:
            self._wishes.get(table.key, {}).pop(origin_table, None)

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
            {origin_table.name: state.origins.get(origin_table.name) for origin_table, _ in wishes},
        )
        try:
            state = await self._commits.commit_held(table.key, state, claims.actions, claims)
        except OriginMoved as exc:
            self._commits.show(table, exc.state)
            return False
        for origin_table, _ in wishes:
            self.origins.claim(origin_table, state.origins[origin_table.name], self._process)
        self._commits.show(table, state)
        for origin_table, first in wishes:
            log.info("origin taken", table=table.key, origin=origin_table.name, first=first)
        return True

    def _wanted(self, state: TableState, wish: _Wish, now: str) -> Origin:
        origin_table, first = wish
        live = origin_table.live()
        known = state.origins.get(origin_table.name)
        if known is None:
            known = origin_table.unknown_origin(self._process)
        self.origins.load(origin_table, known, self._process[0])
        foreign = origin_table.first_foreign(first, self._process)
        first = first if foreign is None else foreign
        return taken_over(known, self._process, first, now, live, origin_table.held())
