"""Deleting log segments that are no longer needed.

    kept from ── the oldest of: the segment that replay has reached
                                the first segment of any unflushed buffer
                                the segment of any checkpoint that no committed version has
                                the open segment

A segment is deleted only when all its operations are in a committed manifest or another process
has taken them over. Replayed segments follow the same rule; there is no second path
(tests/crash, tests/lifetimes). Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from ingester.buffer import BufferTree
from ingester.flush.flusher import Flusher
from wal import Log, LogFull, LogWriteFailed

log = structlog.get_logger(__name__)


class LogTruncation:
    """Deletes segments of one log."""

    def __init__(
        self,
        wal: Log,
        tree: BufferTree,
        flusher: Flusher,
        on_removed: Callable[[int], object],
    ) -> None:
        """``on_removed``: called with the number of deleted segments."""
        self._wal = wal
        self._tree = tree
        self._flusher = flusher
        self._on_removed = on_removed
        self._replaying: int | None = 0

    def note_replaying(self, segment: int | None) -> None:
        """Record that replay has reached this segment, or is over."""
        self._replaying = segment

    def keep_from(self) -> int:
        """Return the oldest segment with operations that no committed file has."""
        # Invariant: what is not replayed yet is in no buffer and is still needed.
        first_unused = self._wal.open_segment if self._replaying is None else self._replaying
        return min(first_unused, self._tree.first_needed_segment(default=first_unused))

    async def truncate(self) -> None:
        """Delete the sealed segments before :meth:`keep_from`.

        Raises:
            LogFull, LogWriteFailed: the disk refused the deletion.
        """
        removed = await self._wal.prune(self.keep_from())
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
