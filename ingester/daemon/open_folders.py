"""Folders of before that everybody may enter: found at the start, and told.

What the daemon makes is the owner's and the group's; what it finds, an operator or an older version
has made. That goes on to be used as it is: to change it could shut out whoever reads it today.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from ingester.config.settings import Settings

log = structlog.get_logger()

_LOCAL = "file://"


def tell_open_folders(settings: Settings) -> None:
    """Warn of each folder of the log and of a local store that others than the group may use."""
    for folder, mode in open_folders(_folders(settings)):
        log.warning(
            "folder is open to everybody",
            folder=str(folder),
            mode=f"{mode:04o}",
            runbook="open-folder",
        )


def open_folders(folders: Iterator[Path]) -> Iterator[tuple[Path, int]]:
    """Yield those that are there and that others may list, enter or change, with their mode."""
    for folder in folders:
        with suppress(OSError):
            found = folder.stat().st_mode
            mode = stat.S_IMODE(found)
            # What is no folder is refused by whoever needs one there.
            if stat.S_ISDIR(found) and mode & stat.S_IRWXO:
                yield folder, mode


def _folders(settings: Settings) -> Iterator[Path]:
    yield from (settings.data_dir, settings.data_dir / "wal", settings.data_dir / "spill")
    if settings.store_url.startswith(_LOCAL):
        yield Path(settings.store_url.removeprefix(_LOCAL))
