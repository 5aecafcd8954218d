"""Forms groups: decided completely before a byte is written, counted only once they are written.
Pure.

`form_group` reads how far a segment is filled and takes entries off the queue. Only
`SegmentFill.book` changes the fill, after the write succeeded. A failed group therefore leaves no
trace: the next one takes the same sequences and the same place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from wal.entry import Entry, Preamble
from wal.format import (
    SEAL_RECORD_BYTES,
    SEGMENT_HEADER_BYTES,
    Body,
    RecordHeader,
    RecordKind,
    encode_record_header,
    record_bytes,
)

# A group ends at this size, so that its first entries do not wait for a long queue. At this size
# a sync costs little compared with the bytes.
GROUP_BYTES = 16 << 20
# Up to this much pending, probably one batch of each of several waiting clients, groups are parts.
FEW_BATCHES_BYTES = 4 << 20
PART_BYTES = 5 << 18
_WRITTEN_PER_S = 3 << 29


class Placed(NamedTuple):
    """A record and its offset."""

    offset: int
    header: RecordHeader
    body: Body


@dataclass(eq=False)
class LogGroup:
    """Entries that are written, synced, applied and answered together."""

    entries: list[Entry] = field(default_factory=list)
    records: list[Placed] = field(default_factory=list)
    preambles: set[Preamble] = field(default_factory=set)
    start: int = 0
    end: int = 0
    next_seq: int = 0
    began_s: float = 0.0
    """When the write began, on the monotonic clock; 0 before."""
    began_ns: int = 0
    """When the write began, in nanoseconds since 1970."""
    stored_ns: int = 0
    """When the group counted as written, in nanoseconds since 1970."""
    shipped: bool = False
    """Whether the store has it: its entries were in earlier groups of the local log."""

    def pieces(self, number: int) -> Iterator[bytes | memoryview]:
        """The bytes from `start` to `end`, for segment `number`."""
        for offset, header, body in self.records:
            yield encode_record_header(number, offset, header)
            yield from body.pieces


@dataclass(eq=False)
class SegmentFill:
    """The content of the open segment. `size` is its allocation; the segment may grow beyond."""

    number: int
    size: int
    next_seq: int
    end: int = SEGMENT_HEADER_BYTES
    synced_to: int = SEGMENT_HEADER_BYTES
    records: int = 0
    entries: int = 0
    operations: int = 0
    first_seq: int = 0
    preambles: set[Preamble] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.first_seq = self.next_seq

    def book(self, group: LogGroup) -> None:
        """Count a group that stands in the file."""
        assert group.start == self.end, "a group goes where the one before it ended"
        self.end = group.end
        self.size = max(self.size, group.end)
        self.records += len(group.records)
        self.entries += len(group.entries)
        self.operations += group.next_seq - self.next_seq
        self.next_seq = group.next_seq
        self.preambles |= group.preambles


def group_bytes(waiting: int, sync_s: float) -> int:
    """The size at which a group ends although more is pending.

    With few batches pending, the first are answered while the others are written, so their clients
    can prepare the next ones. Not if a sync takes as long as writing a part, or if much is pending.
    """
    if waiting > FEW_BATCHES_BYTES:
        return GROUP_BYTES
    return min(GROUP_BYTES, max(PART_BYTES, int(sync_s * _WRITTEN_PER_S)))


def form_group(pending: deque[Entry], fill: SegmentFill, most: int = GROUP_BYTES) -> LogGroup:
    """Take from the front of `pending` what goes into the segment next, in order.

    Sets ``seq`` and ``segment`` of each entry. Stops at `most` bytes, and before an entry that does
    not fit with the seal after it. An entry larger than a segment gets its own, and the file grows:
    a segment without entries always takes one. An empty group therefore means that the next segment
    must be opened.
    """
    group = LogGroup(start=fill.end, end=fill.end, next_seq=fill.next_seq)
    room = fill.size - SEAL_RECORD_BYTES
    while pending and group.end - group.start < most:
        entry = pending[0]
        # A dict keeps the order in which the entry names them.
        fresh = [
            one
            for one in dict.fromkeys(entry.preambles)
            if one not in fill.preambles and one not in group.preambles
        ]
        need = entry.stored_bytes + sum(one.stored_bytes for one in fresh)
        if group.end + need > room and (group.entries or fill.entries):
            break
        pending.popleft()
        for preamble in fresh:
            group.preambles.add(preamble)
            place(group, preamble.kind, preamble.body, fill.synced_to)
        entry.seq, entry.segment = group.next_seq, fill.number
        group.entries.append(entry)
        place(group, entry.kind, entry.body, fill.synced_to, entry.operations)
        if entry.kind == RecordKind.OPERATION:
            group.next_seq += entry.operations
    return group


def place(group: LogGroup, kind: int, body: Body, synced_to: int, operations: int = 1) -> None:
    """Append a record to a group."""
    header = RecordHeader(kind, body.length, group.next_seq, synced_to, body.crc, operations)
    group.records.append(Placed(group.end, header, body))
    group.end += record_bytes(body.length)
