"""Recovery: a start checks every segment and changes nothing unless all checks pass.

It leaves one sealed segment after the other, all durable::

    *.wal.tmp                    removed: never became a segment, or was deleted
    trailing segment, no header  removed (kept as .torn unless all zeros): never took a record
    last segment, torn tail      copied to .torn unless all zeros, zeroed, then sealed
    last segment, open           synced, then sealed
    anything else not sealed     LogDamaged, or LogTooNew

Every step can be repeated, so a crash during recovery changes nothing for the next start
(tests/wal/test_recovery.py). No segment is created here; that waits until replay is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wal.disk import Disk, sync, sync_directory, write_all, write_zeros
from wal.errors import LogDamaged, LogTooNew, from_os_error, is_no_space
from wal.format import SEAL_RECORD_BYTES, parse_name, segment_name
from wal.group import SegmentFill
from wal.scan import READ_BYTES, Fault, ScanVerdict, State, first_nonzero, scan
from wal.segment import OpenSegment
from wal.settings import Recovered, SegmentFacts

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class FileShrank(LogDamaged):
    """The file was cut while it was read."""


class FileSource:
    """A segment's file as a `wal.scan.Source`, read through a window. A context manager.

    Args:
        window_bytes: the most bytes of one `read`. Each read of bytes that are not in the window
            fills it.
    """

    def __init__(self, disk: Disk, path: Path, window_bytes: int = READ_BYTES) -> None:
        self._disk = disk
        self._path = path
        self._window = bytearray(window_bytes)
        self._view = memoryview(self._window)
        self._start = 0
        self._end = 0
        self._size = 0
        self._fd = -1

    def __enter__(self) -> FileSource:
        self._fd = self._disk.open(self._path, "read")
        self._size = self._disk.size(self._fd)
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close(self._fd)

    @property
    def size(self) -> int:
        """The file's length when it was opened."""
        return self._size

    def read(self, offset: int, length: int) -> memoryview:
        """A view of up to `length` bytes at `offset`, valid until the next read.

        Raises:
            FileShrank: the file is shorter than when it was opened.
            LogDamaged: a byte cannot be read.
        """
        end = min(offset + length, self._size)
        if end <= offset:
            return self._view[:0]
        if offset < self._start or end > self._end:
            self._start = offset
            wanted = min(len(self._window), self._size - offset)
            filled = self._fill(self._view[:wanted], offset)
            self._end = offset + filled
            if filled < wanted:
                raise FileShrank(self._path, self._end, f"{self._size} bytes", f"{self._end}")
        return self._view[offset - self._start : min(end, self._end) - self._start]

    def read_into(self, buffer: WriteableBuffer, offset: int) -> None:
        """Fill `buffer` from `offset`; LogDamaged if the file ends first."""
        target = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else None
        if target is None:
            return
        if len(target) <= len(self._window) // 8:
            piece = self.read(offset, len(target))
            target[: len(piece)] = piece
            done = len(piece)
        else:
            done = self._fill(target, offset)
        if done < len(target):
            raise LogDamaged(self._path, offset, f"{len(target)} bytes", f"{done}")

    def _fill(self, target: memoryview, offset: int) -> int:
        done = 0
        while done < len(target):
            try:
                count = self._disk.pread_into(self._fd, target[done:], offset + done)
            except OSError as exc:
                raise LogDamaged(
                    self._path, offset + done, "readable bytes", exc.strerror or str(exc)
                ) from exc
            if count == 0:
                break
            done += count
        return done


@dataclass
class Survey:
    """The folder's content: verdicts by ascending number, and every other name."""

    verdicts: list[ScanVerdict] = field(default_factory=list)
    temporary: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    highest_aside: int = 0

    def states(self) -> list[State]:
        """The state of each verdict. The last segment is the last one with a header."""
        states: list[State] = []
        last = True
        for verdict in reversed(self.verdicts):
            state = verdict.state(last=last)
            last = last and state == "headerless"
            states.append(state)
        return states[::-1]

    def next_number(self) -> int:
        """The number of the next segment. Numbers of kept pieces are not reused."""
        kept = [verdict.number for verdict in self.verdicts if verdict.header is not None]
        return kept[-1] + 1 if kept else self.highest_aside + 1


def survey(disk: Disk, directory: Path, *, running: bool = False) -> Survey:
    """Scan every segment of the folder; nothing is changed.

    Args:
        running: another process may be writing the log; segments that vanish are not missing.
    """
    found = Survey()
    numbers: list[int] = []
    for name in sorted(disk.list_directory(directory)):
        ours = parse_name(name)
        if ours is None:
            found.foreign.append(name)
        elif ours.suffix is None:
            numbers.append(ours.number)
        elif ours.suffix == "tmp":
            found.temporary.append(name)
        else:
            found.aside.append(name)
            found.highest_aside = max(found.highest_aside, ours.number)
    for number in numbers:
        verdict = (_scanned_running if running else _scanned)(disk, directory, number)
        if verdict is None:
            # Removed by the running log, after all older ones.
            found.verdicts.clear()
        else:
            found.verdicts.append(verdict)
    return found


def _scanned(disk: Disk, directory: Path, number: int) -> ScanVerdict:
    with FileSource(disk, directory / segment_name(number)) as source:
        return scan(source, number)


def _scanned_running(disk: Disk, directory: Path, number: int) -> ScanVerdict | None:
    """The verdict on a segment of a running log; None if it was removed meanwhile."""
    try:
        verdict = _scanned(disk, directory, number)
    except (FileNotFoundError, FileShrank):
        # It was sealed and trimmed meanwhile, which happens once.
        return _scanned(disk, directory, number) if _is_there(disk, directory, number) else None
    # Otherwise another segment may have reused its file during the scan.
    whole = verdict.sealed and verdict.fault is None
    return verdict if whole or _is_there(disk, directory, number) else None


def _is_there(disk: Disk, directory: Path, number: int) -> bool:
    return segment_name(number) in disk.list_directory(directory)


def refusal(directory: Path, found: Survey) -> LogDamaged | LogTooNew | None:
    """The error that stops the start, for the first segment that fails its checks."""
    expected: int | None = None
    for verdict, state in zip(found.verdicts, found.states(), strict=True):
        path = directory / segment_name(verdict.number)
        if state == "headerless":
            continue
        if expected is not None and verdict.number != expected:
            missing = directory / segment_name(expected)
            return LogDamaged(missing, 0, f"segment {expected}", f"segment {verdict.number} next")
        expected = verdict.number + 1
        if state == "newer":
            fault = fault_of(verdict)
            return LogTooNew(path, fault.offset, fault.found)
        if state == "damaged":
            fault = fault_of(verdict)
            return LogDamaged(path, fault.offset, fault.expected, fault.found)
    return None


def recover(disk: Disk, directory: Path) -> tuple[Recovered, int]:
    """Recover the folder; return its content and the next segment's number.

    Raises:
        LogDamaged, LogTooNew: the folder is unchanged.
        LogFull, LogWriteFailed: the disk refused; the next start continues from there.
        LogFailed: a sync failed.
    """
    try:
        disk.make_directory(directory)
        found = survey(disk, directory)
        if (error := refusal(directory, found)) is not None:
            raise error
        return _tidy(disk, directory, found), found.next_number()
    except OSError as exc:
        raise from_os_error(exc, f"recovering {directory}") from exc


def _tidy(disk: Disk, directory: Path, found: Survey) -> Recovered:
    torn_bytes, torn_files, removed = 0, [], []
    for name in found.temporary:
        disk.unlink(directory / name)
    facts: list[SegmentFacts] = []
    torn_segments = 0
    for verdict, state in zip(found.verdicts, found.states(), strict=True):
        path = directory / segment_name(verdict.number)
        if state in ("torn", "headerless"):
            count, kept = keep_tail(disk, path, verdict.end)
            torn_bytes += count
            torn_segments += state == "torn"
            torn_files += [kept] if kept else []
        if state == "headerless":
            disk.unlink(path)
            removed.append(path.name)
            continue
        if state != "sealed":
            _seal(disk, path, verdict, torn=state == "torn")
        facts.append(facts_of(verdict, "sealed"))
    sync_directory(disk, directory)
    return Recovered(
        segments=tuple(facts),
        last_seq=max((one.last_seq for one in facts), default=0),
        highest_epoch=max((one.epoch for one in facts), default=0),
        torn_bytes=torn_bytes,
        torn_segments=torn_segments,
        torn_files=tuple(torn_files),
        removed=tuple(removed),
        foreign=tuple(found.foreign),
    )


def _seal(disk: Disk, path: Path, verdict: ScanVerdict, *, torn: bool) -> None:
    """Cut a torn tail and seal in place, which a full disk allows."""
    fill = SegmentFill(verdict.number, verdict.size, verdict.last_seq + 1)
    fill.end = fill.synced_to = verdict.end
    fill.records = verdict.records
    fd = disk.open(path, "write")
    if torn:
        write_zeros(disk, fd, verdict.end, max(verdict.size, verdict.end + SEAL_RECORD_BYTES))
    # Records that were written but never synced are about to be replayed, so they must be durable.
    sync(disk, fd)
    segment = OpenSegment(disk, fd, path, fill)
    segment.seal()
    segment.trim()


def keep_tail(disk: Disk, path: Path, start: int) -> tuple[int, str | None]:
    """Copy the bytes from `start` to ``<segment>.torn``, without the zeros at the end.

    Returns:
        The number of bytes and the new file's name; ``(0, None)`` if there are only zeros.
    """
    with FileSource(disk, path) as source:
        end = _last_nonzero(source, start)
        if end is None:
            return 0, None
        target = free_name(disk, path, "torn")
        temporary = path.with_name(path.name + ".tmp")
        fd = disk.open(temporary, "create")
        try:
            for offset in range(start, end, READ_BYTES):
                piece = source.read(offset, min(READ_BYTES, end - offset))
                write_all(disk, fd, [piece], offset - start)
            sync(disk, fd, attributes=True)
        except OSError as exc:
            if is_no_space(exc):
                disk.unlink(temporary)
            raise
        finally:
            disk.close(fd)
        disk.rename(temporary, target)
        sync_directory(disk, path.parent)
    return end - start, target.name


def free_name(disk: Disk, path: Path, suffix: str) -> Path:
    """``<path>.<suffix>``, or with a number appended if that is taken."""
    taken = set(disk.list_directory(path.parent))
    name, count = f"{path.name}.{suffix}", 1
    while name in taken:
        count += 1
        name = f"{path.name}.{suffix}-{count}"
    return path.with_name(name)


def facts_of(verdict: ScanVerdict, state: State) -> SegmentFacts:
    """The facts of a segment, from its scan."""
    header, fault = verdict.header, verdict.fault
    problem = None
    if state not in ("sealed", "open") and (fault is not None or state == "damaged"):
        fault = fault_of(verdict)
        problem = f"at offset {fault.offset}: expected {fault.expected}, found {fault.found}"
    return SegmentFacts(
        number=verdict.number,
        file=segment_name(verdict.number),
        ingester_id=header.identity.ingester_id if header else "",
        incarnation=header.identity.incarnation if header else "",
        epoch=header.identity.epoch if header else 0,
        first_seq=verdict.first_seq,
        last_seq=verdict.last_seq,
        records=verdict.records,
        operations=verdict.operations,
        bytes=verdict.end,
        state=state,
        problem=problem,
    )


def fault_of(verdict: ScanVerdict) -> Fault:
    """The fault of a segment; a whole segment that is not last lacks its seal."""
    return verdict.fault or Fault(verdict.end, "a seal: another segment follows", "none")


def _last_nonzero(source: FileSource, start: int) -> int | None:
    """The offset after the last byte from `start` on that is not zero."""
    end = None
    while (at := first_nonzero(source, start)) is not None:
        piece = bytes(source.read(at, READ_BYTES))
        end = at + len(piece.rstrip(b"\0"))
        start = at + len(piece)
    return end
