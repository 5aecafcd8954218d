"""When a finished flush is committed, and with whom: the one place where that is decided.

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
the order in which they were frozen. Every method returns the flushes that go on waiting no more for
what they waited for, so that whoever waits for one can be woken.
"""

from __future__ import annotations

from ingester.buffer import AtomicFlush, BufferHandle, FlushJob
from ingester.tables.finished_flush import FinishedFlush, FlushState

ENOUGH = 128
"""Files of a commit, about."""
ENOUGH_BYTES = 32 << 20
"""Buffers' bytes of a commit, about: they stay in memory until then."""


class CommitSchedule:
    """Which finished flushes of one table go into its next commit."""

    def __init__(self) -> None:
        self._expected: set[BufferHandle] = set()
        self._lingering: list[FinishedFlush] = []
        self._lingering_bytes = 0
        self._assembling: dict[AtomicFlush, list[FinishedFlush]] = {}
        self._due: list[FinishedFlush] = []

    def expect(self, job: FlushJob) -> None:
        """A buffer is frozen: those that are finished before it linger for it."""
        self._expected.add(job.handle)

    def withdraw(self, job: FlushJob) -> list[FinishedFlush]:
        """A buffer does not come, or not soon: nobody lingers for it."""
        self._expected.discard(job.handle)
        return self._end_linger_if_due()

    def finish(self, flush: FinishedFlush) -> list[FinishedFlush]:
        """A buffer's files are uploaded."""
        flush.become(FlushState.LINGERING)
        self._expected.discard(flush.handle)
        self._lingering.append(flush)
        self._lingering_bytes += flush.handle.nbytes
        return self._end_linger_if_due()

    def end_linger(self) -> list[FinishedFlush]:
        """The first of those that linger has waited long enough: all of them go on."""
        lingering, self._lingering, self._lingering_bytes = self._lingering, [], 0
        gone_on = list(lingering)
        for flush in lingering:
            gone_on += self._assemble(flush)
        return gone_on

    def resume(self, flush: FinishedFlush) -> list[FinishedFlush]:
        """A flush that a commit went without comes again, made anew where it was refused."""
        return self._assemble(flush)

    def dissolve(self, atomic: AtomicFlush) -> list[FinishedFlush]:
        """One of an atomic flush cannot be made into files: the others go without it."""
        atomic.dissolved = True
        return self._all_due(self._assembling.pop(atomic, []))

    def take(self, *, keyed: bool) -> list[FinishedFlush]:
        """Those that the next commit tries to put into a version, in order; they stay due.

        Args:
            keyed: whether the table has a primary key. Where it has none, a commit also takes along
                those that linger; :meth:`settle` returns them too.
        """
        if not keyed:
            self.end_linger()
        return list(self._due)

    def settle(self, batch: list[FinishedFlush]) -> list[FinishedFlush]:
        """A commit is over: what it has not taken and not refused was left out."""
        for flush in batch:
            self._due.remove(flush)
            if flush.state is FlushState.DUE:
                flush.become(FlushState.LEFT_OUT)
        return batch

    def _end_linger_if_due(self) -> list[FinishedFlush]:
        if (
            not self._expected
            or len(self._lingering) >= ENOUGH
            or self._lingering_bytes >= ENOUGH_BYTES
        ):
            return self.end_linger()
        return []

    def _assemble(self, flush: FinishedFlush) -> list[FinishedFlush]:
        atomic = flush.job.atomic
        if atomic is None or atomic.dissolved:
            return self._all_due([flush])
        flush.become(FlushState.ASSEMBLING)
        here = self._assembling.setdefault(atomic, [])
        here.append(flush)
        if len(here) < len(atomic.members):
            return []
        # Gone before they are taken: those that a commit goes without assemble again.
        return self._all_due(self._assembling.pop(atomic))

    def _all_due(self, flushes: list[FinishedFlush]) -> list[FinishedFlush]:
        for flush in flushes:
            flush.become(FlushState.DUE)
        self._due += flushes
        return flushes


def whole(batch: list[FinishedFlush]) -> list[FinishedFlush]:
    """Those of a batch that lacks none that has to go into the same version."""
    here = {flush.handle for flush in batch}
    return [
        flush
        for flush in batch
        if (atomic := flush.job.atomic) is None
        or atomic.dissolved
        or here.issuperset(atomic.members)
    ]
