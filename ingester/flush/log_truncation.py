"""Deleting log segments that are no longer needed, and committing the checkpoints that keep them.

    kept from ── the oldest of: the segment that replay has reached
                                the first segment of any unflushed buffer
                                the segment of any checkpoint that no committed version has
                                the segment of any operation that waits for the store
                                the open segment

A segment is deleted only when all its operations are in a committed manifest or another process
has taken them over. Replayed segments follow the same rule; there is no second path
(tests/crash, tests/lifetimes).

A checkpoint that came without rows stays in the log no longer than rows may stay in a buffer:

    put ──▶ in the log ──┬─ a flush of the table commits ──────────▶ in a version
                         └─ ``persist.max_age`` later, or on request ─▶ in a version of its own

If its rows are still buffered, their flush commits it (tests/origins). Event loop only.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable

import structlog
import trio

from ingester.buffer import BufferTree, TableBuffer
from ingester.flush.flusher import Flusher
from ingester.store_log.opening import StoreLogParts
from ingester.tables.commits import Commits
from persist.table import TableKey
from wal import Log, LogFull, LogWriteFailed

log = structlog.get_logger(__name__)


ANY_SEGMENT = 1 << 62
"""Beyond all segments."""


class LogTruncation:
    """Deletes segments of one log."""

    def __init__(
        self,
        wal: Log,
        tree: BufferTree,
        flusher: Flusher,
        on_removed: Callable[[int], object],
        store_log: StoreLogParts | None = None,
    ) -> None:
        """Args:
        on_removed: called with the number of deleted segments.
        store_log: its objects follow the same rule.
        """
        self._wal = wal
        self._tree = tree
        self._flusher = flusher
        self._on_removed = on_removed
        self._store_log = store_log
        self._replaying: int | None = 0

    def note_replaying(self, segment: int | None) -> None:
        """Record that replay has reached this segment, or is over."""
        self._replaying = segment

    def keep_from(self) -> int:
        """Return the oldest segment with operations that no committed file has."""
        # Invariant: what is not replayed yet is in no buffer and is still needed.
        first_unused = self._wal.open_segment if self._replaying is None else self._replaying
        if self._store_log is not None:
            first_unused = self._store_log.first_segment(first_unused)
        return min(first_unused, self._tree.first_needed_segment(default=first_unused))

    def first_needed(self) -> int:
        """Return the oldest segment with rows or checkpoints that no file has, if any."""
        if self._replaying is not None:
            return -ANY_SEGMENT
        return self._tree.first_needed_segment(default=ANY_SEGMENT)

    async def truncate(self) -> None:
        """Delete the sealed segments before :meth:`keep_from`.

        Raises:
            LogFull, LogWriteFailed: the disk refused the deletion.
        """
        keep_from = self.keep_from()
        if self._store_log is not None and self._replaying is None:
            self._store_log.cleaner.keep_from(keep_from)
        removed = await self._wal.prune(keep_from)
        if removed:
            self._on_removed(len(removed))

    async def run(self) -> None:
        """Truncate after each release, until cancelled."""
        released = self._flusher.released
        while True:
            await released.wait()
            # Taken first, so that releases during the deletion cause another look.
            released = self._flusher.released
            try:
                await self.truncate()
            except (LogFull, LogWriteFailed) as exc:
                log.warning("segments not removed", error=str(exc), runbook="disk-full")


LOOK_AGAIN_S = 10.0
"""Longest interval between two checks of due checkpoints whose rows are being flushed, in
seconds."""


class CheckpointCommitter:
    """Commits due checkpoints. Event loop only."""

    def __init__(
        self,
        commits: Commits,
        tree: BufferTree,
        max_age_s: float,
        truncate: Callable[[], Awaitable[None]],
    ) -> None:
        """``truncate``: deletes log segments that are no longer needed."""
        self._commits = commits
        self._tree = tree
        self._max_age_s = max_age_s
        self._truncate = truncate
        self._wake = trio.Event()
        self._asked: dict[TableBuffer, trio.Event] = {}
        self._looked_at = float("-inf")

    def wake(self) -> None:
        """Recompute the due times: a checkpoint has arrived."""
        self._wake.set()

    async def until_committed(self, tables: Iterable[TableBuffer]) -> None:
        """Return once every checkpoint of these tables whose rows are in files is committed."""
        waiting = self._tree.checkpoints.waiting_tables()
        asked = [table for table in tables if table.key in waiting]
        events = [self._asked.setdefault(table, trio.Event()) for table in asked]
        self._wake.set()
        for event in events:
            await event.wait()

    async def run(self) -> None:
        """Commit due checkpoints until cancelled."""
        while True:
            with trio.move_on_after(self._sleep_s()):
                await self._wake.wait()
            self._wake = trio.Event()
            asked, self._asked = self._asked, {}
            now = self._looked_at = time.monotonic()
            committed = False
            for key in self._tree.checkpoints.waiting_tables():
                table, due_at = self._tree.tables[key], self._due_at(key)
                if table in asked or due_at <= now:
                    await self._commits.commit_checkpoints(table)
                    committed = True
            for event in asked.values():
                event.set()
            if committed:
                await self._remove_segments()

    def _sleep_s(self) -> float:
        waiting = self._tree.checkpoints.waiting_tables()
        due_at = min(map(self._due_at, waiting), default=float("inf"))
        # Those left have buffered rows, whose flush commits them.
        shortest_s = min(map(self._age_s, waiting), default=self._max_age_s)
        look_at = self._looked_at + min(LOOK_AGAIN_S, max(0.05, shortest_s / 4))
        return max(0.0, max(due_at, look_at) - time.monotonic())

    def _due_at(self, key: TableKey) -> float:
        oldest = self._tree.checkpoints.oldest(key)
        return float("inf") if oldest is None else oldest + self._age_s(key)

    def _age_s(self, key: TableKey) -> float:
        own_s = self._tree.tables[key].definition.max_age_s
        return self._max_age_s if own_s is None else min(own_s, self._max_age_s)

    async def _remove_segments(self) -> None:
        try:
            await self._truncate()
        except (LogFull, LogWriteFailed) as exc:
            log.warning("segments not removed", error=str(exc), runbook="disk-full")
