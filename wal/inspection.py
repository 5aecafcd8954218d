"""The operator's tools: `inspect` and `verify` only read, `repair` makes a damaged log startable.

A repair deletes nothing, keeps every record that passes its checks, and reports what is missing. A
damaged segment is rewritten from its good records under the same number and replaced in one step;
the old file stays as ``<segment>.damaged``::

    old   header | r1 | r2 | ?????? | r4 | r5 | seal
    new   header | r1 | r2 | r4 | r5 | seal              (r4, r5 moved: their headers are new)

A missing segment, or one without a header between segments of different incarnations, does not tell
whose operations it held: an empty one takes its place. Whole segments, a torn tail (handled by the
next start) and segments of a newer version are not touched. A repair that crashed can be run again
(tests/wal/test_repair.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from wal.disk import Disk, sync, sync_directory, write_all
from wal.errors import REPAIR_COMMAND, LogTooNew
from wal.format import (
    ALIGNMENT,
    RECORD_HEADER_BYTES,
    SEAL_RECORD_BYTES,
    SEGMENT_HEADER_BYTES,
    LogIdentity,
    RecordHeader,
    RecordKind,
    SegmentHeader,
    decode_seal,
    encode_record_header,
    encode_seal,
    encode_segment_header,
    padded,
    parse_name,
    record_bytes,
    segment_name,
)
from wal.recovery import FileSource, Survey, facts_of, fault_of, free_name, survey
from wal.scan import READ_BYTES, Fault, Located, ScanVerdict, Source, find_headers, read_record
from wal.settings import SegmentFacts


class Gap(msgspec.Struct, frozen=True):
    """A range of sequences, both inclusive, without a record."""

    first_seq: int
    last_seq: int


class RepairedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the repair of one segment.

    `moved_to` is None if the segment was missing. `records_lost` is None if no plausible seal gives
    the count. `gaps` are within the segment, or up to the next one if its end is lost.
    """

    number: int
    file: str
    moved_to: str | None
    problem: str
    records_saved: int
    records_lost: int | None
    operations_saved: int
    bytes_saved: int
    bytes_moved: int
    gaps: tuple[Gap, ...]


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a repair. Empty `segments` mean that nothing was done.

    An operation whose schema record was lost is still in the log; the log's reader must refuse it
    by name.
    """

    segments: tuple[RepairedSegment, ...]
    untouched: tuple[str, ...]


def repair(directory: Path, disk: Disk | None = None) -> RepairReport:
    """Make a damaged log startable; the caller holds the `DirectoryLock`.

    Raises:
        LogTooNew: a newer version wrote part of it; nothing was changed.
        OSError: the disk refused; run it again.
        LogFailed: a sync failed; run it again on a working disk.
    """
    disk = disk or Disk()
    found = survey(disk, directory)
    states = dict(zip((one.number for one in found.verdicts), found.states(), strict=True))
    by_number = {one.number: one for one in found.verdicts}
    for number, state in states.items():
        if state == "newer":
            fault = fault_of(by_number[number])
            raise LogTooNew(directory / segment_name(number), fault.offset, fault.found)
    counted = [number for number, state in states.items() if state != "headerless"]
    repaired: list[RepairedSegment] = []
    untouched: list[str] = []
    for number in range(counted[0], counted[-1] + 1) if counted else ():
        if states.get(number, "damaged") != "damaged":
            untouched.append(segment_name(number))
            continue
        plan = _plan(found.verdicts, number)
        repaired.append(_rebuild(disk, directory / segment_name(number), plan))
    return RepairReport(segments=tuple(repaired), untouched=tuple(untouched))


class _Plan(NamedTuple):
    """The plan of the new segment.

    `identity_known` is False if nothing tells whose operations the old one held. `next_first` is
    the first sequence of the next segment of the same identity.
    """

    header: SegmentHeader
    problem: str
    missing: bool
    identity_known: bool
    next_first: int | None


def _plan(verdicts: list[ScanVerdict], number: int) -> _Plan:
    own = next((one for one in verdicts if one.number == number), None)
    before = [(one, one.header) for one in verdicts if one.header and one.number < number]
    after = [one.header for one in verdicts if one.header and one.number > number]
    following = after[0] if after else None
    header = own.header if own is not None else None
    identity_known = True
    if header is None:
        last, previous = before[-1] if before else (None, None)
        near = previous or following
        identity = near.identity if near else LogIdentity("", "", 0)
        first_seq = last.last_seq + 1 if last else following.first_seq if following else 1
        header = SegmentHeader(number, identity, first_seq)
        identity_known = bool(previous and following and previous.identity == following.identity)
    fault = fault_of(own) if own is not None else Fault(0, f"segment {number}", "no such file")
    return _Plan(
        header,
        f"at offset {fault.offset}: expected {fault.expected}, found {fault.found}",
        own is None,
        identity_known,
        following.first_seq if following and following.identity == header.identity else None,
    )


def _rebuild(disk: Disk, path: Path, plan: _Plan) -> RepairedSegment:
    """Write the new segment, keep the old file under another name, and put the new one in its
    place.
    """
    temporary = path.with_name(path.name + ".tmp")
    target = disk.open(temporary, "create")
    try:
        copy = _Copy(disk, target, plan.header)
        moved_bytes = 0
        if not plan.missing:
            with FileSource(disk, path) as source:
                moved_bytes = source.size
                for located in good_records(source, plan.header.number):
                    copy.take(source, located, keep=plan.identity_known)
        copy.seal()
        sync(disk, target, attributes=True)
    finally:
        disk.close(target)
    aside = None
    if not plan.missing:
        # A second name before the first is replaced, so that the old file is never lost.
        aside = free_name(disk, path, "damaged")
        disk.link(path, aside)
        sync_directory(disk, path.parent)
    disk.rename(temporary, path)
    sync_directory(disk, path.parent)
    return RepairedSegment(
        number=plan.header.number,
        file=path.name,
        moved_to=aside.name if aside else None,
        problem=plan.problem,
        records_saved=copy.records,
        records_lost=copy.lost,
        operations_saved=copy.operations,
        bytes_saved=copy.end - SEGMENT_HEADER_BYTES,
        bytes_moved=moved_bytes,
        gaps=tuple(copy.all_gaps(plan.next_first)),
    )


class _Copy:
    """The new segment while it is written, and its account."""

    def __init__(self, disk: Disk, fd: int, header: SegmentHeader) -> None:
        self._disk = disk
        self._fd = fd
        self._number = header.number
        self._last_seq = header.first_seq - 1
        self._gaps: list[Gap] = []
        self.end = write_all(disk, fd, [encode_segment_header(header)], 0)
        self.records = 0
        self.operations = 0
        self.sealed_records: int | None = None

    def take(self, source: FileSource, located: Located, *, keep: bool) -> None:
        """Account for a good record of the old file; write it if `keep`."""
        record = located.header
        start = located.offset + RECORD_HEADER_BYTES
        if record.kind == RecordKind.SEAL:
            if record.length == SEAL_RECORD_BYTES - RECORD_HEADER_BYTES:
                self.sealed_records = decode_seal(source.read(start, record.length))
            return
        if record.kind == RecordKind.OPERATION:
            if record.first_seq <= self._last_seq:
                return
            first_lost = self._last_seq + 1
            last_lost = record.first_seq - 1 if keep else record.last_seq
            if first_lost <= last_lost:
                self._gaps.append(Gap(first_lost, last_lost))
            self._last_seq = record.last_seq
        if keep:
            self._write(source, start, record)

    def _write(self, source: FileSource, start: int, record: RecordHeader) -> None:
        # The file is synced before it is renamed, so everything before this record is durable.
        header = record._replace(synced_to=self.end)
        block = encode_record_header(self._number, self.end, header)
        at = write_all(self._disk, self._fd, [block], self.end)
        self.end += record_bytes(record.length)
        for offset in range(start, start + padded(record.length), READ_BYTES):
            length = min(READ_BYTES, start + padded(record.length) - offset)
            at = write_all(self._disk, self._fd, [source.read(offset, length)], at)
        self.records += 1
        if record.kind == RecordKind.OPERATION:
            self.operations += record.operations

    def seal(self) -> None:
        seal = encode_seal(self._number, self.end, self.records, self._last_seq + 1)
        write_all(self._disk, self._fd, [seal], self.end)

    @property
    def lost(self) -> int | None:
        """The number of records that the seal counts beyond those written; None if it cannot be
        right.
        """
        if self.sealed_records is None or self.sealed_records < self.records:
            return None
        return self.sealed_records - self.records

    def all_gaps(self, next_first: int | None) -> list[Gap]:
        """The gaps, with neighbours joined, up to the next segment."""
        gaps = list(self._gaps)
        if next_first is not None and self._last_seq + 1 < next_first:
            gaps.append(Gap(self._last_seq + 1, next_first - 1))
        joined: list[Gap] = []
        for gap in gaps:
            if joined and joined[-1].last_seq + 1 == gap.first_seq:
                gap = Gap(joined.pop().first_seq, gap.last_seq)
            joined.append(gap)
        return joined


def good_records(source: Source, number: int) -> Iterator[Located]:
    """Every record of a segment that passes its checks, in order."""
    offset: int | None = SEGMENT_HEADER_BYTES
    while offset is not None:
        record = read_record(source, number, offset)
        if isinstance(record, RecordHeader):
            yield Located(offset, record)
            offset += record_bytes(record.length)
        elif record is None:
            return
        else:
            offset = _next_good(source, number, offset + ALIGNMENT)


def _next_good(source: Source, number: int, start: int) -> int | None:
    for located in find_headers(source, number, start):
        if isinstance(read_record(source, number, located.offset), RecordHeader):
            return located.offset
    return None


Severity = Literal["damage", "newer", "note"]


class LogFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing about a log that differs from a clean stop.

    `severity` "damage": the start stops; acknowledged operations may be lost. "newer": the start
    stops; a newer version wrote it. "note": the start continues. `help` says what to do.
    """

    severity: Severity
    file: str
    offset: int
    expected: str
    found: str
    help: str


def last_writes(directory: Path) -> dict[int, float]:
    """When each segment was last written, by its number, in seconds since 1970.

    Call it before `Log.recover`, which may write to the last one. A missing folder has none.
    """
    found = {}
    for path in directory.glob("*.wal") if directory.is_dir() else ():
        name = parse_name(path.name)
        if name is not None and name.suffix is None:
            found[name.number] = path.stat().st_mtime
    return found


def inspect(directory: Path, disk: Disk | None = None) -> list[SegmentFacts]:
    """The facts of each segment, ascending; for damaged ones, up to the damage.

    Raises:
        OSError: the folder cannot be read.
    """
    found = survey(disk or Disk(), directory, running=True)
    return [
        facts_of(verdict, state)
        for verdict, state in zip(found.verdicts, found.states(), strict=True)
    ]


def verify(directory: Path, disk: Disk | None = None) -> list[LogFinding]:
    """Everything that a start would refuse, cut, remove or ignore; empty after a clean stop.

    Raises:
        OSError: the folder cannot be read.
    """
    found = survey(disk or Disk(), directory, running=True)
    return [*_about_segments(directory, found), *_about_names(found)]


def _about_segments(directory: Path, found: Survey) -> Iterator[LogFinding]:
    repair_it = f"{REPAIR_COMMAND} {directory}"
    helps = {"damaged": repair_it, "newer": "start the version that wrote it"}
    severities: dict[str, Severity] = {"damaged": "damage", "newer": "newer"}
    expected: int | None = None
    for verdict, state in zip(found.verdicts, found.states(), strict=True):
        number, name = verdict.number, segment_name(verdict.number)
        if expected is not None and expected < number and state != "headerless":
            missing = Fault(0, f"segments {expected} to {number - 1}", "no such files")
            yield _finding("damage", segment_name(expected), missing, repair_it)
        expected = number + 1
        if state == "open":
            unsealed = Fault(verdict.end, "a seal", "none: in use, or not stopped cleanly")
            yield _finding("note", name, unsealed, "nothing: the next start seals it")
        elif state != "sealed":
            help_ = helps.get(state, "nothing: the next start cuts it off and counts it")
            yield _finding(severities.get(state, "note"), name, fault_of(verdict), help_)


def _about_names(found: Survey) -> Iterator[LogFinding]:
    foreign = Fault(0, "log files", "a foreign file")
    for name in found.foreign:
        yield _finding(
            "note", name, foreign, "move it elsewhere if you know it; the log ignores it"
        )
    temporary = Fault(0, "segments", "a segment being prepared or deleted")
    for name in found.temporary:
        yield _finding("note", name, temporary, "nothing: the next start removes it")
    kept = Fault(0, "segments", "a part that a start or a repair set aside")
    for name in found.aside:
        yield _finding("note", name, kept, "delete it when it is no longer needed")


def _finding(severity: Severity, file: str, fault: Fault, help_: str) -> LogFinding:
    return LogFinding(
        severity=severity,
        file=file,
        offset=fault.offset,
        expected=fault.expected,
        found=fault.found,
        help=help_,
    )
