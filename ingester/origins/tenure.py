"""The tenure of one process: the sequences of an origin into a table that are its own.

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
    """Knows what its process has applied, and which buffers still hold it."""

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
        "first",
        "origin",
        "process",
        "table",
    )

    def __init__(self, origin: str, table: TableKey, first: int, process: Process) -> None:
        self.origin = origin
        self.table = table
        self.first = first
        self.end = NO_END
        """The first sequence above that belongs to another process."""
        self.process = process
        self.applied = -1
        self.ahead: dict[PartitionKey, int] = {}
        """The last sequence, per partition, in files beyond ``applied`` that we never had."""
        self.carried = False
        """Whether only a segment's head tells of it: its epoch is that or an earlier one."""
        self._sequences = array("q")
        self._op_seqs = array("Q")
        self._head = 0
        self._trimmed: int | None = None
        self._holders: dict[Hashable, int] = {}

    @property
    def last(self) -> int:
        """The highest applied sequence that is still this process's; -1 where nothing of it is."""
        last = min(self.applied, self.end - 1)
        return last if last >= self.first else -1

    def end_in(self, runs: list[Run]) -> int:
        """Find the first sequence that is not the process's any more, by a version's runs."""
        return end_of(runs, self.first, self.process)

    def note_applied(self, sequence: int, op_seq: int, holders: Sequence[Hashable]) -> None:
        """Note an operation that is in the buffers ``holders`` (none: already in files)."""
        self.applied = max(self.applied, sequence)
        self._sequences.append(sequence)
        self._op_seqs.append(op_seq)
        for holder in holders:
            self._holders.setdefault(holder, op_seq)
        if self.ahead and sequence >= max(self.ahead.values()):
            self.ahead = {}

    def restore(self, sequence: int) -> None:
        """Note that all up to this sequence was in files when a segment was begun."""
        self.carried = not self._op_seqs
        self.note_applied(sequence, self._op_seqs[-1] if self._op_seqs else 0, ())

    def note_released(self, holder: Hashable) -> None:
        """Note that the rows of a buffer are in committed files."""
        self._holders.pop(holder, None)

    def first_waiting(self, besides: Collection[Hashable] = ()) -> int | None:
        """Find the lowest sequence that is in a buffer other than these."""
        index = self._waiting_from(besides)
        return self._sequences[index] if index < len(self._sequences) else None

    def last_below(self, limit: int, besides: Collection[Hashable] = ()) -> int | None:
        """Find the highest sequence below ``limit`` that is in files with all before it.

        What another process has by now was left out of our files, and is none of them.

        Args:
            besides: buffers that count as in files.
        """
        index, limit = self._waiting_from(besides), min(limit, self.end)
        index = bisect_left(self._sequences, limit, self._head, max(index, self._head))
        return self._sequences[index - 1] if index > self._head else self._trimmed

    def op_seqs(self, from_sequence: int, first_seq: int, last_seq: int) -> list[int]:
        """Find the log's sequences, within bounds, of the origin's from ``from_sequence`` on.

        Complete for operations that are in buffers.
        """
        start = bisect_left(self._sequences, from_sequence, self._head)
        found = self._op_seqs[start:]
        return [seq for seq in found if first_seq <= seq <= last_seq]

    def trim(self, durable: int) -> None:
        """Forget the operations up to ``durable``, which nobody asks about any more."""
        end = self._waiting_from(())
        while self._head < end and self._sequences[self._head] <= durable:
            self._trimmed = self._sequences[self._head]
            self._head += 1
        if self._head > _TRIM_FROM and self._head * 2 > len(self._op_seqs):
            del self._op_seqs[: self._head], self._sequences[: self._head]
            self._head = 0

    def adjust(self, run: Run | None, ingester_id: str) -> bool:
        """Find out the epoch of a carried tenure; False where the run is not ours."""
        self.carried, epoch = False, self.process[1]
        if run is not None and run.owner is not None:
            if run.owner[0] != ingester_id or run.owner[1] > epoch:
                return False
            self.first, epoch = run.first, run.owner[1]
        self.process = (ingester_id, epoch)
        return True

    def _waiting_from(self, besides: Collection[Hashable]) -> int:
        waiting = [seq for holder, seq in self._holders.items() if holder not in besides]
        if not waiting:
            return len(self._op_seqs)
        return bisect_left(self._op_seqs, min(waiting), self._head)
