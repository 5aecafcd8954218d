"""Law: a sealed segment is cut to its length once others are open, and goes when nobody needs it.

Trimming takes longer than all else of a rotation, and nobody waits for it. Segments are deleted in
ascending order, each durably: a later name that vanished first would leave a gap after a crash.
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
from wal.group import Group
from wal.preallocation import InThread, Preallocation
from wal.segment import OpenSegment, PreallocatedFile, publish, remove
from wal.settings import LogSettings, Recovered, SegmentFacts

if TYPE_CHECKING:
    from typing_extensions import Buffer

_GENTLY_MOST = 4
"""The most segments to delete gently: with more of them the disk's room comes first."""


class SealedSegments:
    """The log's sealed segments, from their seal to their deletion. Called on the loop.

    Args:
        busy: whether groups are expected: what is deleted meanwhile gives way to them.
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
        """The untrimmed ones and the one that is being trimmed: no file of these can be reused."""
        self._trim_wanted = trio.Event()
        self._prune_lock = trio.Lock()

    @property
    def nbytes(self) -> int:
        """The bytes of all segments, each up to the end of its last record."""
        return sum(one.bytes for one in self.facts.values())

    def adopt(self, found: Iterable[SegmentFacts]) -> None:
        """Take over what recovery found, all of it trimmed."""
        self.facts = {facts.number: facts for facts in found}

    def add(self, segment: OpenSegment, facts: SegmentFacts) -> None:
        """Take over a segment that has just been sealed; it is trimmed after `trim_soon`."""
        self.facts[facts.number] = facts
        self._uncut.add(facts.number)
        self._untrimmed.append(segment)

    async def prune(self, keep_from_segment: int) -> list[int]:
        """Delete the segments below that number, ascending, and return their numbers.

        Raises:
            LogFull, LogWriteFailed: the disk refused; those before it are gone.
            LogFailed: the folder could not be synced.
        """
        async with self._prune_lock:  # of two at the same time, the later segments would go first
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
        """Have `run` trim what is sealed by now."""
        self._trim_wanted.set()

    async def run(self) -> None:
        """Trim segments once others are open. Runs for ever."""
        while True:
            await self._trim_wanted.wait()
            self._trim_wanted = trio.Event()
            await self.trim()

    async def trim(self) -> None:
        """Cut every sealed segment to its length, and let go of it."""
        # Shielded, so that none is taken from the list and left; bounded by the disk.
        with trio.CancelScope(shield=True):
            while self._untrimmed:
                segment = self._untrimmed.pop(0)
                await self._in_thread(segment.trim)
                self._uncut.discard(segment.fill.number)

    def abandon(self) -> None:
        """Let go of what is untrimmed as it is, for the next start."""
        for segment in self._untrimmed:
            segment.abandon()
        self._untrimmed.clear()


Carry = Callable[[], Sequence[tuple[int, Sequence["Buffer"]]]]
T = TypeVar("T")
log = structlog.get_logger("wal")

_THREADS = 5  # a rotation, a preallocation, a trim, a prune and a timed sync
FAST_S = 0.25
"""A segment that is half full so soon is followed by one that is not zeroed: the zeros would take
a third of what the disk can write, and large groups do well without."""
BUSY_S = 1.0
"""The time after a group for which others are expected."""


class SegmentSet:
    """The log's files. Called on the loop; `write` and `book` in the thread that appends.

    One task rotates, and only while nothing is being appended.
    """

    def __init__(self, disk: Disk, directory: Path, settings: LogSettings, carry: Carry) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._carry = carry
        self._limiter = trio.CapacityLimiter(_THREADS)
        self._identity = LogIdentity("", "", 0)
        self._next_number = 1
        self._next_seq = 1
        self._preallocation = Preallocation(disk, directory, settings.segment_bytes, self.in_thread)
        # Held while the open file is synced or sealed by someone: a timed sync and a seal.
        self._file_lock = trio.Lock()
        self.sealed = SealedSegments(
            disk, directory, self._preallocation, self.in_thread, self._busy
        )
        self.open: OpenSegment | None = None
        self._written_at = 0.0
        self.first_operation_at: float | None = None
        self.written = trio.Event()
        """The event of a write that may not be synced yet; who waits for it makes a new one."""
        self.syncs = 0
        self.last_sync_s = 0.0
        self.rotations = 0
        self.created_segments = 0

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run `call` in one of the log's threads and return its result."""
        return await trio.to_thread.run_sync(call, limiter=self._limiter)

    def adopt(self, recovered: Recovered, next_number: int) -> None:
        """Take over what recovery found."""
        self.sealed.adopt(recovered.segments)
        self._next_number = next_number

    def begin(self, identity: LogIdentity, first_seq: int) -> None:
        """Say who writes from now on, and from which sequence."""
        self._identity = identity
        self._next_seq = first_seq

    @property
    def open_number(self) -> int:
        """The open segment's number, or the one that the next segment will have."""
        return self.open.fill.number if self.open is not None else self._next_number

    @property
    def next_seq(self) -> int:
        """The sequence of the next operation."""
        return self.open.fill.next_seq if self.open is not None else self._next_seq

    @property
    def reserved_bytes(self) -> int:
        """Room that the disk has given already: what is left of the open segment, and the next."""
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
        # Asked for here, after the last group was applied and before the next one can be: what it
        # returns stands for exactly what the older segments hold.
        carried = self._carry()
        try:
            self.open = await self.in_thread(partial(publish, self._disk, file, header, carried))
        except OSError as exc:
            raise from_os_error(exc, f"opening segment {header.number}") from exc
        self._next_number += 1
        self.created_segments += 1
        self.first_operation_at = None

    def write(self, group: Group, *, sync: bool) -> None:
        """Write a group, synced where asked. Blocking; in the thread that appends.

        Raises:
            LogFull, LogWriteFailed: it was cut back, and the segment is as it was.
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

    def book(self, group: Group, *, synced: bool) -> None:
        """Count a group that was written to the open segment; in the thread that appends."""
        segment = self.open
        assert segment is not None
        segment.fill.book(group)
        self._written_at = time.monotonic()
        if synced:
            segment.fill.synced_to = segment.fill.end

    def note_written(self) -> None:
        """Groups were booked: see to the timed sync, the segment's age and the next segment."""
        segment = self.open
        assert segment is not None
        self.written.set()
        fill = segment.fill
        if fill.operations and self.first_operation_at is None:
            self.first_operation_at = trio.current_time()
        if fill.end > fill.size // 2:
            since = self.first_operation_at
            fast = since is not None and trio.current_time() - since < FAST_S
            self._preallocation.want(fill.number, zeroed=not fast)

    async def sync(self) -> None:
        """Make durable what has been written to the open segment so far; LogFailed."""
        async with self._file_lock:
            segment = self.open
            if segment is None or segment.fill.synced_to == segment.fill.end:
                return
            end = segment.fill.end
            self.last_sync_s = await self.in_thread(segment.sync)
            self.syncs += 1
            # Only what was written before the sync began is known to be durable.
            segment.fill.synced_to = max(segment.fill.synced_to, end)

    async def seal(self) -> None:
        """Seal the open segment; on LogFull and LogWriteFailed it stays open as it was."""
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
        """Preallocate the next segment once the open one is half full. Runs for ever."""
        files = self._preallocation
        await files.keep_ready(lambda: None if self.open is None else self._next_number)

    async def close(self, *, seal: bool) -> None:
        """Let go of every file, sealing the open segment where asked; the errors of `seal`."""
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
        """The fields of `LogStatistics` that tell of the segments."""
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
