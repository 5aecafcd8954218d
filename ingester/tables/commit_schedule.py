"""One table's manifest: who may change it now, and who waits for its next commit.

Law of this file: it waits, and the schedule decides. Loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import trio

from ingester.buffer import (
    AtomicFlush,
    BufferHandle,
    FlushJob,
    IllegalTransition,
    PersistedFiles,
    TableBuffer,
)
from persist.manifest import Action, Add, AppliedKey, PartitionKey, TableState


class FlushState(Enum):
    """The state of an uploaded buffer on its way into a version."""

    UPLOADED = "uploaded"
    """The buffer's files are in the store."""
    LINGERING = "lingering"
    """The flush waits for other buffers of its table that are on their way."""
    ASSEMBLING = "assembling"
    """The flush waits for the rest of its atomic flush."""
    DUE = "due"
    """The next commit takes the flush."""
    REFUSED = "refused"
    """The table does not take the files: they have to be made anew."""
    LEFT_OUT = "left out"
    """The commit went without this, because another one of its atomic flush was refused."""
    COMMITTED = "committed"
    """A version with the files is installed, and the buffer is released."""


TRANSITIONS: dict[FlushState, frozenset[FlushState]] = {
    FlushState.UPLOADED: frozenset({FlushState.LINGERING}),
    FlushState.LINGERING: frozenset({FlushState.ASSEMBLING, FlushState.DUE}),
    FlushState.ASSEMBLING: frozenset({FlushState.DUE}),
    FlushState.DUE: frozenset({FlushState.REFUSED, FlushState.LEFT_OUT, FlushState.COMMITTED}),
    FlushState.REFUSED: frozenset({FlushState.ASSEMBLING, FlushState.DUE}),
    FlushState.LEFT_OUT: frozenset({FlushState.ASSEMBLING, FlushState.DUE}),
    FlushState.COMMITTED: frozenset(),
}


class Remaker(Protocol):
    """The uploader of a buffer, which can do so again while the table's gate is held."""

    async def encode_rest(self, flush: FinishedFlush, base: TableState) -> tuple[Action, ...]:
        """Upload what is ours to commit and in no file yet; return the actions that commit it."""

    async def upload_again(self, flush: FinishedFlush, base: TableState) -> None:
        """Put the whole buffer up anew, and change the flush so that it names the new files."""


@dataclass(slots=True, eq=False)
class FinishedFlush:
    """One buffer's files, uploaded and on their way into a version."""

    job: FlushJob
    began: float
    """The time when the flush began, in seconds of the monotonic clock."""
    files: PersistedFiles
    actions: tuple[Action, ...]
    base: TableState
    """The version that the files were made for, or have to be made anew for."""
    remaker: Remaker
    state: FlushState = FlushState.UPLOADED
    covered_to: int = -1
    """Operations up to this sequence are in other files already."""
    left_out: frozenset[int] = frozenset()
    """Sequences of operations that are not ours to commit any more."""

    @property
    def handle(self) -> BufferHandle:
        """The buffer."""
        return self.job.handle

    @property
    def table(self) -> TableBuffer:
        """The table that the buffer is of."""
        return self.job.table

    @property
    def partition(self) -> PartitionKey:
        """The partition that the files go into."""
        return self.job.handle.partition

    @property
    def expected_files(self) -> Sequence[Add] | None:
        """The partition's files in the version that these were made for; None where it had none."""
        return self.base.partitions.get(self.partition)

    def is_for(self, state: TableState) -> bool:
        """Whether the files are of that version of the table as a whole: in its folder."""
        return self.base.table_version == state.table_version

    def applied_key(self, ingester_id: str) -> AppliedKey:
        """The key under which a version says how far the buffer's operations are applied."""
        return (ingester_id, self.handle.epoch, *self.partition)

    def become(self, state: FlushState) -> None:
        """Go on to another state; IllegalTransition where the table does not allow it."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"a flush that is {self.state.value} became {state.value}")
        self.state = state

    def refuse(self, base: TableState | None = None) -> None:
        """Have the files made anew, on top of version ``base`` at least where that is given."""
        self.become(FlushState.REFUSED)
        if base is not None:
            self.base = base


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
