"""Which finished flushes are committed when, in any order of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ingester.buffer import AtomicFlush, FlushJob
from ingester.tables.commit_schedule import (
    ENOUGH,
    ENOUGH_BYTES,
    CommitSchedule,
    FinishedFlush,
    FlushState,
    whole,
)
from tests.tables.flushes import finished, frozen, job_of


class Table(RuleBasedStateMachine):
    """One table: buffers are frozen, finished or withdrawn, and commits take all due flushes."""

    @initialize(keyed=st.booleans())
    def begin(self, keyed: bool) -> None:
        self.keyed = keyed
        self.told: list[FinishedFlush] = []
        self.schedule = CommitSchedule(self.told.append)
        self.coming: list[FlushJob] = []
        self.expected: set[FlushJob] = set()
        self.flushes: list[FinishedFlush] = []
        self.frozen = 0

    @rule(members=st.integers(1, 4), share=st.sampled_from([1, ENOUGH // 2, ENOUGH]))
    def freeze(self, members: int, share: int) -> None:
        handles = [
            frozen(self.frozen + each, ENOUGH_BYTES // share, keyed=self.keyed)
            for each in range(members)
        ]
        self.frozen += members
        atomic = AtomicFlush(handles) if self.keyed and members > 1 else None
        for handle in handles:
            job = job_of(handle, atomic)
            self.schedule.expect(job)
            self.expected.add(job)
            self.coming.append(job)

    @precondition(lambda self: self.coming)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        job = self.coming.pop(data.draw(st.integers(0, len(self.coming) - 1)))
        flush = finished(job)
        self.expected.discard(job)
        self.flushes.append(flush)
        self._check_told(lambda: self.schedule.finish(flush))

    @precondition(lambda self: self.coming)
    @rule(data=st.data())
    def cannot_be_encoded(self, data: st.DataObject) -> None:
        job = self.coming[data.draw(st.integers(0, len(self.coming) - 1))]
        self.expected.discard(job)
        self._check_told(lambda: self.schedule.withdraw(job))
        self._check_told(lambda: self.schedule.dissolve(job))

    @rule()
    def linger_no_longer(self) -> None:
        self._check_told(self.schedule.end_linger)
        assert not self._in(FlushState.LINGERING)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        before = self._in(FlushState.DUE, FlushState.LINGERING)
        batch = self.schedule.take(keyed=self.keyed)
        if not self.keyed:
            assert batch == before, "all that are finished, in order"
        for flush in batch if self.keyed else []:
            if data.draw(st.booleans()):
                flush.refuse()
        taken = whole([flush for flush in batch if flush.state is FlushState.DUE])
        self._check_told(lambda: self.schedule.end_commit(batch, taken))
        assert {flush.state for flush in batch} <= {
            FlushState.COMMITTED,
            FlushState.REFUSED,
            FlushState.LEFT_OUT,
        }
        self._check_atomic(taken)

    @rule(data=st.data())
    def come_again(self, data: st.DataObject) -> None:
        again = self._in(FlushState.REFUSED, FlushState.LEFT_OUT)
        if again:
            flush = data.draw(st.sampled_from(again))
            self._check_told(lambda: self.schedule.assemble(flush))

    @invariant()
    def nobody_lingers_without_reason(self) -> None:
        lingering = self._in(FlushState.LINGERING)
        assert self.expected or not lingering
        assert len(lingering) < ENOUGH
        assert sum(flush.handle.nbytes for flush in lingering) < ENOUGH_BYTES

    @invariant()
    def only_those_that_lack_another_assemble(self) -> None:
        for flush in self._in(FlushState.ASSEMBLING):
            atomic = flush.job.atomic
            assert atomic is not None
            assert not atomic.dissolved
            here = {each.handle for each in self._in(FlushState.ASSEMBLING)}
            assert not here.issuperset(atomic.members)

    def _check_told(self, step: Callable[[], object]) -> None:
        """Every change of a flush's state wakes its waiting task."""
        before = {flush: flush.state for flush in self.flushes}
        self.told.clear()
        step()
        changed = {flush for flush, state in before.items() if flush.state is not state}
        assert changed <= set(self.told)

    def _check_atomic(self, taken: Iterable[FinishedFlush]) -> None:
        handles = {flush.handle for flush in taken}
        for flush in taken:
            atomic = flush.job.atomic
            if atomic is not None and not atomic.dissolved:
                assert handles >= atomic.members

    def _in(self, *states: FlushState) -> list[FinishedFlush]:
        return [flush for flush in self.flushes if flush.state in states]


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_one_that_nobody_follows_is_due_at_once() -> None:
    schedule, job = CommitSchedule(lambda flush: None), job_of(frozen(1))
    schedule.expect(job)
    flush = finished(job)
    schedule.finish(flush)
    assert flush.state is FlushState.DUE
