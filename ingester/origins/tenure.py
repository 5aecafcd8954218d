"""One process's tenure of an origin in a table: the sequences that are its own.

They rise in log order, so a position in the log separates those in files from those in buffers.
Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Hashable, Iterator, Sequence

from persist.manifest.actions import Content, PartitionKey, SequenceContent
from persist.manifest.origins import MOST_CONTENTS, NO_END, Process, SequenceRun, end_of
from persist.table import TableKey

_TRIM_FROM = 4096
_UNKNOWN = Content(-1, 0)


class Tenure:
    """The sequences that a process has applied, and the buffers that still contain them."""

    __slots__ = (
        "_digests",
        "_head",
        "_holders",
        "_local",
        "_op_seqs",
        "_row_counts",
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
        """First sequence above that belongs to another process."""
        self.process = process
        self.applied = -1
        self.ahead: dict[PartitionKey, int] = {}
        """Per partition, the last sequence in files beyond ``applied`` that this daemon never
        had."""
        self.carried = False
        """Whether only a segment head reports it: its epoch is that one or an earlier one."""
        self._sequences = array("q")
        self._op_seqs = array("Q")
        self._row_counts = array("q")
        self._digests = array("Q")
        self._head = 0
        self._trimmed: int | None = None
        self._holders: dict[Hashable, int] = {}
        """The first operation that is in no file, by buffer."""
        self._local: dict[Hashable, int] = {}
        """The first operation that is in no file and no log object, by buffer."""

    @property
    def last(self) -> int:
        """Highest applied sequence that is still this process's; -1 if none is."""
        last = min(self.applied, self.end - 1)
        return last if last >= self.first else -1

    def end_in(self, runs: list[SequenceRun]) -> int:
        """Return the first sequence that is no longer the process's, by a version's runs."""
        return end_of(runs, self.first, self.process)

    def note_applied(
        self,
        sequence: int,
        op_seq: int,
        holders: Sequence[Hashable],
        content: Content | None = None,
        *,
        in_store: bool = False,
    ) -> None:
        """Record an operation in the buffers ``holders`` (none: already in files).

        Args:
            in_store: whether a log object has it.
        """
        self.applied = max(self.applied, sequence)
        self._sequences.append(sequence)
        self._op_seqs.append(op_seq)
        rows, digest = _UNKNOWN if content is None else content
        self._row_counts.append(rows)
        self._digests.append(digest)
        for holder in holders:
            self._holders.setdefault(holder, op_seq)
            if not in_store:
                self._local.setdefault(holder, op_seq)
        if self.ahead and sequence >= max(self.ahead.values()):
            self.ahead = {}

    def restore(self, sequence: int) -> None:
        """Record that everything up to this sequence was in files when a segment began."""
        self.carried = not self._op_seqs
        self.note_applied(sequence, self._op_seqs[-1] if self._op_seqs else 0, ())

    def note_released(self, holder: Hashable) -> None:
        """Record that a buffer's rows are in committed files."""
        self._holders.pop(holder, None)
        self._local.pop(holder, None)

    def first_waiting(
        self, besides: Collection[Hashable] = (), *, for_store: bool = False
    ) -> int | None:
        """Return the lowest sequence in a buffer other than these.

        Args:
            for_store: only of operations that no log object has.
        """
        index = self._waiting_from(besides, for_store=for_store)
        return self._sequences[index] if index < len(self._sequences) else None

    def last_below(
        self, limit: int, besides: Collection[Hashable] = (), *, in_store: bool = False
    ) -> int | None:
        """Return the highest sequence below ``limit`` that is in files with all before it.

        Sequences that another process took over were left out of this daemon's files and do not
        count.

        Args:
            besides: buffers that count as in files.
            in_store: whether log objects count as files.
        """
        index = self._waiting_from(besides, for_store=in_store)
        limit = min(limit, self.end)
        index = bisect_left(self._sequences, limit, self._head, max(index, self._head))
        return self._sequences[index - 1] if index > self._head else self._trimmed

    def op_seqs(self, from_sequence: int, first_seq: int, last_seq: int) -> list[int]:
        """Return the log sequences, within bounds, of the origin's sequences from ``from_sequence``
        on.

        Complete for operations that are buffered.
        """
        start = bisect_left(self._sequences, from_sequence, self._head)
        found = self._op_seqs[start:]
        return [seq for seq in found if first_seq <= seq <= last_seq]

    def content(self, sequence: int) -> Content | None:
        """Return what an applied sequence contained, if that is known."""
        at = bisect_left(self._sequences, sequence)
        if at == len(self._sequences) or self._sequences[at] != sequence:
            return None
        return self._content_at(at)

    def contents(self, upto: int) -> Iterator[SequenceContent]:
        """Return the newest known contents up to a sequence, and the first, by sequence."""
        upto = min(upto, self.end - 1)
        end = bisect_right(self._sequences, upto)
        start = max(0, end - MOST_CONTENTS)
        for at in (*range(min(1, start)), *range(start, end)):
            if (content := self._content_at(at)) is not None:
                yield SequenceContent(self._sequences[at], *content)

    def _content_at(self, at: int) -> Content | None:
        rows = self._row_counts[at]
        return None if rows < 0 else Content(rows, self._digests[at])

    def trim(self, durable: int) -> None:
        """Forget operations up to ``durable``, which are no longer looked up; the newest stay,
        for what they contained.
        """
        end = self._waiting_from(())
        while self._head < end and self._sequences[self._head] <= durable:
            self._trimmed = self._sequences[self._head]
            self._head += 1
        gone = self._head - MOST_CONTENTS
        if gone > _TRIM_FROM and gone * 2 > len(self._op_seqs):
            for each in (self._op_seqs, self._sequences, self._row_counts, self._digests):
                del each[:gone]
            self._head -= gone

    def adjust(self, run: SequenceRun | None, ingester_id: str) -> bool:
        """Determine the epoch of a carried tenure; False if the run is not this daemon's."""
        self.carried, epoch = False, self.process[1]
        if run is not None and run.owner is not None:
            if run.owner[0] != ingester_id or run.owner[1] > epoch:
                return False
            self.first, epoch = run.first, run.owner[1]
        self.process = (ingester_id, epoch)
        return True

    def _waiting_from(self, besides: Collection[Hashable], *, for_store: bool = False) -> int:
        holders = self._local if for_store else self._holders
        waiting = [seq for holder, seq in holders.items() if holder not in besides]
        if not waiting:
            return len(self._op_seqs)
        return bisect_left(self._op_seqs, min(waiting), self._head)
