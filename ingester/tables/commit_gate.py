"""One table's manifest: who may change it now, and who waits for its next commit.

Law of this file: it waits, and :class:`CommitSchedule` decides. Loop only.
"""

from __future__ import annotations

import trio

from ingester.buffer import FlushJob
from ingester.tables.commit_schedule import CommitSchedule
from ingester.tables.finished_flush import FinishedFlush, FlushState

LINGER_S = 5.0
"""A store on which 128 uploads take longer than this makes no more than 12 versions a minute."""


class CommitGate:
    """Serialises one table's manifest; one commit at a time holds ``lock``."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self._schedule = CommitSchedule()
        self._waiting: dict[FinishedFlush, trio.Event] = {}
        self._finished = trio.Event()

    def expect(self, job: FlushJob) -> None:
        """A buffer is frozen and will be finished, or withdrawn."""
        self._schedule.expect(job)

    def withdraw(self, job: FlushJob) -> None:
        """A buffer does not come, or not soon: nobody waits for it."""
        self._wake(self._schedule.withdraw(job))

    def dissolve(self, job: FlushJob) -> bool:
        """Have an atomic flush go without this buffer; whether it would have waited for it."""
        if job.atomic is None or job.atomic.dissolved:
            return False
        self._wake(self._schedule.dissolve(job.atomic))
        return True

    def finish(self, flush: FinishedFlush) -> None:
        """Take a place in the order of the table's commits."""
        self._wake(self._schedule.finish(flush))
        self._finished.set()
        self._finished = trio.Event()

    def resume(self, flush: FinishedFlush) -> None:
        """Come again after a commit that went without this flush."""
        self._wake(self._schedule.resume(flush))

    async def until_due(self, flush: FinishedFlush) -> None:
        """Return when the flush should be committed, or has been taken along."""
        if flush.state is FlushState.LINGERING:
            with trio.move_on_after(LINGER_S):
                await self._woken(flush)
            if flush.state is FlushState.LINGERING:
                self._wake(self._schedule.end_linger())
        while flush.state is FlushState.ASSEMBLING:
            await self._woken(flush)

    def take(self, *, keyed: bool) -> list[FinishedFlush]:
        """See :meth:`CommitSchedule.take`. Hold ``lock``."""
        return self._schedule.take(keyed=keyed)

    async def take_further(self, batch: list[FinishedFlush]) -> list[FinishedFlush]:
        """Wait for flushes that are finished after those of a batch. Hold ``lock``.

        Whoever comes is taken, not only who is waited for: that one may stand behind more buffers
        than may wait for a commit. For tables without a primary key.
        """
        while not (further := self.take(keyed=False)[len(batch) :]):
            await self._finished.wait()
        return further

    def settle(self, batch: list[FinishedFlush]) -> None:
        """The commit of a batch is over. Hold ``lock``."""
        self._wake(self._schedule.settle(batch))

    async def _woken(self, flush: FinishedFlush) -> None:
        await self._waiting.setdefault(flush, trio.Event()).wait()

    def _wake(self, flushes: list[FinishedFlush]) -> None:
        for flush in flushes:
            if (event := self._waiting.pop(flush, None)) is not None:
                event.set()
