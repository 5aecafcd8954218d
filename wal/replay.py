"""Replay: every record once, oldest first, with bounded memory.

Every payload is read into its own buffer from the caller's `allocate`, and checked again. The next
chunk is read in a thread while the caller uses this one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import trio
from crc32c import crc32c

from wal.disk import Disk
from wal.errors import LogDamaged
from wal.format import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    RecordHeader,
    RecordKind,
    decode_record_header,
    record_bytes,
)
from wal.recovery import FileSource
from wal.settings import SegmentFacts

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Payload bytes per chunk; a larger record is a chunk of its own. Two chunks exist at a time.
CHUNK_BYTES = 8 << 20
# The window for headers and small records. Payloads that are not much smaller are read past it.
WINDOW_BYTES = 64 << 10
# The most records of a chunk, however small they are.
CHUNK_RECORDS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A record of the log. `payload` is the buffer that `allocate` returned, filled.

    `first_seq` is the sequence of the first of its `operations`; for other kinds the next
    operation's. `epoch` is the one that the record was written under.
    """

    kind: int
    first_seq: int
    payload: Any
    segment: int
    offset: int
    epoch: int
    operations: int = 1


class ReplayCursor:
    """Reads the segments one after another. Blocking; one thread at a time."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        segments: Sequence[SegmentFacts],
        allocate: Callable[[int], WriteableBuffer],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = list(segments)
        self._allocate = allocate
        self._offset: int | None = None

    def next_chunk(self) -> list[Record] | None:
        """Records of one segment, at least one; None at the end. LogDamaged as in recovery."""
        while self._segments:
            facts = self._segments[0]
            # Opened for every chunk, so that an abandoned replay leaves no file open.
            with FileSource(self._disk, self._directory / facts.file, WINDOW_BYTES) as source:
                records = self._read(source, facts)
            if records:
                return records
            del self._segments[0]
            self._offset = None
        return None

    def _read(self, source: FileSource, facts: SegmentFacts) -> list[Record]:
        offset = SEGMENT_HEADER_BYTES if self._offset is None else self._offset
        records: list[Record] = []
        taken = 0
        while taken < CHUNK_BYTES and len(records) < CHUNK_RECORDS and offset < facts.bytes:
            path = self._directory / facts.file
            header = decode_record_header(
                facts.number, offset, source.read(offset, RECORD_HEADER_BYTES)
            )
            if header is None:
                raise LogDamaged(path, offset, "the record that recovery found", "none")
            if header.kind == RecordKind.SEAL:
                offset = facts.bytes
                break
            if records and taken + header.length > CHUNK_BYTES:
                break
            payload = self._payload(source, path, offset, header)
            records.append(
                Record(
                    header.kind,
                    header.first_seq,
                    payload,
                    facts.number,
                    offset,
                    facts.epoch,
                    header.operations,
                )
            )
            taken += header.length
            offset += record_bytes(header.length)
        self._offset = offset
        return records

    def _payload(
        self, source: FileSource, path: Path, offset: int, header: RecordHeader
    ) -> WriteableBuffer:
        payload = self._allocate(header.length)
        source.read_into(payload, offset + RECORD_HEADER_BYTES)
        actual = crc32c(payload)
        if actual != header.payload_crc:
            expected = f"payload CRC-32C {header.payload_crc:08x}"
            raise LogDamaged(path, offset, expected, f"{actual:08x}")
        return payload


class RecordSource(Protocol):
    """Records in order; blocking, one thread at a time."""

    def next_chunk(self) -> list[Record] | None:
        """The next records, at least one; None at the end."""


class Chain:
    """The records of one source after the other."""

    def __init__(self, sources: Iterable[RecordSource]) -> None:
        self._sources = deque(sources)

    def next_chunk(self) -> list[Record] | None:
        while self._sources:
            if (chunk := self._sources[0].next_chunk()) is not None:
                return chunk
            self._sources.popleft()
        return None


def by_epoch(
    segments: Sequence[SegmentFacts],
    local: Callable[[Sequence[SegmentFacts]], RecordSource],
    others: Mapping[int, RecordSource],
) -> Iterator[RecordSource]:
    """Sources by rising epoch: in each, the segments on disk, then another source of that epoch."""
    left = deque(sorted(others))
    for epoch, facts in groupby(segments, key=lambda one: one.epoch):
        while left and left[0] < epoch:
            yield others[left.popleft()]
        yield local(list(facts))
    for other in left:
        yield others[other]


async def read_ahead(cursor: RecordSource) -> AsyncIterator[list[Record]]:
    """The cursor's chunks, each read while the caller uses the previous one.

    An abandoned iteration leaves at most one thread, which ends after its chunk.
    """
    ahead = _Ahead(cursor)
    while (chunk := await ahead.take()) is not None:
        ahead = _Ahead(cursor)
        yield chunk


class _Ahead:
    """A chunk being read."""

    def __init__(self, cursor: RecordSource) -> None:
        self._arrived = trio.Event()
        self._result: Any = None  # trio's outcome of the call: a value or an exception
        self._token = trio.lowlevel.current_trio_token()
        trio.lowlevel.start_thread_soon(cursor.next_chunk, self._deliver, "wal replay")

    def _deliver(self, result: Any) -> None:
        def arrive() -> None:
            self._result = result
            self._arrived.set()

        try:
            self._token.run_sync_soon(arrive)
        except trio.RunFinishedError:
            return  # the loop has ended

    async def take(self) -> list[Record] | None:
        await self._arrived.wait()
        chunk: list[Record] | None = self._result.unwrap()
        return chunk
