"""The log's errors, by who must act. Their messages carry the values needed.

=====================  =============================================================
error                  who acts
=====================  =============================================================
``LogFull``            the caller, later: the disk is full; nothing was kept
``LogWriteFailed``     the caller, later: the disk refused; the write was cut back
``LogClosed``          the caller, elsewhere: the log is stopping, stopped or dead
``LogFailed``          the process ends: the disk cannot be trusted
``OutcomeUnknown``     the caller, elsewhere: a later process decides what the store has
``LogDamaged``         an operator: acknowledged bytes fail their checks
``LogTooNew``          an operator: a newer version wrote this log
``DirectoryLocked``    an operator: another process uses the folder
=====================  =============================================================
"""

from __future__ import annotations

import errno
from pathlib import Path

REPAIR_COMMAND = "ingester wal repair"
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class LogError(Exception):
    """The base of the log's errors."""


class LogFull(LogError):
    """The disk is full. Nothing of the operation was kept; a later call may succeed."""


class LogWriteFailed(LogError):
    """The disk refused a write, which was cut back; a later call may succeed."""


class LogClosed(LogError):
    """The log takes nothing more: it is closing, closed, cancelled or has failed."""


class LogFailed(LogError):
    """A sync or a cut failed: the disk's content is unknown, and the process must end.

    An operation answered with this may or may not exist after a restart.
    """


class OutcomeUnknown(LogError):
    """The process ends before it knows whether the store has the entry; it may be applied later."""


class LogDamaged(LogError):
    """Durable bytes fail their checks.

    Attributes: ``file``, ``offset`` (bytes from its start), ``expected``, ``found`` and ``help``,
    the command to run next.
    """

    def __init__(self, file: Path, offset: int, expected: str, found: str) -> None:
        self.file = file
        self.offset = offset
        self.expected = expected
        self.found = found
        self.help = f"{REPAIR_COMMAND} {file.parent}"
        super().__init__(
            f"{file} is damaged at offset {offset}: expected {expected}, found {found}; "
            f"run: {self.help}"
        )


class LogTooNew(LogError):
    """A newer version wrote a segment or record; this version must not touch it."""

    def __init__(self, file: Path | str, offset: int, found: str) -> None:
        self.file = file
        self.offset = offset
        self.found = found
        super().__init__(
            f"{file} was written by a newer version (offset {offset}: {found}); "
            "start that version, or a later one"
        )


class DirectoryLocked(LogError):
    """Another process holds the data directory; ``pid`` is its id, or None if unknown."""

    def __init__(self, path: Path, pid: int | None) -> None:
        self.path = path
        self.pid = pid
        holder = "an unknown process" if pid is None else f"process {pid}"
        super().__init__(f"{path} is locked by {holder}; stop it first")


def from_os_error(exc: OSError, doing: str) -> LogFull | LogWriteFailed:
    """The retryable error for `exc`: ``LogFull`` if there is no space."""
    kind = LogFull if exc.errno in _NO_SPACE else LogWriteFailed
    return kind(f"{doing}: {exc.strerror or exc}")


def is_no_space(exc: OSError) -> bool:
    """Whether the disk or the quota is full."""
    return exc.errno in _NO_SPACE
