"""Logs that other daemons left behind, adopted automatically from configured folders.

    folder of ``recovery.adopt`` ─┬─ a daemon holds it ───────────▶ "held"
                                  └─ free for ``adopt_after`` ────▶ adopt ─┬─▶ "adopted"
                                                                           └─▶ "failed": retried

A folder is adopted as by ``ingester wal adopt``, with the same guarantees: each row is added once,
even if several daemons adopt the log. An adopted log is read again only after a change. Failures
are retried with increasing pauses. Loop only; blocking work runs in threads.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog
import trio

from ingester.config.settings import RecoverySettings
from ingester.dml.record import DamagedRecord
from ingester.flush.file_writer import CannotEncode
from ingester.observability.status import AdoptionState, AdoptionStatus
from ingester.recovery.adopt import Adoption, CannotAdopt, adopt
from persist.manifest import ManifestError
from persist.store import ObjectStore, StoreError
from wal import DirectoryLocked, LogError
from wal.disk import LOCK_NAME

log = structlog.get_logger(__name__)

LOOK_S = 60.0
"""The interval of looks at the folders."""
LONGEST_WAIT_S = 3600.0
"""The longest pause between two attempts."""

Adopt = Callable[[Path], Adoption]
Shape = tuple[tuple[str, int, int], ...]
"""A log's segments: name, bytes and modification time of each."""


class _Seen(NamedTuple):
    """The last look at a folder."""

    shape: Shape
    since: float


class LeftLogs:
    """Adopts logs of folders that no daemon holds.

    Args:
        adopt: adopts one folder; blocks.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        settings: RecoverySettings,
        own: Path,
        adopt: Adopt,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._own = own.resolve()
        self._adopt = adopt
        self._clock = clock
        self._free: dict[Path, _Seen] = {}
        self._done: dict[Path, Shape] = {}
        self._tries: dict[Path, tuple[float, float]] = {}
        self._told: dict[Path, AdoptionStatus] = {}

    def statistics(self) -> list[AdoptionStatus]:
        """The status of each folder, by name."""
        return [self._told[folder] for folder in sorted(self._told)]

    async def run(self) -> None:
        """Look at the folders regularly until cancelled, if there are any."""
        pause_s = min(LOOK_S, max(0.2, self._settings.adopt_after))
        while self._settings.adopt:
            for folder in await trio.to_thread.run_sync(self._folders):
                await self._look(folder)
            await trio.sleep(pause_s)

    def _folders(self) -> list[Path]:
        found = dict.fromkeys(
            folder for named in self._settings.adopt for folder in _expanded(Path(named))
        )
        return [folder for folder in found if folder.resolve() != self._own]

    async def _look(self, folder: Path) -> None:
        seen = await trio.to_thread.run_sync(partial(_free_log, folder))
        now = self._clock()
        if isinstance(seen, str):
            self._free.pop(folder, None)
            self._tell(folder, seen)
            return
        before = self._free.get(folder)
        if before is None or before.shape != seen:
            before = self._free[folder] = _Seen(seen, now)
        if self._done.get(folder) == seen:
            if self._told[folder].state != "adopted":
                self._tell(folder, "adopted")  # its daemon was back for a while and wrote nothing
            return
        wait_s, not_before = self._tries.get(folder, (LOOK_S, float("-inf")))
        if now - before.since < self._settings.adopt_after:
            self._tell(folder, "waiting")
        elif now >= not_before:
            self._tries[folder] = (min(2 * wait_s, LONGEST_WAIT_S), now + wait_s)
            await self._try(folder, seen)

    async def _try(self, folder: Path, shape: Shape) -> None:
        self._tell(folder, "adopting")
        log.info("adopting a log that was left", directory=str(folder))
        try:
            done = await trio.to_thread.run_sync(
                partial(self._adopt, folder), abandon_on_cancel=True
            )
        except DirectoryLocked:
            self._tell(folder, "held")  # its daemon is back
            return
        except (
            LogError, DamagedRecord, CannotAdopt, CannotEncode, ManifestError, StoreError, OSError,
            ValueError,
        ) as exc:  # fmt: skip
            self._fail(folder, str(exc))
            return
        if done.refused:
            refused = [f"{each.namespace}/{each.table}: {each.refused}" for each in done.refused]
            self._fail(folder, "; ".join(refused), done)
            return
        self._done[folder] = shape
        self._tries.pop(folder, None)
        rows = sum(each.rows for each in done.tables)
        self._tell(folder, "adopted", rows)
        log.info("log adopted", directory=str(folder), rows=rows, epochs=done.epochs)

    def _fail(self, folder: Path, why: str, done: Adoption | None = None) -> None:
        log.warning("log not adopted", directory=str(folder), error=why, runbook="not-adopted")
        self._told[folder] = AdoptionStatus(
            directory=str(folder),
            state="failed" if done is None else "refused",
            at=_now(),
            rows=0 if done is None else sum(each.rows for each in done.tables),
            refused_rows=0 if done is None else sum(each.refused_rows for each in done.refused),
            problem=why,
        )

    def _tell(self, folder: Path, state: AdoptionState, rows: int = 0) -> None:
        self._told[folder] = AdoptionStatus(
            directory=str(folder), state=state, at=_now(), rows=rows
        )


def adopt_into(store: ObjectStore, target_file_bytes: int) -> Adopt:
    """A function that adopts a folder's log into a store."""
    return partial(adopt, store=store, target_file_bytes=target_file_bytes)


def _expanded(named: Path) -> Iterator[Path]:
    """The folder, or all folders that match if its last part is a pattern."""
    if "*" in named.name:
        yield from sorted(each for each in named.parent.glob(named.name) if each.is_dir())
    else:
        yield named


def _free_log(folder: Path) -> Shape | AdoptionState:
    """The segments of a folder that no daemon holds, or why there is nothing to adopt. Blocks."""
    segments = folder / "wal"
    try:
        shape = tuple(
            (each.name, found.st_size, found.st_mtime_ns)
            for each in sorted(segments.glob("*.wal"))
            for found in (each.stat(),)
        )
        if not shape:
            return "absent"
        return "held" if _is_held(folder / LOCK_NAME) else shape
    except OSError:
        return "absent"


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


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
