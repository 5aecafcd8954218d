"""Commits the states of sources that no flush takes along: those that came without rows.

    put ──▶ in the log ──┬─ a flush of the table commits ──────────▶ in a version
                         └─ ``persist.max_age`` later, or asked for ─▶ in a version of its own

Law of this file: a state waits in the log no longer than rows may wait in a buffer. What still has
rows in buffers is not committed before them; their flush takes it along.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable

import structlog
import trio

from ingester.buffer import BufferTree, TableBuffer
from ingester.tables.commits import Commits
from wal import LogFull, LogWriteFailed

log = structlog.get_logger(__name__)

LOOK_AGAIN_S = 10.0
"""The longest time between two looks at states that are due, while rows of theirs are on the way
to files."""


class CheckpointCommitter:
    """Commits states that are due. Loop only."""

    def __init__(
        self,
        commits: Commits,
        tree: BufferTree,
        max_age_s: float,
        truncate: Callable[[], Awaitable[None]],
    ) -> None:
        """``truncate`` removes the segments of the log that nobody needs any more."""
        self._commits = commits
        self._tree = tree
        self._max_age_s = max_age_s
        self._truncate = truncate
        self._wake = trio.Event()
        self._asked: dict[TableBuffer, trio.Event] = {}
        self._looked_at = float("-inf")

    def wake(self) -> None:
        """Look at the times again: a state has come."""
        self._wake.set()

    async def until_committed(self, tables: Iterable[TableBuffer]) -> None:
        """Return when every state of these tables is committed whose rows are in files."""
        waiting = self._tree.checkpoints.waiting_tables()
        asked = [table for table in tables if table.key in waiting]
        events = [self._asked.setdefault(table, trio.Event()) for table in asked]
        self._wake.set()
        for event in events:
            await event.wait()

    async def run(self) -> None:
        """Commit what is due until cancelled."""
        while True:
            with trio.move_on_after(self._sleep_s()):
                await self._wake.wait()
            self._wake = trio.Event()
            asked, self._asked = self._asked, {}
            now = self._looked_at = time.monotonic()
            committed = False
            for key in self._tree.checkpoints.waiting_tables():
                table, oldest = self._tree.tables[key], self._tree.checkpoints.oldest(key)
                if table in asked or (oldest is not None and oldest + self._max_age_s <= now):
                    await self._commits.commit_checkpoints(table)
                    committed = True
            for event in asked.values():
                event.set()
            if committed:
                await self._remove_segments()

    def _sleep_s(self) -> float:
        checkpoints = self._tree.checkpoints
        oldest = [checkpoints.oldest(key) for key in checkpoints.waiting_tables()]
        due_at = min((at for at in oldest if at is not None), default=float("inf"))
        # What is due and was left has rows that a flush is to bring: it takes the state along.
        look_at = self._looked_at + min(LOOK_AGAIN_S, max(0.05, self._max_age_s / 4))
        return max(0.0, max(due_at + self._max_age_s, look_at) - time.monotonic())

    async def _remove_segments(self) -> None:
        try:
            await self._truncate()
        except (LogFull, LogWriteFailed) as exc:
            log.warning("segments not removed", error=str(exc), runbook="disk-full")
