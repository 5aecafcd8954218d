"""The sequences of one origin into one table that one process has taken.

Law of this file: they rise in log order, so a position in the log divides those in files from those
in buffers. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Hashable, Sequence

from persist.manifest.actions import PartitionKey
from persist.manifest.origins import NO_END, Process, Run, end_of
from persist.table import TableKey

_TRIM_FROM = 4096


class Tenure:
    """One process's share of an origin's sequences into a table.

    It knows what it has applied, and which buffers still hold it.
    """

    __slots__ = (
        "_head",
        "_holders",
        "_op_seqs",
        "_sequences",
        "_trimmed",
        "ahead",
        "applied",
        "carried",
        "end",
        "epoch",
        "first",
        "origin",
        "owner_id",
        "table",
    )

    def __init__(self, origin: str, table: TableKey, first: int, process: Process) -> None:
        self.origin = origin
        self.table = table
        self.first = first
        self.end = NO_END
        """The first sequence above that another process has taken."""
        self.owner_id, self.epoch = process
        self.applied = -1
        self.ahead: dict[PartitionKey, int] = {}
        """Per partition, what is in files beyond ``applied`` that this process never had."""
        self.carried = False
        """Known from the head of a segment alone: of an epoch up to that of the segment."""
        self._sequences = array("q")
        self._op_seqs = array("Q")
        self._head = 0
        self._trimmed: int | None = None
        self._holders: dict[Hashable, int] = {}

    @property
    def process(self) -> Process:
        """The process whose share it is."""
        return self.owner_id, self.epoch

    @property
    def last(self) -> int:
        """The highest applied sequence that is still this process's."""
        return min(self.applied, self.end - 1)

    def end_in(self, runs: list[Run]) -> int:
        """The first sequence that is not the process's any more, by what a version says."""
        return end_of(runs, self.first, self.process)

    def note_applied(self, sequence: int, op_seq: int, holders: Sequence[Hashable]) -> None:
        """An operation is in the buffers ``holders`` (none: already in files)."""
        self.applied = max(self.applied, sequence)
        self._sequences.append(sequence)
        self._op_seqs.append(op_seq)
        for holder in holders:
            self._holders.setdefault(holder, op_seq)
        if self.ahead and sequence >= max(self.ahead.values()):
            self.ahead = {}

    def restore(self, sequence: int) -> None:
        """All up to this sequence was in files when a segment was begun."""
        self.carried = not self._op_seqs
        self.note_applied(sequence, self._op_seqs[-1] if self._op_seqs else 0, ())

    def note_released(self, holder: Hashable) -> None:
        """The rows of a buffer are in committed files."""
        self._holders.pop(holder, None)

    def first_waiting(self, besides: Collection[Hashable] = ()) -> int | None:
        """The lowest sequence that is in a buffer other than these; None when none is."""
        index = self._waiting_from(besides)
        return self._sequences[index] if index < len(self._sequences) else None

    def last_below(self, limit: int, besides: Collection[Hashable] = ()) -> int | None:
        """The highest sequence below ``limit`` that is in files with all before it.

        Args:
            besides: buffers that count as in files.
        """
        index = self._waiting_from(besides)
        index = bisect_left(self._sequences, limit, self._head, max(index, self._head))
        return self._sequences[index - 1] if index > self._head else self._trimmed

    def op_seqs(self, from_sequence: int, first_seq: int, last_seq: int) -> list[int]:
        """The log's sequences, within bounds, of what the origin calls ``from_sequence`` or more.

        Complete for operations that are in buffers.
        """
        start = bisect_left(self._sequences, from_sequence, self._head)
        found = self._op_seqs[start:]
        return [seq for seq in found if first_seq <= seq <= last_seq]

    def trim(self, durable: int) -> None:
        """Forget operations that nobody asks about: in files, as all up to ``durable``."""
        end = self._waiting_from(())
        while self._head < end and self._sequences[self._head] <= durable:
            self._trimmed = self._sequences[self._head]
            self._head += 1
        if self._head > _TRIM_FROM and self._head * 2 > len(self._op_seqs):
            del self._op_seqs[: self._head], self._sequences[: self._head]
            self._head = 0

    def adjust(self, run: Run | None, ingester_id: str) -> bool:
        """Find out whose it was; False where the run that it is of is not ours."""
        if run is not None and run.owner is not None:
            owner_id, epoch = run.owner
            if owner_id != ingester_id or epoch > self.epoch:
                return False
            self.first, self.epoch = run.first, epoch
        self.owner_id, self.carried = ingester_id, False
        return True

    def _waiting_from(self, besides: Collection[Hashable]) -> int:
        waiting = [seq for holder, seq in self._holders.items() if holder not in besides]
        if not waiting:
            return len(self._op_seqs)
        return bisect_left(self._op_seqs, min(waiting), self._head)
