"""The logs that ``recovery.adopt`` names: in data directories, and in the store (``store:ID``).

A folder is free when no process locks it. A log in the store is free when nothing below its folder
changes, heartbeat included, and no epoch of its ingester is claimed: the clock of the one that
looks decides when to adopt, and fences make it safe. Blocks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from ingester.observability.status import AdoptionState
from ingester.recovery.adopt import Adoption, adopt
from ingester.recovery.adopt_store import adopt_from_store
from ingester.store_log.heartbeat import decode_heartbeat, heartbeat_path
from persist.manifest.paths import claim_path, claims_folder
from persist.store import ObjectStore, folders
from wal.disk import LOCK_NAME
from wal.objects import FOLDER, object_folder, parse_object

IN_STORE = "store:"

Shape = tuple[tuple[str, int, object], ...]
"""The parts of a log: name, bytes and modification time of each."""


class LeftLog(Protocol):
    """A log that a daemon may have left behind."""

    @property
    def name(self) -> str:
        """The data directory, or ``store:ID``."""

    def look(self) -> Shape | AdoptionState:
        """The parts of a log that may be adopted, or why there is nothing to adopt.

        Raises:
            StoreError: the store does not tell.
        """

    def adopt(self) -> Adoption:
        """Adopt it, as ``ingester wal adopt`` does."""


@dataclass(frozen=True)
class LeftSources:
    """Finds the logs of the setting ``recovery.adopt``, without this daemon's own."""

    store: ObjectStore
    target_file_bytes: int
    own_dir: Path
    own_id: str

    def find(self, named: list[str]) -> list[LeftLog]:
        """The logs by what the setting names, each once.

        Raises:
            StoreError: the store does not tell which logs match a pattern.
        """
        found: dict[str, LeftLog] = {}
        for each in named:
            if each.startswith(IN_STORE):
                for ingester_id in self._ids(each.removeprefix(IN_STORE)):
                    log = LeftInStore(ingester_id, self.store, self.target_file_bytes)
                    found[log.name] = log
            else:
                for folder in _expanded(Path(each)):
                    if folder.resolve() != self.own_dir.resolve():
                        left = LeftFolder(folder, self.store, self.target_file_bytes)
                        found[left.name] = left
        return list(found.values())

    def _ids(self, pattern: str) -> list[str]:
        ids = [pattern]
        if "*" in pattern:
            ids = [each for each in folders(self.store, FOLDER) if fnmatchcase(each, pattern)]
        return [each for each in ids if each != self.own_id]


def _expanded(named: Path) -> Iterator[Path]:
    """The folder, or all folders that match if its last part is a pattern."""
    if "*" in named.name:
        yield from sorted(each for each in named.parent.glob(named.name) if each.is_dir())
    else:
        yield named


@dataclass(frozen=True)
class LeftFolder:
    """The log of a data directory."""

    folder: Path
    store: ObjectStore
    target_file_bytes: int

    @property
    def name(self) -> str:
        return str(self.folder)

    def look(self) -> Shape | AdoptionState:
        try:
            shape = tuple(
                (each.name, found.st_size, found.st_mtime_ns)
                for each in sorted((self.folder / "wal").glob("*.wal"))
                for found in (each.stat(),)
            )
            if not shape:
                return "absent"
            return "held" if _is_held(self.folder / LOCK_NAME) else shape
        except OSError:
            return "absent"

    def adopt(self) -> Adoption:
        return adopt(self.folder, self.store, target_file_bytes=self.target_file_bytes)


def _is_held(lock: Path) -> bool:
    """Whether a process holds the lock. A concurrent attempt to take it may fail for a moment."""
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@dataclass(frozen=True)
class LeftInStore:
    """The log objects of an ingester."""

    ingester_id: str
    store: ObjectStore
    target_file_bytes: int

    @property
    def name(self) -> str:
        return f"{IN_STORE}{self.ingester_id}"

    def look(self) -> Shape | AdoptionState:
        listed = list(self.store.list(object_folder(self.ingester_id)))
        names = [name for info in listed if (name := parse_object(info.path)) is not None]
        if not names:
            return "absent"
        path = heartbeat_path(self.ingester_id)
        if any(info.path == path for info in listed):
            beat = decode_heartbeat(self.store.get(path))
            if beat is not None and all(beat.covers(name) for name in names):
                return "absent"
        # A start shows first by its claim.
        after = claim_path(self.ingester_id, max(name.epoch for name in names))
        listed += self.store.list(claims_folder(self.ingester_id), after)
        return tuple((info.path, info.bytes, info.at) for info in listed)

    def adopt(self) -> Adoption:
        return adopt_from_store(
            self.ingester_id, self.store, target_file_bytes=self.target_file_bytes
        )
