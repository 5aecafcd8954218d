"""Law: looking changes nothing.

`inspect` and `verify` read, also a log that somebody runs; `repair` (see `wal.repair`) is the one
call that writes, to a log that nobody runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from wal.disk import Disk
from wal.errors import REPAIR_COMMAND
from wal.format import segment_name
from wal.recovery import Survey, facts_of, fault_of, survey
from wal.repair import Gap, RepairedSegment, RepairReport, repair
from wal.settings import SegmentFacts

__all__ = [
    "Finding",
    "Gap",
    "RepairReport",
    "RepairedSegment",
    "SegmentFacts",
    "inspect",
    "repair",
    "verify",
]

_START_CUTS = "nothing: the next start cuts it off and counts it"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing about a log that is not as a clean stop leaves it.

    `severity` "damage": the start stops; something acknowledged may be lost. "newer": the start
    stops; a newer version wrote it. "note": the start goes on. `help` says what to do.
    """

    severity: Literal["damage", "newer", "note"]
    file: str
    offset: int
    expected: str
    found: str
    help: str


def inspect(directory: Path, disk: Disk | None = None) -> list[SegmentFacts]:
    """What each segment holds, by rising number; also of damaged ones, up to the damage.

    Raises:
        OSError: the folder cannot be read.
    """
    found = survey(disk or Disk(), directory, running=True)
    return [
        facts_of(verdict, state)
        for verdict, state in zip(found.verdicts, found.states(), strict=True)
    ]


def verify(directory: Path, disk: Disk | None = None) -> list[Finding]:
    """Everything that a start would stop at, cut, remove or pass by; empty after a clean stop.

    Raises:
        OSError: the folder cannot be read.
    """
    found = survey(disk or Disk(), directory, running=True)
    return _about_segments(directory, found) + _about_names(found)


def _about_segments(directory: Path, found: Survey) -> list[Finding]:
    findings: list[Finding] = []
    repair_it = f"{REPAIR_COMMAND} {directory}"
    expected: int | None = None
    for verdict, state in zip(found.verdicts, found.states(), strict=True):
        name = segment_name(verdict.number)
        if expected is not None and expected < verdict.number and state != "headerless":
            findings.append(
                Finding(
                    severity="damage",
                    file=segment_name(expected),
                    offset=0,
                    expected=f"segments {expected} to {verdict.number - 1}",
                    found="no such files",
                    help=repair_it,
                )
            )
        expected = verdict.number + 1
        if state == "sealed":
            continue
        if state == "open":
            findings.append(
                Finding(
                    severity="note",
                    file=name,
                    offset=verdict.end,
                    expected="a seal",
                    found="none: in use, or not stopped cleanly",
                    help="nothing: the next start seals it",
                )
            )
            continue
        fault = fault_of(verdict)
        help_by_state = {"damaged": repair_it, "newer": "start the version that wrote it"}
        findings.append(
            Finding(
                severity="damage"
                if state == "damaged"
                else "newer"
                if state == "newer"
                else "note",
                file=name,
                offset=fault.offset,
                expected=fault.expected,
                found=fault.found,
                help=help_by_state.get(state, _START_CUTS),
            )
        )
    return findings


def _about_names(found: Survey) -> list[Finding]:
    kinds = (
        (
            found.foreign,
            "log files",
            "a foreign file",
            "move it away if you know it; the log leaves it alone",
        ),
        (
            found.temporary,
            "segments",
            "a segment in the making, or on its way out",
            "nothing: the next start removes it",
        ),
        (
            found.aside,
            "segments",
            "a piece that was moved aside",
            "delete it when nobody needs it",
        ),
    )
    return [
        Finding(severity="note", file=name, offset=0, expected=expected, found=what, help=help_)
        for names, expected, what, help_ in kinds
        for name in names
    ]
