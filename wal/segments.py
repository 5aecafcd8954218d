"""The log's segments: the sealed ones, the open one and the next, with rotation and pruning.

All file access runs in the log's own threads, so that other threads' work never delays a commit. A
rotation has these steps, and each leaves the log whole::

    next one preallocated -> old one sealed -> carry() called, next one published -> it is open
                                                                                     old one trimmed

If no file can be prepared (a full disk) the old segment stays open. If publishing fails after the
seal, no segment is open, and the next commit tries again. Trimming takes longer than the rest of a
rotation, and no caller waits for it. Segments are deleted in ascending order, each durably: a gap
would be damage (tests/wal/test_pruning.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
import trio

from wal.disk import Disk
from wal.errors import from_os_error
from wal.format import LogIdentity, SegmentHeader, segment_name
from wal.group import LogGroup
from wal.segment import InThread, OpenSegment, PreallocatedFile, Preallocation, publish, remove
from wal.settings import LogSettings, Recovered, SegmentFacts

if TYPE_CHECKING:
    from typing_extensions import Buffer

_GENTLY_MOST = 4
"""With more segments to delete than this, freeing the room quickly comes first."""


class SealedSegments:
    """The sealed segments, from their seal to their deletion. Called on the loop.

    Args:
        busy: whether groups are expected; deletions then give way to them.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        preallocation: Preallocation,
        in_thread: InThread,
        busy: Callable[[], bool],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._preallocation = preallocation
        self._in_thread = in_thread
        self._busy = busy
        self.facts: dict[int, SegmentFacts] = {}
        """The facts of each segment, by its number."""
        self._untrimmed: list[OpenSegment] = []
        self._uncut = set[int]()
        """Untrimmed segments, including the one being trimmed: their files cannot be reused."""
        self._trim_wanted = trio.Event()
        self._prune_lock = trio.Lock()

    @property
    def nbytes(self) -> int:
        """The bytes of all segments, each up to the end of its last record."""
        return sum(one.bytes for one in self.facts.values())

    def adopt(self, found: Iterable[SegmentFacts]) -> None:
        """Take over the segments that recovery found, all trimmed."""
        self.facts = {facts.number: facts for facts in found}

    def add(self, segment: OpenSegment, facts: SegmentFacts) -> None:
        """Take over a segment that was just sealed; it is trimmed after `trim_soon`."""
        self.facts[facts.number] = facts
        self._uncut.add(facts.number)
        self._untrimmed.append(segment)

    async def prune(self, keep_from_segment: int) -> list[int]:
        """Delete the segments below that number, ascending, and return their numbers.

        Raises:
            LogFull, LogWriteFailed: the disk refused; the segments before it are deleted.
            LogFailed: the folder could not be synced.
        """
        async with self._prune_lock:  # two at a time could delete later segments first
            unneeded = [number for number in sorted(self.facts) if number < keep_from_segment]
            gently = len(unneeded) <= _GENTLY_MOST
            for number in unneeded:
                await self._in_thread(partial(self._remove, number, gently))
        return unneeded

    def _remove(self, number: int, gently: bool) -> None:
        facts = self.facts.pop(number)
        try:
            useful = number not in self._uncut and self._busy()
            keep = partial(self._preallocation.keep, facts.bytes) if useful else None
            remove(self._disk, self._directory / facts.file, lambda: gently and self._busy(), keep)
        except OSError as exc:
            self.facts[number] = facts
            raise from_os_error(exc, f"deleting {facts.file}") from exc

    def trim_soon(self) -> None:
        """Let `run` trim the segments sealed so far."""
        self._trim_wanted.set()

    async def run(self) -> None:
        """Trim segments once others are open; never returns."""
        while True:
            await self._trim_wanted.wait()
            self._trim_wanted = trio.Event()
            await self.trim()

    async def trim(self) -> None:
        """Cut every sealed segment to its length, and close it."""
        # Shielded, so that no segment is taken from the list and forgotten; bounded by the disk.
        with trio.CancelScope(shield=True):
            while self._untrimmed:
                segment = self._untrimmed.pop(0)
                await self._in_thread(segment.trim)
                self._uncut.discard(segment.fill.number)

    def abandon(self) -> None:
        """Close untrimmed segments as they are, for the next start."""
        for segment in self._untrimmed:
            segment.abandon()
        self._untrimmed.clear()


Carry = Callable[[], Sequence[tuple[int, Sequence["Buffer"]]]]
T = TypeVar("T")
log = structlog.get_logger("wal")

_THREADS = 5  # a rotation, a preallocation, a trim, a prune and a timed sync
FAST_S = 0.25
"""A segment that is half full this soon is followed by one that is not zeroed: zeros would take a
third of the disk's bandwidth, and large groups do not need them.
"""
BUSY_S = 1.0
"""After a group, others are expected for this time."""


class SegmentSet:
    """The log's files. Called on the loop; `write` and `book` in the writing thread.

    One task rotates, and only while nothing is being appended.
    """

    def __init__(self, disk: Disk, directory: Path, settings: LogSettings, carry: Carry) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._carry = carry
        self._limiter = trio.CapacityLimiter(_THREADS)
        self._identity = LogIdentity("", "", 0)
        self._begun: Callable[[], None] | None = None
        self._next_number = 1
        self._next_seq = 1
        self._preallocation = Preallocation(disk, directory, settings.segment_bytes, self.in_thread)
        # Held during a timed sync and a seal of the open file.
        self._file_lock = trio.Lock()
        self.sealed = SealedSegments(
            disk, directory, self._preallocation, self.in_thread, self._busy
        )
        self.open: OpenSegment | None = None
        self._written_at = 0.0
        self.first_operation_at: float | None = None
        self.written = trio.Event()
        """Set by a write that may not be synced; the waiter replaces it."""
        self.syncs = 0
        self.last_sync_s = 0.0
        self.rotations = 0
        self.created_segments = 0

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run `call` in one of the log's threads and return its result."""
        return await trio.to_thread.run_sync(call, limiter=self._limiter)

    def adopt(self, recovered: Recovered, next_number: int) -> None:
        """Take over the result of recovery."""
        self.sealed.adopt(recovered.segments)
        self._next_number = next_number

    def begin(
        self, identity: LogIdentity, first_seq: int, begun: Callable[[], None] | None = None
    ) -> None:
        """Set the identity and the first sequence of what is written from now on.

        Args:
            begun: called in a thread when the first segment is durable, before anything is appended
                to it; raises OSError if the segment cannot be used.
        """
        self._identity = identity
        self._next_seq = first_seq
        self._begun = begun

    @property
    def open_number(self) -> int:
        """The open segment's number, or that of the next segment."""
        return self.open.fill.number if self.open is not None else self._next_number

    @property
    def next_seq(self) -> int:
        return self.open.fill.next_seq if self.open is not None else self._next_seq

    @property
    def reserved_bytes(self) -> int:
        """Room that the disk has already given: the rest of the open segment, and the next file."""
        fill = None if self.open is None else self.open.fill
        left = 0 if fill is None else max(0, fill.size - fill.end)
        return left + self._preallocation.reserved_bytes

    async def rotate(self) -> None:
        """Seal the open segment, if any, and open the next; LogFull, LogWriteFailed, LogFailed."""
        self._preallocation.hurry()
        async with self._preallocation.lock:
            try:
                await self._preallocation.require(self._next_number)
            except OSError as exc:
                raise from_os_error(exc, f"preparing segment {self._next_number}") from exc
            if self.open is not None:
                await self.seal()
                self.rotations += 1
            try:
                await self._publish(self._preallocation.take())
            finally:
                self.sealed.trim_soon()

    async def _publish(self, file: PreallocatedFile) -> None:
        header = SegmentHeader(self._next_number, self._identity, self._next_seq)
        # Called after the last group was applied and before the next can be, so that the records
        # replace exactly what the older segments hold.
        carried = self._carry()
        try:
            self.open = await self.in_thread(partial(self._published, file, header, carried))
        except OSError as exc:
            raise from_os_error(exc, f"opening segment {header.number}") from exc
        self._next_number += 1
        self.created_segments += 1
        self.first_operation_at = None

    def _published(
        self,
        file: PreallocatedFile,
        header: SegmentHeader,
        carried: Sequence[tuple[int, Sequence[Buffer]]],
    ) -> OpenSegment:
        segment = publish(self._disk, file, header, carried)
        if self._begun is not None:
            try:
                self._begun()
            except BaseException:
                segment.abandon()  # the next attempt replaces it
                raise
            self._begun = None
        return segment

    def write(self, group: LogGroup, *, sync: bool) -> None:
        """Write a group, and sync it if asked. Blocking; in the writing thread.

        Raises:
            LogFull, LogWriteFailed: it was cut back, and the segment is as before.
            LogFailed: the sync or the cut failed.
        """
        segment = self.open
        assert segment is not None
        try:
            segment.append(group)
        except OSError as exc:
            segment.cut_back(group.start)
            raise from_os_error(exc, f"appending to {segment.path}") from exc
        if sync:
            self.last_sync_s = segment.sync()
            self.syncs += 1

    def book(self, group: LogGroup, *, synced: bool) -> None:
        """Count a group that was written to the open segment; in the writing thread."""
        segment = self.open
        assert segment is not None
        segment.fill.book(group)
        self._written_at = time.monotonic()
        if synced:
            segment.fill.synced_to = segment.fill.end

    def note_written(self) -> None:
        """After groups were booked: start the timed sync, the segment's age, the next
        preallocation.
        """
        segment = self.open
        if segment is None:
            return  # the store had the groups, and the next segment is being opened
        self.written.set()
        fill = segment.fill
        if fill.operations and self.first_operation_at is None:
            self.first_operation_at = trio.current_time()
        if fill.end > fill.size // 2:
            since = self.first_operation_at
            fast = since is not None and trio.current_time() - since < FAST_S
            self._preallocation.want(fill.number, zeroed=not fast)

    async def sync(self) -> None:
        """Make everything written to the open segment durable; LogFailed."""
        async with self._file_lock:
            segment = self.open
            if segment is None or segment.fill.synced_to == segment.fill.end:
                return
            end = segment.fill.end
            self.last_sync_s = await self.in_thread(segment.sync)
            self.syncs += 1
            # Only bytes written before the sync began are known to be durable.
            segment.fill.synced_to = max(segment.fill.synced_to, end)

    async def seal(self) -> None:
        """Seal the open segment; on LogFull and LogWriteFailed it stays open."""
        async with self._file_lock:
            segment = self.open
            assert segment is not None
            try:
                await self.in_thread(segment.seal)
            except OSError as exc:
                raise from_os_error(exc, f"sealing {segment.path}") from exc
            facts = self._facts(segment)
            self.sealed.add(segment, facts)
            self._next_seq = segment.fill.next_seq
            self.open = None
            self.first_operation_at = None
        log.info(
            "segment sealed",
            segment=facts.number,
            bytes=facts.bytes,
            operations=facts.operations,
            last_seq=facts.last_seq,
        )

    def _busy(self) -> bool:
        return time.monotonic() - self._written_at < BUSY_S

    async def prepare_ahead(self) -> None:
        """Preallocate the next segment once the open one is half full; never returns."""
        files = self._preallocation
        await files.keep_ready(lambda: None if self.open is None else self._next_number)

    async def close(self, *, seal: bool) -> None:
        """Close every file, sealing the open segment if asked; raises the errors of `seal`."""
        await self._preallocation.close()
        try:
            if seal and self.open is not None:
                await self.seal()
            if seal:
                await self.sealed.trim()
        finally:
            self.sealed.abandon()
            if self.open is not None:
                self.open.abandon()
            self.open = None

    def statistics(self) -> dict[str, Any]:
        """The fields of `LogStatistics` about the segments."""
        open_bytes = 0 if self.open is None else self.open.fill.end
        return {
            "segments": len(self.sealed.facts) + (self.open is not None),
            "bytes": self.sealed.nbytes + open_bytes,
            "open_segment": self.open_number,
            "open_bytes": open_bytes,
            "last_seq": self.next_seq - 1,
            "syncs": self.syncs,
            "last_sync_s": self.last_sync_s,
            "rotations": self.rotations,
            "created_segments": self.created_segments,
        }

    def _facts(self, segment: OpenSegment) -> SegmentFacts:
        fill = segment.fill
        return SegmentFacts(
            number=fill.number,
            file=segment_name(fill.number),
            ingester_id=self._identity.ingester_id,
            incarnation=self._identity.incarnation,
            epoch=self._identity.epoch,
            first_seq=fill.first_seq,
            last_seq=fill.next_seq - 1,
            records=fill.records,
            operations=fill.operations,
            bytes=fill.end,
            state="sealed",
        )
