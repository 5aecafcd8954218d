"""``wal inspect | verify | repair | adopt``: the log of a stopped daemon, on disk or in the store.

``repair`` changes the log. ``adopt`` commits its rows to the object store, and deletes the log
objects of a log there.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

import wal.inspection
from ingester.config.settings import Settings
from ingester.config.sources import load
from wal import DirectoryLock, LogError
from wal.disk import LOCK_NAME

from .exits import FAILED, REFUSED, CommandFailed
from .printing import print_json, print_line, print_table, say, size

if TYPE_CHECKING:
    from ingester.recovery.adopt import Adoption
    from persist.store import ObjectStore

_STOPS_THE_START = ("damage", "newer")


class LogTools(Protocol):
    """The commands for one log. Each raises CommandFailed if it cannot do its work."""

    def inspect(self, as_json: bool) -> None:
        """Print its parts."""

    def verify(self, as_json: bool) -> None:
        """Print everything that a clean stop would not leave; exit 1 if a start would refuse it."""

    def repair(self, as_json: bool) -> None:
        """Move damaged parts aside."""

    def adopt(self, as_json: bool) -> None:
        """Commit the rows that are in no file.

        Raises:
            ConfigError: Invalid settings.
            CommandFailed: Exit code 4 if the store does not answer, otherwise 1, also if rows of a
                table with a primary key were refused.
        """


class FolderTools:
    """The log in a data directory."""

    def __init__(self, directory: Path, flags: Mapping[str, object], file: Path | None) -> None:
        self._directory = directory
        self._flags = flags
        self._file = file

    def inspect(self, as_json: bool) -> None:
        segments = wal.inspection.inspect(_log_folder(self._directory))
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

    def verify(self, as_json: bool) -> None:
        print_findings(wal.inspection.verify(_log_folder(self._directory)), as_json)

    def repair(self, as_json: bool) -> None:
        """Refused while a daemon uses the directory."""
        folder = _log_folder(self._directory)
        try:
            with contextlib.ExitStack() as stack:
                if folder != self._directory or (folder.parent / LOCK_NAME).exists():
                    stack.enter_context(DirectoryLock(folder.parent))
                report = wal.inspection.repair(folder)
        except LogError as exc:
            raise CommandFailed(str(exc)) from exc
        if as_json:
            print_json(report)
        else:
            _print_repair(report)

    def adopt(self, as_json: bool) -> None:
        """Refused while a daemon uses the directory."""
        # Imported here because the other commands need neither pyarrow nor a store.
        from ingester.recovery.adopt import adopt

        folder = _log_folder(self._directory)
        has_name = folder == self._directory and folder.name != "wal"
        settings = _settings_of(folder if has_name else folder.parent, self._flags, self._file)
        target = settings.persist.target_file_bytes
        directory = self._directory
        run_adoption(
            settings, lambda store: adopt(directory, store, target_file_bytes=target), as_json
        )


def print_findings(findings: Sequence[wal.inspection.LogFinding], as_json: bool) -> None:
    """Print findings; exit 1 if a start would refuse the log."""
    if as_json:
        print_json(findings)
    elif not findings:
        print_line("no findings: the log is intact")
    else:
        headings = ["severity", "file", "offset", "expected", "found", "help"]
        print_table(
            headings,
            [(f.severity, f.file, str(f.offset), f.expected, f.found, f.help) for f in findings],
        )
    if any(finding.severity in _STOPS_THE_START for finding in findings):
        raise typer.Exit(FAILED)


def _print_repair(report: wal.inspection.RepairReport) -> None:
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


def run_adoption(
    settings: Settings, adopt: "Callable[[ObjectStore], Adoption]", as_json: bool
) -> None:
    """Open the store, adopt a log and print the result."""
    from ingester.dml.record import DamagedRecord
    from ingester.flush.file_writer import CannotEncode
    from ingester.recovery.adopt import CannotAdopt
    from persist.manifest import CommitUnclear, ManifestError
    from persist.store import StoreError, StoreUnavailable, check_store, open_store

    try:
        store = open_store(settings.store_url, **settings.store_options)
        check_store(store)
        done = adopt(store)
    except (StoreUnavailable, CommitUnclear) as exc:
        raise CommandFailed(
            f"the object store does not answer: {exc}; run the same command again: no row is added"
            " twice",
            REFUSED,
        ) from exc
    except (
        LogError, DamagedRecord, CannotAdopt, CannotEncode, ManifestError, StoreError, ValueError
    ) as exc:  # fmt: skip
        raise CommandFailed(str(exc)) from exc
    _print_adoption(done, as_json)


def _print_adoption(done: "Adoption", as_json: bool) -> None:
    if as_json:
        print_json(done)
    elif not done.tables:
        print_line("nothing to adopt: the log holds no operations")
    else:
        headings = ["namespace", "table", "rows adopted", "files", "rows in files before"]
        rows = [
            (t.namespace, t.table, t.rows, t.files, t.skipped_rows - t.taken_over_rows)
            for t in done.tables
        ]
        print_table(headings, rows)
    for one in done.tables:
        if one.taken_over_rows:
            say(
                f"{one.taken_over_rows:,} rows of table {one.namespace}/{one.table} were skipped:"
                " another daemon has since received these sequences of their origins. Clients that"
                " number their rows have sent them again there. A client that continues from the"
                " last known sequence (an origin without first_sequence) has reused the numbers for"
                " other rows; then the skipped rows are in this log only"
            )
    for lost in done.lost:
        say(
            f"{lost.operations:,} operations of table {lost.namespace}/{lost.table} were"
            f" acknowledged on the disk of epoch {lost.epoch} only and are lost with it. If that"
            " disk is found: `ingester wal adopt DIR`"
        )
    if done.refused:
        raise CommandFailed(
            "; ".join(
                f"{one.refused_rows} rows of table {one.namespace}/{one.table} were not adopted and"
                f" remain in the log: {one.refused}"
                for one in done.refused
            )
        )


def _settings_of(data_dir: Path, flags: Mapping[str, object], file: Path | None) -> Settings:
    """The settings for a log. The store defaults to the one recorded in the data directory.

    Raises:
        ConfigError: Invalid settings.
        CommandFailed: The recorded store cannot be read.
    """
    from ingester.recovery.marks import DamagedMark, read_mark

    given = {"data_dir": str(data_dir)} | dict(flags)
    loaded = load(given, file=file)
    if loaded.origins["store"] != "default":
        return loaded.settings
    try:
        mark = read_mark(data_dir)
    except (DamagedMark, OSError) as exc:
        raise CommandFailed(f"{exc}; give the store with --store URL") from exc
    return (
        loaded.settings
        if mark is None
        else load(given | {"store": mark.store_url}, file=file).settings
    )


def _log_folder(directory: Path) -> Path:
    """The folder of the segments: the given one, or ``wal`` inside a data directory."""
    if not directory.is_dir():
        raise CommandFailed(f"{directory} is not a folder")
    inner = directory / "wal"
    return inner if inner.is_dir() else directory
