"""The free space of the disks that the daemon writes to.

The check runs in a thread with a time-out, because a file system may hang; the last result remains
valid. Free space does not show whether the log's file system accepts writes: one that failed or was
remounted read-only has as much as before. So the log's folder is touched from time to time.
"""

from __future__ import annotations

import errno
import math
import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from ingester.config.settings import Settings

LOOK_S = 1.0
TIMEOUT_S = 5.0
TOUCH_S = 10.0
"""The time between two touches; each is a write to the file system."""
_OF_ITSELF = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EDQUOT)
"""Errors of a touch that do not mean that files in the folder cannot be written."""


class DiskSpace(NamedTuple):
    """The space of one file system; ``free_files`` is None without a limit."""

    free_bytes: int
    total_bytes: int
    free_files: int | None


class Disks:
    """The space for a log on disk, for spilled rows, and for a store on local files."""

    def __init__(self, settings: Settings) -> None:
        url = settings.store_url
        self._folders = {
            "log": settings.data_dir / "wal" if settings.wal.disk == "on" else None,
            "spill": settings.data_dir / "spill",
            "store": Path(url.removeprefix("file://")) if url.startswith("file://") else None,
        }
        self._found: dict[str, DiskSpace | None] = {}
        self._limiter = trio.CapacityLimiter(1)
        self._touched_at, self._was_there = -math.inf, False
        self.log_problem: str | None = None
        """Why the log's file system accepts no writes, by the last touch; None if it does."""

    def room(self, name: str) -> DiskSpace | None:
        """Return the space of ``log``, ``spill`` or ``store``; None if unknown."""
        return self._found.get(name)

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.look()
            await trio.sleep(LOOK_S)

    async def look(self) -> None:
        """Check once."""
        with trio.move_on_after(TIMEOUT_S):
            found = await trio.to_thread.run_sync(
                partial(_rooms, self._folders, self._was_there),
                limiter=self._limiter,
                abandon_on_cancel=True,
            )
            self._found = found
            if not self._was_there or trio.current_time() - self._touched_at >= TOUCH_S:
                self._touched_at = trio.current_time()
                problem = await trio.to_thread.run_sync(
                    partial(_touch, self._folders["log"]),
                    limiter=self._limiter,
                    abandon_on_cancel=True,
                )
                # A start makes the folder; until then there is nothing that could fail.
                self._was_there = self._was_there or problem is None
                self.log_problem = problem if self._was_there else None


def _touch(folder: Path | None) -> str | None:
    """Set the folder's time; return the error, if the file system is the cause."""
    if folder is None:
        return None
    try:
        os.utime(folder)
    except OSError as exc:
        return None if exc.errno in _OF_ITSELF else exc.strerror
    return None


def _rooms(folders: dict[str, Path | None], made: bool) -> dict[str, DiskSpace | None]:
    """The space by name; before the log's folder is ``made``, that of its parent."""
    found = {name: None if at is None else _room(at) for name, at in folders.items()}
    log = folders["log"]
    return found | {"log": None} if made and log is not None and _is_gone(log) else found


def _is_gone(folder: Path) -> bool:
    """Whether the folder does not exist; other errors are left to the touch."""
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _room(folder: Path) -> DiskSpace | None:
    """The space where the folder is or will be."""
    for at in (folder, *folder.parents):
        try:
            found = os.statvfs(at)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        files = found.f_favail if found.f_files else None
        return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, files)
    return None
