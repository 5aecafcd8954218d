"""When a finished flush is committed, and with which others: its states, the schedule, the gate.

    UPLOADED ─▶ LINGERING ─┬──────────────▶ DUE ─┬─▶ COMMITTED
                           └─▶ ASSEMBLING ─▶┘ ▲  ├─▶ REFUSED ──┐ made again by its partition
                                    ▲         │  └─▶ LEFT_OUT ─┤ as it is
                                    └─────────┴────────────────┘

    finish ─▶ LINGERING, until ─┬─ no other flush of the table is expected      ┐
                                ├─ enough have come, in number or in bytes      ├─▶ ASSEMBLING or
                                DUE
                                └─ the first of them has waited :data:`LINGER_S` ┘
    ASSEMBLING, until the last of its atomic flush has come, or one cannot come ──▶ DUE
    take: all that are DUE; without a primary key also those that linger

A commit costs a store about the same for one file as for a hundred, and each version is kept for
a day: 10,000 partitions flushed at once would make thousands of versions. So a flush lingers
while others of its table are expected; a lone one is due at once. An atomic flush is taken whole
or not at all.

Flushes of a table without a primary key are taken in the order of their finish. Two atomic
flushes never wait for each other, because a partition's buffers arrive in the order of their
freeze (tests/tables).
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
    """The states of an uploaded buffer until a version contains it."""

    UPLOADED = "uploaded"
    """The buffer's files are in the store."""
    LINGERING = "lingering"
    """The flush waits for other buffers of its table."""
    ASSEMBLING = "assembling"
    """The flush waits for the rest of its atomic flush."""
    DUE = "due"
    """The next commit takes the flush."""
    REFUSED = "refused"
    """The table does not accept the files: they must be made again."""
    LEFT_OUT = "left out"
    """The commit left it out because another flush of its atomic flush was refused."""
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
    """The uploader of a buffer, which can upload again while the table's gate is held."""

    async def encode_rest(self, flush: FinishedFlush, base: TableState) -> tuple[Action, ...]:
        """Upload what is this daemon's to commit and in no file yet; return the actions that
        commit it.
        """

    async def upload_again(self, flush: FinishedFlush, base: TableState) -> None:
        """Upload the whole buffer again and update the flush with the new files."""


@dataclass(slots=True, eq=False)
class FinishedFlush:
    """A buffer whose files are uploaded and not committed yet."""

    job: FlushJob
    began: float
    """When the flush began, by the monotonic clock."""
    files: PersistedFiles
    actions: tuple[Action, ...]
    base: TableState
    """The version that the files were made for, or must be made again for."""
    remaker: Remaker
    state: FlushState = FlushState.UPLOADED
    covered_to: int = -1
    """Operations up to this sequence are in other files already."""
    left_out: frozenset[int] = frozenset()
    """Sequences of operations that are no longer this daemon's to commit."""

    @property
    def handle(self) -> BufferHandle:
        return self.job.handle

    @property
    def table(self) -> TableBuffer:
        return self.job.table

    @property
    def partition(self) -> PartitionKey:
        return self.job.handle.partition

    @property
    def expected_files(self) -> Sequence[Add] | None:
        """The partition's files in the base version; None if it had none."""
        return self.base.partitions.get(self.partition)

    def is_for(self, state: TableState) -> bool:
        """Return whether the files are in the folder of that table version."""
        return self.base.table_version == state.table_version

    def applied_key(self, ingester_id: str) -> AppliedKey:
        """Return the key under which a version says how far the buffer's operations are applied."""
        return (ingester_id, self.handle.epoch, *self.partition)

    def become(self, state: FlushState) -> None:
        """Change the state; IllegalTransition if :data:`TRANSITIONS` does not allow it."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"a flush cannot go from {self.state.value} to {state.value}")
        self.state = state

    def refuse(self, base: TableState | None = None) -> None:
        """Request that the files be made again, on top of at least version ``base`` if given."""
        self.become(FlushState.REFUSED)
        if base is not None:
            self.base = base


ENOUGH = 128
"""About this many flushes make a commit worthwhile."""
ENOUGH_BYTES = 32 << 20
"""About this many bytes make a commit worthwhile, because the buffers stay in memory until then."""


class CommitSchedule:
    """Decides which finished flushes of one table go into its next commit. Pure."""

    def __init__(self, on_change: Callable[[FinishedFlush], None]) -> None:
        """``on_change``: called with each flush that changes its state."""
        self._on_change = on_change
        self._expected: set[BufferHandle] = set()
        self._lingering: list[FinishedFlush] = []
        self._lingering_bytes = 0
        self._assembling: dict[AtomicFlush, list[FinishedFlush]] = {}
        self._due: list[FinishedFlush] = []

    def expect(self, job: FlushJob) -> None:
        """Expect a frozen buffer: earlier flushes linger for it."""
        self._expected.add(job.handle)

    def withdraw(self, job: FlushJob) -> None:
        """Stop expecting a buffer that does not come, or not soon."""
        self._expected.discard(job.handle)
        self._end_linger_if_due()

    def finish(self, flush: FinishedFlush) -> None:
        """Add an uploaded flush at its place in the commit order."""
        self._expected.discard(flush.handle)
        self._lingering.append(flush)
        self._lingering_bytes += flush.handle.nbytes
        self._become(flush, FlushState.LINGERING)
        self._end_linger_if_due()

    def end_linger(self) -> None:
        """End the waiting of all lingering flushes."""
        lingering, self._lingering, self._lingering_bytes = self._lingering, [], 0
        for flush in lingering:
            self.assemble(flush)

    def assemble(self, flush: FinishedFlush) -> None:
        """Make a flush due, together with the rest of its atomic flush once that is complete.

        Also called for flushes that a commit left out, or that were made again after a refusal.
        """
        atomic = flush.job.atomic
        if atomic is None or atomic.dissolved:
            self._make_due([flush])
            return
        self._become(flush, FlushState.ASSEMBLING)
        here = self._assembling.setdefault(atomic, [])
        here.append(flush)
        if len(here) == len(atomic.members):
            # Removed before they are taken: those that a commit leaves out are assembled again.
            self._make_due(self._assembling.pop(atomic))

    def dissolve(self, job: FlushJob) -> bool:
        """Separate an atomic flush because one of its buffers cannot be flushed.

        Returns:
            Whether the others would have waited for it.
        """
        if job.atomic is None or job.atomic.dissolved:
            return False
        job.atomic.dissolved = True
        self._make_due(self._assembling.pop(job.atomic, []))
        return True

    def take(self, *, keyed: bool) -> list[FinishedFlush]:
        """Return the due flushes in order, for the next commit.

        Args:
            keyed: whether the table has a primary key. Without one, lingering flushes are taken
                too.
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
    """Return the flushes of a batch whose atomic flush is complete in it."""
    here = {flush.handle for flush in batch}
    return [
        flush
        for flush in batch
        if (atomic := flush.job.atomic) is None
        or atomic.dissolved
        or here.issuperset(atomic.members)
    ]


LINGER_S = 5.0
"""Longest wait for others, in seconds; even a slower store makes at most 12 versions a minute."""


class CommitGate:
    """Serialises the changes of one table's manifest: ``lock`` protects it and ``schedule``."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.schedule = CommitSchedule(self._wake)
        self._waiting: dict[FinishedFlush, trio.Event] = {}
        self._changed = trio.Event()

    async def until_due(self, flush: FinishedFlush) -> None:
        """Return when a finished flush should be committed, or was committed along with others."""
        with trio.move_on_after(LINGER_S):
            await self._until_not(flush, FlushState.LINGERING)
        if flush.state is FlushState.LINGERING:
            self.schedule.end_linger()
        await self._until_not(flush, FlushState.ASSEMBLING)

    async def take_further(self, batch: list[FinishedFlush]) -> list[FinishedFlush]:
        """Wait for flushes that finish after those of a batch. Only without a primary key.

        Any of them is taken, not only an expected one, which may be queued behind more buffers
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
