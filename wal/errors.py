"""Law: every error of the log says who must act, and carries the values that they need.

=====================  =============================================================
error                  who acts
=====================  =============================================================
``LogFull``            the caller, later: the disk is full; nothing was kept
``LogWriteFailed``     the caller, later: the disk refused; what was written is cut
``LogClosed``          the caller, elsewhere: the log is stopping, stopped or dead
``LogFailed``          nobody here: the process ends, the disk cannot be trusted
``LogDamaged``         an operator: acknowledged bytes do not check out
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
    """The root of the errors that the log raises on its own account."""


class LogFull(LogError):
    """No room on the disk. Nothing of the operation was kept; the same call may succeed later."""


class LogWriteFailed(LogError):
    """The disk refused a write. It was cut back; the same call may succeed later."""


class LogClosed(LogError):
    """The log takes nothing any more: it is closing, closed, cancelled, or has failed."""


class LogFailed(LogError):
    """A sync or a cut failed: what the disk holds is unknown, and the process must end.

    An operation that was answered with this may or may not be there after a restart.
    """


class LogDamaged(LogError):
    """Bytes that must be there do not check out.

    Attributes: ``file``, ``offset`` (bytes from its start), ``expected``, ``found`` and
    ``help``, the command that an operator runs next.
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
    """A segment or record was written by a newer version; this one must not touch it."""

    def __init__(self, file: Path, offset: int, found: str) -> None:
        self.file = file
        self.offset = offset
        self.found = found
        super().__init__(
            f"{file} was written by a newer version (offset {offset}: {found}); "
            "start that version, or a later one"
        )


class DirectoryLocked(LogError):
    """Another process holds the data directory; ``pid`` is its id, None when it is unknown."""

    def __init__(self, path: Path, pid: int | None) -> None:
        self.path = path
        self.pid = pid
        holder = "an unknown process" if pid is None else f"process {pid}"
        super().__init__(f"{path} is locked by {holder}; stop it first")


def from_os_error(exc: OSError, doing: str) -> LogFull | LogWriteFailed:
    """The retryable error that stands for `exc`: ``LogFull`` when there is no space."""
    kind = LogFull if exc.errno in _NO_SPACE else LogWriteFailed
    return kind(f"{doing}: {exc.strerror or exc}")


def is_no_space(exc: OSError) -> bool:
    """True when the disk or the quota is full."""
    return exc.errno in _NO_SPACE
