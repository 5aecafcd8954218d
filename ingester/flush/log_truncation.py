"""Truncation of the log: which segments nobody needs any more, and their removal.

    kept from ── the oldest of: the segment that replay has reached
                                the first segment of any buffer that is not in committed files
                                that of any source's state that no committed version has
                                the open segment

Law of this file: a segment goes when every operation in it is in a committed manifest or is
another process's to bring. Replayed segments go by the same rule: there is no second path. Loop
only.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from ingester.buffer import BufferTree
from ingester.flush.flusher import Flusher
from wal import Log, LogFull, LogWriteFailed

log = structlog.get_logger(__name__)


class LogTruncation:
    """Removes segments of one log."""

    def __init__(
        self,
        wal: Log,
        tree: BufferTree,
        flusher: Flusher,
        on_removed: Callable[[int], object],
    ) -> None:
        """``on_removed`` is told how many segments have been removed."""
        self._wal = wal
        self._tree = tree
        self._flusher = flusher
        self._on_removed = on_removed
        self._replaying: int | None = 0

    def note_replaying(self, segment: int | None) -> None:
        """Note that replay has reached this segment, or is over."""
        self._replaying = segment

    def keep_from(self) -> int:
        """The number of the oldest segment with operations that no committed file has."""
        # Invariant: what is not replayed yet is in no buffer, and is needed all the same.
        first_unused = self._wal.open_segment if self._replaying is None else self._replaying
        return min(first_unused, self._tree.first_needed_segment(default=first_unused))

    async def truncate(self) -> None:
        """Remove the sealed segments before :meth:`keep_from`.

        Raises:
            LogFull, LogWriteFailed: the disk does not let them go.
        """
        removed = await self._wal.prune(self.keep_from())
        if removed:
            self._on_removed(len(removed))

    async def run(self) -> None:
        """Truncate after each release, until cancelled."""
        released = self._flusher.released
        while True:
            await released.wait()
            # Taken before: what is released while segments are removed is looked at, too.
            released = self._flusher.released
            try:
                await self.truncate()
            except (LogFull, LogWriteFailed) as exc:
                log.warning("segments not removed", error=str(exc), runbook="disk-full")
