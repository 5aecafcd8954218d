"""Logs that other daemons left behind, adopted automatically.

    log of ``recovery.adopt`` ─┬─ a daemon holds it ───────────▶ "held"
                               └─ free for ``adopt_after`` ────▶ adopt ─┬─▶ "adopted"
                                                                        └─▶ "failed": retried

A log is adopted as by ``ingester wal adopt``, with the same guarantees: each row is added once,
even if several daemons adopt the log. An adopted log is read again only after a change. Failures
are retried with increasing pauses. Loop only; blocking work runs in threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import structlog
import trio

from ingester.config.settings import RecoverySettings
from ingester.dml.record import DamagedRecord
from ingester.flush.file_writer import CannotEncode
from ingester.observability.status import AdoptionState, AdoptionStatus
from ingester.recovery.adopt import Adoption, CannotAdopt
from ingester.recovery.adopt_store import tell_lost
from ingester.recovery.left_sources import LeftLog, LeftSources, Shape
from persist.manifest import ManifestError
from persist.store import StoreError
from wal import DirectoryLocked, LogError

log = structlog.get_logger(__name__)

LOOK_S = 60.0
"""The longest interval of looks at the logs."""
LOOKS = 4
"""The number of looks within ``adopt_after``."""
LONGEST_WAIT_S = 3600.0
"""The longest pause between two attempts."""


class _Seen(NamedTuple):
    """The last look at a log."""

    shape: Shape
    since: float


class LeftLogs:
    """Adopts logs that no daemon holds.

    Args:
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        settings: RecoverySettings,
        sources: LeftSources,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._sources = sources
        self._clock = clock
        self._free: dict[str, _Seen] = {}
        self._done: dict[str, Shape] = {}
        self._tries: dict[str, tuple[float, float]] = {}
        self._rows: dict[str, int] = {}
        self._told: dict[str, AdoptionStatus] = {}

    def statistics(self) -> list[AdoptionStatus]:
        """The status of each log, by name."""
        return [self._told[name] for name in sorted(self._told)]

    async def run(self) -> None:
        """Look at the logs regularly until cancelled, if there are any."""
        pause_s = min(LOOK_S, max(0.2, self._settings.adopt_after / LOOKS))
        while self._settings.adopt:
            try:
                find = partial(self._sources.find, self._settings.adopt)
                for left in await trio.to_thread.run_sync(find):
                    await self._look(left)
            except StoreError as exc:
                log.warning("logs not looked at", error=str(exc), runbook="store-away")
                # What has not changed since may only have been out of reach, for its daemon too.
                self._free.clear()
            await trio.sleep(pause_s)

    async def _look(self, left: LeftLog) -> None:
        seen = await trio.to_thread.run_sync(left.look)
        name, now = left.name, self._clock()
        state = self._told[name].state if name in self._told else None
        if isinstance(seen, str):
            self._free.pop(name, None)
            self._tell(name, seen)
            return
        before = self._free.get(name)
        if before is None or before.shape != seen:
            if before is not None:
                self._tell(name, state := "held")
            before = self._free[name] = _Seen(seen, now)
        if self._done.get(name) == seen:
            if state != "adopted":
                self._tell(name, "adopted")  # its daemon was back for a while and wrote nothing
            return
        wait_s, not_before = self._tries.get(name, (LOOK_S, float("-inf")))
        if now - before.since < self._settings.adopt_after:
            if state in (None, "absent") or (state == "held" and before.since < now):
                self._tell(name, "waiting")
        elif now >= not_before:
            self._tries[name] = (min(2 * wait_s, LONGEST_WAIT_S), now + wait_s)
            await self._try(left, seen)

    async def _try(self, left: LeftLog, shape: Shape) -> None:
        name = left.name
        self._tell(name, "adopting")
        log.info("adopting a log that was left", directory=name)
        # What the adoption itself changes in the store is no sign of life.
        self._free.pop(name, None)
        try:
            done = await trio.to_thread.run_sync(left.adopt, abandon_on_cancel=True)
        except DirectoryLocked:
            self._tell(name, "held")  # its daemon is back
            return
        except (
            LogError, DamagedRecord, CannotAdopt, CannotEncode, ManifestError, StoreError, OSError,
            ValueError,
        ) as exc:  # fmt: skip
            self._fail(name, str(exc))
            return
        self._rows[name] = self._rows.get(name, 0) + sum(each.rows for each in done.tables)
        tell_lost(done.lost)
        if done.refused:
            refused = [f"{each.namespace}/{each.table}: {each.refused}" for each in done.refused]
            self._fail(name, "; ".join(refused), done)
            return
        self._done[name] = shape
        self._tries.pop(name, None)
        self._tell(name, "adopted")
        if done.epochs:
            rows = sum(each.rows for each in done.tables)
            log.info("log adopted", directory=name, rows=rows, epochs=done.epochs)

    def _fail(self, name: str, why: str, done: Adoption | None = None) -> None:
        log.warning("log not adopted", directory=name, error=why, runbook="not-adopted")
        self._told[name] = AdoptionStatus(
            directory=name,
            state="failed" if done is None else "refused",
            at=_now(),
            rows=self._rows.get(name, 0),
            refused_rows=0 if done is None else sum(each.refused_rows for each in done.refused),
            problem=why,
        )

    def _tell(self, name: str, state: AdoptionState) -> None:
        rows = self._rows.get(name, 0)
        self._told[name] = AdoptionStatus(directory=name, state=state, at=_now(), rows=rows)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
