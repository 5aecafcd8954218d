"""One buffer's files, uploaded, until a committed version has them.

    UPLOADED ─▶ LINGERING ─┬──────────────▶ DUE ─┬─▶ COMMITTED
                           └─▶ ASSEMBLING ─▶┘ ▲  ├─▶ REFUSED ──┐ made anew by its partition
                                    ▲         │  └─▶ LEFT_OUT ─┤ as it is
                                    └─────────┴────────────────┘

Law of this file: values and their transitions. :mod:`ingester.tables.commit_schedule` decides when
one is taken, :mod:`ingester.tables.commit_batches` what becomes of it in a commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ingester.buffer import BufferHandle, FlushJob, IllegalTransition, PersistedFiles, TableBuffer
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
