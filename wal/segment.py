"""How a segment appears, grows and ends on the disk, in the order that crash safety needs.

Blocking; the log calls this in threads, one call at a time per segment, except that trim and remove
may overlap::

    prepare   <n>.wal.tmp, reserved, zeroed, synced           (ahead of time; may reuse an old file)
    publish   header and carried records written, synced; renamed to <n>.wal; folder synced
    append    a group written; synced separately
    cut_back  after a failed append: zeros from the group's start on, synced
    seal      everything synced; seal record written and synced
    trim      cut to its length, closed: once no caller waits
    remove    renamed to <n>.wal.tmp, folder synced; kept for reuse, or freed in pieces

A failed write raises OSError, a failed sync or cut ``LogFailed``; neither is retried.

:class:`Preallocation` prepares the next segment's file in a task, before it is needed, so that no
caller waits for its zeros::

    asked for ─▶ reserved ─▶ zeroed ─▶ synced ─▶ ready ─▶ taken by a rotation
                    ▲          │  ▲
         or reused from an     │  not if segments fill so fast that it would only compete
         old segment     a rotation waits

Under load a few files of deleted segments are kept for reuse. Freeing and allocating blocks costs
the disk more than all other bookkeeping, and where the file system passes freed blocks to the
device (`discard`) it can block a write for a tenth of a second.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import trio

from wal.disk import Disk, sync, sync_directory, write_all, write_zeros
from wal.errors import LogFailed
from wal.format import (
    RecordKind,
    SegmentHeader,
    encode_seal,
    encode_segment_header,
    make_body,
    segment_name,
)
from wal.group import LogGroup, SegmentFill, place

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Small, so that a sync of the zeros delays neither the open segment's nor a rotation.
_ZEROS_AT_ONCE = 2 << 20
# With `discard` a file system passes freed blocks to its device synchronously: 64 MiB at once block
# every write for a tenth of a second, pieces of this size for milliseconds each. The pause lets
# writes pass in between. RocksDB deletes files in the same way.
FREED_AT_ONCE = 2 << 20
FREED_PAUSE_S = 0.002


@dataclass(frozen=True, eq=False)
class PreallocatedFile:
    """A file of zeros under a temporary name, ready to become a segment."""

    fd: int
    path: Path
    size: int
    reused: bool = False
    """Whether it is the file of an old segment."""


@dataclass(eq=False)
class OpenSegment:
    """The segment that takes records; `fill` describes its content."""

    disk: Disk
    fd: int
    path: Path
    fill: SegmentFill

    def append(self, group: LogGroup) -> None:
        """Write a group at its place. On OSError the caller must call `cut_back`."""
        write_all(self.disk, self.fd, group.pieces(self.fill.number), group.start)

    def sync(self) -> float:
        """Make everything written so far durable; return the seconds that it took."""
        started = time.perf_counter()
        sync(self.disk, self.fd)
        return time.perf_counter() - started

    def cut_back(self, start: int) -> None:
        """Remove all traces of a failed append that began at `start`; ``LogFailed`` if that fails.

        The zeros are synced: otherwise a crash could bring back records whose writers were told
        that they were refused.
        """
        try:
            self.disk.truncate(self.fd, min(self.disk.size(self.fd), self.fill.size))
            try:
                write_zeros(self.disk, self.fd, start, self.disk.size(self.fd))
            except OSError:
                # What cannot be overwritten can still be cut; the next write allocates again.
                self.disk.truncate(self.fd, start)
            sync(self.disk, self.fd, attributes=True)
        except OSError as exc:
            raise LogFailed(f"{self.path}: a failed append could not be cut back: {exc}") from exc

    def seal(self) -> None:
        """End the segment. On OSError the seal is cut back and the segment is open as before.

        Only `trim` may follow.
        """
        fill = self.fill
        if fill.synced_to < fill.end:
            # The seal claims that everything before it is durable.
            sync(self.disk, self.fd)
            fill.synced_to = fill.end
        seal = encode_seal(fill.number, fill.end, fill.records, fill.next_seq)
        try:
            write_all(self.disk, self.fd, [seal], fill.end)
        except OSError:
            self.cut_back(fill.end)
            raise
        sync(self.disk, self.fd)
        fill.end += len(seal)

    def trim(self) -> None:
        """Cut a sealed segment to its length and close it.

        Nothing is synced, because zeros after the seal are valid.
        """
        with contextlib.suppress(OSError):
            self.disk.truncate(self.fd, self.fill.end)
        self.abandon()

    def abandon(self) -> None:
        """Close the file as it is; the next start judges it."""
        with contextlib.suppress(OSError):
            self.disk.close(self.fd)


def prepare(
    disk: Disk,
    path: Path,
    size: int,
    hurry: threading.Event,
    old: Path | None = None,
) -> PreallocatedFile:
    """A file of `size` zeros at `path`; on OSError nothing is left behind.

    It reuses the file of an `old` segment if the file system can zero it. Otherwise it is reserved
    first, which a full disk refuses at once. Reserved blocks read as zeros, but are then written as
    zeros too, because a sync of blocks that were never written can be several times slower. When
    `hurry` is set, the writing stops: under a load that fills segments faster it would only
    compete.
    """
    reused = None if old is None else _reused(disk, old, path, size)
    fd = disk.open(path, "create") if reused is None else reused
    try:
        if reused is None:
            disk.allocate(fd, size)
        for start in range(0, size, _ZEROS_AT_ONCE):
            if hurry.is_set():
                break
            write_zeros(disk, fd, start, min(start + _ZEROS_AT_ONCE, size))
        sync(disk, fd, attributes=True)
    except BaseException:
        discard(disk, PreallocatedFile(fd, path, size))
        raise
    return PreallocatedFile(fd, path, size, reused is not None)


def _reused(disk: Disk, old: Path, path: Path, size: int) -> int | None:
    """The old file under its new name, as zeros; None if impossible, and the file is gone."""
    try:
        disk.rename(old, path)
    except OSError:
        unlink_quietly(disk, old)
        return None
    try:
        fd = disk.open(path, "reuse")
    except OSError:
        unlink_quietly(disk, path)
        return None
    try:
        disk.zero(fd, size)
    except OSError:
        discard(disk, PreallocatedFile(fd, path, size))
        return None
    return fd


def discard(disk: Disk, file: PreallocatedFile) -> None:
    """Close and remove a preallocated file; the next start removes a leftover."""
    with contextlib.suppress(OSError):
        disk.close(file.fd)
    unlink_quietly(disk, file.path)


def unlink_quietly(disk: Disk, path: Path) -> None:
    """Remove a temporary file; the next start removes a leftover."""
    with contextlib.suppress(OSError):
        disk.unlink(path)


def remove(
    disk: Disk,
    path: Path,
    busy: Callable[[], bool],
    keep: Callable[[Path], bool] | None = None,
) -> None:
    """Delete a sealed segment, durably; on OSError it still exists.

    Its blocks are freed in pieces while `busy` says that others write to the disk, unless the file
    has another name.

    Args:
        keep: asked once the segment is gone; True takes over the remaining file under this
            temporary name.
    """
    gone = path.with_name(f"{path.name}.tmp")
    try:
        disk.rename(path, gone)
    except OSError:
        # A full disk may have no room for the longer name; the deletion may free it.
        disk.unlink(path)
        sync_directory(disk, path.parent)
        return
    sync_directory(disk, path.parent)
    # The next start removes what is left after this.
    if keep is not None and keep(gone):
        return
    with contextlib.suppress(OSError):
        fd = disk.open(gone, "write")
        try:
            size = 0 if disk.has_other_names(fd) else disk.size(fd) - FREED_AT_ONCE
            while size > 0 and busy():
                disk.truncate(fd, size)
                disk.fsync(fd)
                time.sleep(FREED_PAUSE_S)
                size -= FREED_AT_ONCE
        finally:
            disk.close(fd)
    unlink_quietly(disk, gone)


def publish(
    disk: Disk,
    file: PreallocatedFile,
    header: SegmentHeader,
    carried: Sequence[tuple[int, Sequence[Buffer]]],
) -> OpenSegment:
    """The file, durably renamed to a segment with `header` and the `carried` records.

    On OSError it did not become a segment, and the file is gone.
    """
    path = file.path.with_suffix("")
    segment = OpenSegment(
        disk, file.fd, path, SegmentFill(header.number, file.size, header.first_seq)
    )
    try:
        group = LogGroup(start=segment.fill.end, end=segment.fill.end, next_seq=header.first_seq)
        for kind, parts in carried:
            if kind in (RecordKind.OPERATION, RecordKind.SEAL):
                raise ValueError(f"a record of kind {kind} cannot be carried into a new segment")
            place(group, kind, make_body(parts), segment.fill.synced_to)
        write_all(disk, file.fd, [encode_segment_header(header)], 0)
        segment.append(group)
        sync(disk, file.fd)
        segment.fill.book(group)
        segment.fill.synced_to = group.end
        disk.rename(file.path, path)
    except BaseException:
        discard(disk, file)
        raise
    # Invariant: nothing is acknowledged in a file whose name is not durable.
    sync_directory(disk, path.parent)
    return segment


_KEPT = 2
"""The most files that are kept; PostgreSQL recycles segments in the same way."""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
log = structlog.get_logger("wal")


class Preallocation:
    """The next segment's file, of `size` bytes, and kept files for later segments. Loop."""

    def __init__(self, disk: Disk, directory: Path, size: int, in_thread: InThread) -> None:
        self._disk = disk
        self._directory = directory
        self._size = size
        self._in_thread = in_thread
        self._ready: PreallocatedFile | None = None
        self._kept: list[tuple[Path, int]] = []
        """Files of removed segments, by their temporary names and sizes."""
        self._closed = False
        self._in_vain = False
        """Whether a kept file could not be reused: it could not be zeroed, or backups are hard
        links.
        """
        # Set while the next file must not be zeroed further.
        self._hurry = threading.Event()
        self._asked = trio.Event()
        self._asked_for = 0
        self._zeroed = True
        self.lock = trio.Lock()
        """Held by a rotation to its end: until the number advances, a second file would have the
        same name.
        """

    @property
    def reserved_bytes(self) -> int:
        """Room that the disk has already given. Any thread."""
        ready = self._ready
        return sum(size for _, size in self._kept) + (0 if ready is None else ready.size)

    def keep(self, nbytes: int, path: Path) -> bool:
        """Take over the file of a removed segment; return whether it is kept. Any thread.

        Small files are not kept.
        """
        if self._closed or self._in_vain or len(self._kept) >= _KEPT:
            return False
        if not self._size // 2 <= nbytes <= self._size:
            return False
        self._kept.append((path, nbytes))
        return True

    def want(self, open_number: int, *, zeroed: bool) -> None:
        """Ask for a file, once per open segment; on a full disk the rotation itself retries.

        Args:
            zeroed: write zeros while no rotation waits.
        """
        if self._asked_for != open_number:
            self._asked_for = open_number
            self._zeroed = zeroed
            self._asked.set()

    async def keep_ready(self, next_number: Callable[[], int | None]) -> None:
        """Make the next segment's file when it is asked for; never returns."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            async with self.lock:
                number = next_number()
                if self._ready is None and number is not None and not self._closed:
                    if self._zeroed:
                        self._hurry.clear()
                    else:
                        self._hurry.set()
                    try:
                        self._ready = await self._prepare(number)
                    except OSError as exc:
                        log.warning("segment not preallocated", error=str(exc), runbook="disk-full")

    def hurry(self) -> None:
        """Finish the file without its zeros: a rotation waits for the lock."""
        self._hurry.set()

    async def require(self, number: int) -> None:
        """Make the file if there is none; OSError. Under the lock."""
        if self._ready is None:
            self._ready = await self._prepare(number)

    def take(self) -> PreallocatedFile:
        """Hand over the file that `require` made. Under the lock."""
        file, self._ready = self._ready, None
        assert file is not None
        return file

    async def close(self) -> None:
        """Discard the files."""
        self.hurry()
        self._closed = True
        async with self.lock:
            if self._ready is not None:
                await self._in_thread(partial(discard, self._disk, self.take()))
            while self._kept:
                await self._in_thread(partial(unlink_quietly, self._disk, self._kept.pop()[0]))

    async def _prepare(self, number: int) -> PreallocatedFile:
        def make() -> PreallocatedFile:
            # Taken inside the thread: a call that is cancelled before it begins takes none.
            old = self._kept.pop()[0] if self._kept else None
            path = self._directory / f"{segment_name(number)}.tmp"
            file = prepare(self._disk, path, self._size, self._hurry, old)
            self._in_vain = self._in_vain or (old is not None and not file.reused)
            return file

        file = await self._in_thread(make)
        assert isinstance(file, PreallocatedFile)
        return file
