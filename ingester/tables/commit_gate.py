"""One table's manifest: who may change it now, and who waits for its next commit.

Law of this file: it waits, and the schedule decides. Loop only.
"""

from __future__ import annotations

import trio

from ingester.tables.commit_schedule import CommitSchedule
from ingester.tables.finished_flush import FinishedFlush, FlushState

LINGER_S = 5.0
"""The longest wait for others: a store slower than this makes at most 12 versions a minute."""


class CommitGate:
    """Serialises one table's manifest: who changes it, or takes from ``schedule``, has ``lock``."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.schedule = CommitSchedule(self._wake)
        self._waiting: dict[FinishedFlush, trio.Event] = {}
        self._changed = trio.Event()

    async def until_due(self, flush: FinishedFlush) -> None:
        """Return when a finished flush should be committed, or has been taken along."""
        with trio.move_on_after(LINGER_S):
            await self._until_not(flush, FlushState.LINGERING)
        if flush.state is FlushState.LINGERING:
            self.schedule.end_linger()
        await self._until_not(flush, FlushState.ASSEMBLING)

    async def take_further(self, batch: list[FinishedFlush]) -> list[FinishedFlush]:
        """Wait for flushes that are finished after those of a batch. Without a primary key.

        Whoever comes is taken, not only who is waited for: that one may stand behind more buffers
        than may wait for a commit.
        """
        while not (further := self.schedule.take(keyed=False)[len(batch) :]):
            await self._changed.wait()
        return further

    async def _until_not(self, flush: FinishedFlush, state: FlushState) -> None:
        while flush.state is state:
            await self._waiting.setdefault(flush, trio.Event()).wait()

    def _wake(self, flush: FinishedFlush) -> None:
        self._changed.set()
        self._changed = trio.Event()
        if (event := self._waiting.pop(flush, None)) is not None:
            event.set()
