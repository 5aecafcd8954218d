"""``wal inspect | verify | repair``: a log whose daemon is stopped. Only ``repair`` writes."""

import contextlib
from pathlib import Path

import typer

import wal.inspection
from wal import DirectoryLock, LogError
from wal.lock import LOCK_NAME

from .exits import FAILED, CommandFailed
from .facts import print_json, print_line, print_table, size

_STOPS_THE_START = ("damage", "newer")


def print_segments(directory: Path, as_json: bool) -> None:
    """What each segment holds."""
    segments = wal.inspection.inspect(_log_folder(directory))
    if as_json:
        print_json(segments)
        return
    headings = ["segment", "state", "epoch", "first", "last", "operations", "size", "problem"]
    rows = [
        (
            str(one.number),
            one.state,
            str(one.epoch),
            str(one.first_seq),
            str(one.last_seq),
            one.operations,
            size(one.bytes),
            one.problem or "",
        )
        for one in segments
    ]
    print_table(headings, rows)


def print_findings(directory: Path, as_json: bool) -> None:
    """Everything that is not as a clean stop leaves it; exit 1 when a start would stop at it."""
    findings = wal.inspection.verify(_log_folder(directory))
    if as_json:
        print_json(findings)
    elif not findings:
        print_line("nothing found: the log is whole")
    else:
        headings = ["severity", "file", "offset", "expected", "found", "help"]
        print_table(
            headings,
            [(f.severity, f.file, str(f.offset), f.expected, f.found, f.help) for f in findings],
        )
    if any(finding.severity in _STOPS_THE_START for finding in findings):
        raise typer.Exit(FAILED)


def run_repair(directory: Path, as_json: bool) -> None:
    """Move damaged parts aside; refused while a daemon runs on the directory."""
    folder = _log_folder(directory)
    try:
        with contextlib.ExitStack() as stack:
            if folder != directory or (folder.parent / LOCK_NAME).exists():
                stack.enter_context(DirectoryLock(folder.parent))
            report = wal.inspection.repair(folder)
    except LogError as exc:
        raise CommandFailed(str(exc)) from exc
    if as_json:
        print_json(report)
        return
    if not report.segments:
        print_line("nothing to repair: no segment is damaged")
        return
    headings = ["segment", "problem", "operations saved", "records lost", "moved to"]
    rows = [
        (
            one.file,
            one.problem,
            one.operations_saved,
            "unknown" if one.records_lost is None else str(one.records_lost),
            one.moved_to or "",
        )
        for one in report.segments
    ]
    print_table(headings, rows)
    for one in report.segments:
        for gap in one.gaps:
            print_line(f"{one.file}: operations {gap.first_seq} to {gap.last_seq} are missing")


def _log_folder(directory: Path) -> Path:
    """The folder with the segments: the one given, or ``wal`` inside a data directory."""
    if not directory.is_dir():
        raise CommandFailed(f"{directory} is not a folder")
    inner = directory / "wal"
    return inner if inner.is_dir() else directory
