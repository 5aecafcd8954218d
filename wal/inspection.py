"""Law: looking changes nothing.

`inspect` and `verify` read, also a log that somebody runs; `repair` (see `wal.repair`) is the one
call that writes, to a log that nobody runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from wal.disk import Disk
from wal.errors import REPAIR_COMMAND
from wal.format import parse_name, segment_name
from wal.recovery import Survey, facts_of, fault_of, survey
from wal.repair import Gap as Gap
from wal.repair import repair as repair
from wal.scan import Fault
from wal.settings import SegmentFacts

Severity = Literal["damage", "newer", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing about a log that is not as a clean stop leaves it.

    `severity` "damage": the start stops; something acknowledged may be lost. "newer": the start
    stops; a newer version wrote it. "note": the start goes on. `help` says what to do.
    """

    severity: Severity
    file: str
    offset: int
    expected: str
    found: str
    help: str


def last_writes(directory: Path) -> dict[int, float]:
    """When each segment was written to last, by its number, in seconds since 1970.

    Ask before `Log.recover`, which may write to the last one. A folder that is not there has none.
    """
    found = {}
    for path in directory.glob("*.wal") if directory.is_dir() else ():
        name = parse_name(path.name)
        if name is not None and name.suffix is None:
            found[name.number] = path.stat().st_mtime
    return found


def inspect(directory: Path, disk: Disk | None = None) -> list[SegmentFacts]:
    """The facts of each segment, by rising number; of damaged ones, up to the damage.

    Raises:
        OSError: the folder cannot be read.
    """
    found = survey(disk or Disk(), directory, running=True)
    return [
        facts_of(verdict, state)
        for verdict, state in zip(found.verdicts, found.states(), strict=True)
    ]


def verify(directory: Path, disk: Disk | None = None) -> list[Finding]:
    """The findings that a start would stop at, cut, remove or pass by; empty after a clean stop.

    Raises:
        OSError: the folder cannot be read.
    """
    found = survey(disk or Disk(), directory, running=True)
    return [*_about_segments(directory, found), *_about_names(found)]


def _about_segments(directory: Path, found: Survey) -> Iterator[Finding]:
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


def _about_names(found: Survey) -> Iterator[Finding]:
    foreign = Fault(0, "log files", "a foreign file")
    for name in found.foreign:
        yield _finding(
            "note", name, foreign, "move it away if you know it; the log leaves it alone"
        )
    temporary = Fault(0, "segments", "a segment in the making, or on its way out")
    for name in found.temporary:
        yield _finding("note", name, temporary, "nothing: the next start removes it")
    kept = Fault(0, "segments", "a piece that was moved aside")
    for name in found.aside:
        yield _finding("note", name, kept, "delete it when nobody needs it")


def _finding(severity: Severity, file: str, fault: Fault, help_: str) -> Finding:
    return Finding(
        severity=severity,
        file=file,
        offset=fault.offset,
        expected=fault.expected,
        found=fault.found,
        help=help_,
    )
