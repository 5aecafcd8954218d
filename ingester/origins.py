"""What each origin has written: duplicates, what survives a crash, what is in object storage.

Law of this file: sequences of an origin rise. Per (origin, table) the highest applied sequence
decides what is a duplicate; an operation under way is neither applied nor unknown, and its repeat
waits for its fate. An origin's durable sequence is the highest one such that it and everything
before it has left the buffers for committed files.

Loop only. One pair of integers is kept per operation of an origin until its rows are in files.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

TableKey = tuple[str, str]
Fate = Callable[[BaseException | None], None]


@dataclass(slots=True)
class _Stream:
    """Sequences of one origin into one table."""

    applied: int = -1
    under_way: dict[int, list[Fate]] = field(default_factory=dict)


class Origin:
    """One origin over all tables."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.memory_sequence: int | None = None
        self.answered = False
        self.open_streams = 0
        self._settled: int | None = None
        self._origin_seqs = array("q")
        self._op_seqs = array("Q")
        self._head = 0
        self._holders: dict[Hashable, int] = {}
        self._durable: int | None = None
        self._stale = False

    def note_applied(self, origin_seq: int, op_seq: int, holders: Sequence[Hashable]) -> None:
        """An operation of this origin is in the buffers ``holders`` (none: already in files)."""
        if self.memory_sequence is None or origin_seq > self.memory_sequence:
            self.memory_sequence = origin_seq
        self._origin_seqs.append(origin_seq)
        self._op_seqs.append(op_seq)
        for holder in holders:
            self._holders.setdefault(holder, op_seq)
        if not holders:
            self._stale = True

    def note_released(self, holder: Hashable) -> None:
        """The rows of a buffer are in committed files."""
        if self._holders.pop(holder, None) is not None:
            self._stale = True

    @property
    def durable_sequence(self) -> int | None:
        """The highest sequence up to which everything is in object storage."""
        if self._stale:
            self._settle()
        return self._durable

    def _settle(self) -> None:
        self._stale = False
        waiting_from = min(self._holders.values(), default=None)
        head = self._head
        while head < len(self._op_seqs) and (
            waiting_from is None or self._op_seqs[head] < waiting_from
        ):
            seq = self._origin_seqs[head]
            self._settled = seq if self._settled is None else max(seq, self._settled)
            head += 1
        self._head = head
        if head > 4096 and head * 2 > len(self._op_seqs):
            del self._op_seqs[:head], self._origin_seqs[:head]
            self._head = 0
        waiting = self._origin_seqs[self._head :]
        if self._settled is not None and (not waiting or self._settled < min(waiting)):
            self._durable = self._settled

    def restore(self, sequence: int) -> None:
        """Carried over from an earlier segment: in files, unless the log still has it."""
        if self._settled is None or sequence > self._settled:
            self._settled = sequence
        if self.memory_sequence is None or sequence > self.memory_sequence:
            self.memory_sequence = sequence
        self._stale = True


class Origins:
    """All origins the daemon knows."""

    def __init__(self) -> None:
        self._origins: dict[str, Origin] = {}
        self._streams: dict[tuple[str, TableKey], _Stream] = {}

    def get(self, name: str) -> Origin:
        """The origin, made when it is new."""
        origin = self._origins.get(name)
        if origin is None:
            origin = self._origins[name] = Origin(name)
        return origin

    def find(self, name: str) -> Origin | None:
        """The origin, if it ever wrote."""
        return self._origins.get(name)

    def __iter__(self) -> Iterator[Origin]:
        return iter(list(self._origins.values()))

    def is_applied(self, name: str, table: TableKey, sequence: int) -> bool:
        """Whether this sequence is a duplicate of something durable."""
        stream = self._streams.get((name, table))
        return stream is not None and sequence <= stream.applied

    def begin(self, name: str, table: TableKey, sequence: int) -> bool:
        """Note an operation under way; False if the same one already is."""
        stream = self._stream(name, table)
        if sequence in stream.under_way:
            return False
        stream.under_way[sequence] = []
        return True

    def await_first(self, name: str, table: TableKey, sequence: int, fate: Fate) -> None:
        """Call ``fate`` when the first copy, which is under way, is durable or has failed."""
        self._stream(name, table).under_way[sequence].append(fate)

    def end(
        self, name: str, table: TableKey, sequence: int, error: BaseException | None
    ) -> list[Fate]:
        """The first copy is durable (``error`` is None) or never will be; those who wait for it."""
        stream = self._stream(name, table)
        if error is None:
            stream.applied = max(stream.applied, sequence)
        return stream.under_way.pop(sequence, [])

    def note_applied(
        self, name: str, table: TableKey, sequence: int, op_seq: int, holders: Sequence[Hashable]
    ) -> None:
        """An operation is applied to the buffers, or was found in the log at replay."""
        stream = self._stream(name, table)
        stream.applied = max(stream.applied, sequence)
        self.get(name).note_applied(sequence, op_seq, holders)

    def restore(self, name: str, table: TableKey, sequence: int) -> None:
        """Take over what an earlier segment's carried record says."""
        stream = self._stream(name, table)
        stream.applied = max(stream.applied, sequence)
        self.get(name).restore(sequence)

    def carried(self) -> list[tuple[str, str, str, int]]:
        """(origin, namespace, table, applied sequence) for the head of a new segment."""
        return [
            (name, table[0], table[1], stream.applied)
            for (name, table), stream in self._streams.items()
            if stream.applied >= 0
        ]

    def _stream(self, name: str, table: TableKey) -> _Stream:
        key = (name, table)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream()
        return stream
