"""The schedule of commits: when a finished flush is committed, and with which others.

    finish ─▶ LINGERING ──┬─ nothing else of the table is on its way      ┐
                          ├─ they are enough, in number or in bytes       ├─▶ ASSEMBLING or DUE
                          └─ the first of them has waited long enough     ┘
    ASSEMBLING ───────────── the last one of its atomic flush is here, or one cannot come ──▶ DUE
    take ────────────────── all that are DUE; without a primary key also those that linger

A commit costs a store about the same for one file and for a hundred, and makes a version that stays
for a day: 10,000 partitions that are flushed at once would make thousands of them on a store that
answers fast. So a flush lingers while others of its table are on their way; a lone one is due at
once. An atomic flush is taken whole or not at all.

Law of this file: pure. Flushes of a table without a primary key are taken in the order in which
they were finished. No two atomic flushes wait for each other, because a partition's buffers come in
the order in which they were frozen.
"""

from __future__ import annotations

from collections.abc import Callable

from ingester.buffer import AtomicFlush, BufferHandle, FlushJob
from ingester.tables.finished_flush import FinishedFlush, FlushState

ENOUGH = 128
"""The flushes, about, that make a commit worth it."""
ENOUGH_BYTES = 32 << 20
"""The bytes of buffers, about, that make a commit worth it: they stay in memory until then."""


class CommitSchedule:
    """Decides which finished flushes of one table go into its next commit."""

    def __init__(self, on_change: Callable[[FinishedFlush], None]) -> None:
        """Tell ``on_change`` each flush that has come to another state."""
        self._on_change = on_change
        self._expected: set[BufferHandle] = set()
        self._lingering: list[FinishedFlush] = []
        self._lingering_bytes = 0
        self._assembling: dict[AtomicFlush, list[FinishedFlush]] = {}
        self._due: list[FinishedFlush] = []

    def expect(self, job: FlushJob) -> None:
        """Expect a frozen buffer: flushes that are finished before it linger for it."""
        self._expected.add(job.handle)

    def withdraw(self, job: FlushJob) -> None:
        """Expect a buffer no longer, which does not come, or not soon: nobody lingers for it."""
        self._expected.discard(job.handle)
        self._end_linger_if_due()

    def finish(self, flush: FinishedFlush) -> None:
        """Give a flush, whose files are uploaded, its place in the order of the table's commits."""
        self._expected.discard(flush.handle)
        self._lingering.append(flush)
        self._lingering_bytes += flush.handle.nbytes
        self._become(flush, FlushState.LINGERING)
        self._end_linger_if_due()

    def end_linger(self) -> None:
        """Let all lingering flushes go on: the first of them has waited long enough."""
        lingering, self._lingering, self._lingering_bytes = self._lingering, [], 0
        for flush in lingering:
            self.assemble(flush)

    def assemble(self, flush: FinishedFlush) -> None:
        """Make a flush due, with the rest of its atomic flush once all of that is here.

        A flush that was left out of a commit, or refused and made anew, comes here again.
        """
        atomic = flush.job.atomic
        if atomic is None or atomic.dissolved:
            self._make_due([flush])
            return
        self._become(flush, FlushState.ASSEMBLING)
        here = self._assembling.setdefault(atomic, [])
        here.append(flush)
        if len(here) == len(atomic.members):
            # Gone before they are taken: those that a commit goes without assemble again.
            self._make_due(self._assembling.pop(atomic))

    def dissolve(self, job: FlushJob) -> bool:
        """Have an atomic flush go without a buffer that cannot be made into files.

        Returns:
            Whether the others would have waited for it.
        """
        if job.atomic is None or job.atomic.dissolved:
            return False
        job.atomic.dissolved = True
        self._make_due(self._assembling.pop(job.atomic, []))
        return True

    def take(self, *, keyed: bool) -> list[FinishedFlush]:
        """The due flushes, in order, which the next commit tries to put into a version.

        Args:
            keyed: whether the table has a primary key. Where it has none, a commit also takes along
                those that linger.
        """
        if not keyed:
            self.end_linger()
        return list(self._due)

    def end_commit(self, batch: list[FinishedFlush], committed: list[FinishedFlush]) -> None:
        """End the commit of a batch: flushes neither committed nor refused were left out."""
        for flush in batch:
            self._due.remove(flush)
        for flush in committed:
            self._become(flush, FlushState.COMMITTED)
        for flush in batch:
            if flush.state is FlushState.DUE:
                self._become(flush, FlushState.LEFT_OUT)

    def _end_linger_if_due(self) -> None:
        enough = len(self._lingering) >= ENOUGH or self._lingering_bytes >= ENOUGH_BYTES
        if enough or not self._expected:
            self.end_linger()

    def _make_due(self, flushes: list[FinishedFlush]) -> None:
        self._due += flushes
        for flush in flushes:
            self._become(flush, FlushState.DUE)

    def _become(self, flush: FinishedFlush, state: FlushState) -> None:
        flush.become(state)
        self._on_change(flush)


def whole(batch: list[FinishedFlush]) -> list[FinishedFlush]:
    """The flushes of a batch whose atomic flush is complete in it."""
    here = {flush.handle for flush in batch}
    return [
        flush
        for flush in batch
        if (atomic := flush.job.atomic) is None
        or atomic.dissolved
        or here.issuperset(atomic.members)
    ]
