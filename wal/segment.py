"""Law: what makes a segment appear, grow and end on the disk, in the order that a crash needs.

Blocking; the log calls this in a thread, one call at a time per segment, but that one may be
trimmed and removed at once::

    prepare   <n>.wal.tmp, reserved, zeroed, synced           (ahead of time; of an old one's file)
    publish   header and carried records in it, synced; renamed to <n>.wal; folder synced
    append    a group written; synced apart
    cut_back  after a failed append: zeros from the group's start on, synced
    seal      all synced; seal record written and synced
    trim      cut to its length, closed: when nobody waits any more
    remove    renamed to <n>.wal.tmp, folder synced; kept for a later one, or let go of in pieces

A failed write raises OSError, a failed sync or cut ``LogFailed``: it is never tried twice.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wal.disk import Disk, sync, sync_directory, write_all, write_zeros
from wal.errors import LogFailed
from wal.format import (
    RecordKind,
    SegmentHeader,
    encode_seal,
    encode_segment_header,
    make_body,
)
from wal.group import Group, SegmentFill, place

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Small, so that a sync of the zeros does not stall the open segment's, nor a rotation wait long.
_ZEROS_AT_ONCE = 2 << 20
# A file system that gives freed blocks back to its device (`discard`) does so before it goes on:
# 64 MiB at once hold up every write for a tenth of a second, pieces of this size for some
# milliseconds each, and the pause lets writes pass between two of them. As RocksDB deletes files.
FREED_AT_ONCE = 2 << 20
FREED_PAUSE_S = 0.002


@dataclass(frozen=True, eq=False)
class PreallocatedFile:
    """A file that reads as zeros, under a temporary name, ready to become a segment."""

    fd: int
    path: Path
    size: int
    reused: bool = False
    """Whether it is an old segment's file."""


@dataclass(eq=False)
class OpenSegment:
    """The segment that takes records. The fill says what it holds, the file has it."""

    disk: Disk
    fd: int
    path: Path
    fill: SegmentFill

    def append(self, group: Group) -> None:
        """Write a group where it belongs. OSError: the caller has to `cut_back`."""
        write_all(self.disk, self.fd, group.pieces(self.fill.number), group.start)

    def sync(self) -> float:
        """Make everything written so far durable; return the seconds that it took."""
        started = time.perf_counter()
        sync(self.disk, self.fd)
        return time.perf_counter() - started

    def cut_back(self, start: int) -> None:
        """Leave nothing of a failed append that began at `start`; ``LogFailed`` if that fails.

        The zeros are synced: otherwise a crash could bring back records whose writers were told
        that they are not there.
        """
        try:
            self.disk.truncate(self.fd, min(self.disk.size(self.fd), self.fill.size))
            try:
                write_zeros(self.disk, self.fd, start, self.disk.size(self.fd))
            except OSError:
                # What cannot be overwritten can still be let go; the next write allocates again.
                self.disk.truncate(self.fd, start)
            sync(self.disk, self.fd, attributes=True)
        except OSError as exc:
            raise LogFailed(f"{self.path}: a failed append could not be cut back: {exc}") from exc

    def seal(self) -> None:
        """End the segment. OSError: the seal is cut back and the segment is open as before.

        Nothing is done with it any more but `trim`.
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
        """Give back what a sealed segment does not need, and let go of it.

        It is whole with zeros behind its seal, too: whether this is done, now, after a crash or
        never, takes nothing from it, and so nothing is synced.
        """
        with contextlib.suppress(OSError):
            self.disk.truncate(self.fd, self.fill.end)
        self.abandon()

    def abandon(self) -> None:
        """Close the file as it is, for the next start to judge."""
        with contextlib.suppress(OSError):
            self.disk.close(self.fd)


def prepare(
    disk: Disk,
    path: Path,
    size: int,
    hurry: threading.Event,
    old: Path | None = None,
) -> PreallocatedFile:
    """A file of `size` bytes at `path`; OSError (nothing is left behind) when there is no room.

    It is made of the file of an `old` one, if there is one and the file system can. Else it is
    reserved first, which a full disk refuses at once and in one piece. Reserved blocks read
    as zeros; then they are written as zeros too, because a sync of blocks that were never
    written can be several times slower. When `hurry` is set, that is left where it is: under a
    load that fills segments faster than that, it would only compete.
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
    """The old file under its new name, as zeros; None, and it is gone, where that cannot be had."""
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
    """Let go of a preallocated file; a leftover is removed by the next start."""
    with contextlib.suppress(OSError):
        disk.close(file.fd)
    unlink_quietly(disk, file.path)


def unlink_quietly(disk: Disk, path: Path) -> None:
    """Remove a temporary file; a leftover is removed by the next start."""
    with contextlib.suppress(OSError):
        disk.unlink(path)


def remove(
    disk: Disk,
    path: Path,
    busy: Callable[[], bool],
    keep: Callable[[Path], bool] | None = None,
) -> None:
    """Delete a sealed segment, durably: OSError if it is still there.

    Its blocks are given back in pieces while `busy` says that others write to the disk, unless the
    file has another name, by which it stays what it is.

    Args:
        keep: is asked when the segment is gone, and true where the file that is left, under this
            temporary name, is somebody's from now on.
    """
    gone = path.with_name(f"{path.name}.tmp")
    try:
        disk.rename(path, gone)
    except OSError:
        # A full disk may have no room for the longer name, and this may be what frees it.
        disk.unlink(path)
        sync_directory(disk, path.parent)
        return
    sync_directory(disk, path.parent)
    # What is left of it from here on is removed by the next start.
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
    """The file, renamed to a segment with `header` and the `carried` records in it, durably.

    OSError: it did not become a segment, and the file is gone.
    """
    path = file.path.with_suffix("")
    segment = OpenSegment(
        disk, file.fd, path, SegmentFill(header.number, file.size, header.first_seq)
    )
    try:
        group = Group(start=segment.fill.end, end=segment.fill.end, next_seq=header.first_seq)
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
    # Invariant: nothing is acknowledged in a file whose name a crash could take back.
    sync_directory(disk, path.parent)
    return segment
