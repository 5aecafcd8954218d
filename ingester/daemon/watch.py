"""The watch over a daemon: alarms, the state of its store and disks, the last minutes.

    each second        the loop has turned; disks looked at; figures gathered ─▶ alarms judged
    each five seconds  figures of the moment ─▶ history
    beside it          ``store_probe``

Law of this file: it starts before the daemon has an epoch, since a start that waits has to be told
of, too. It reads what parts tell of themselves and changes nothing of them. Loop only; what may
block runs in a thread.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import structlog
import trio

from ingester import __version__
from ingester.config.settings import Settings
from ingester.daemon.assembly import Runtime
from ingester.daemon.disks import Disks
from ingester.daemon.figures import Figures, runtime_facts, security_facts
from ingester.daemon.loop_watch import TURN_S, LoopWatch
from ingester.daemon.store_probe import StoreProbe
from ingester.observability.alarms import Alarms, Facts
from ingester.observability.history import STEP_S, HistoryRing
from ingester.observability.logs import RecentProblems
from ingester.observability.standing import Alarm, DiskStatus, History, StoreState
from ingester.observability.standing_metrics import Standing
from ingester.observability.status import SecurityStatus
from persist.store import ObjectStore

log = structlog.get_logger(__name__)

FAILURES_S = 60.0


class Watch:
    """Watches from the start of the process to its end.

    Args:
        security: tells who may come in, with the certificate and the tokens.
    """

    def __init__(
        self, settings: Settings, problems: RecentProblems, security: Callable[[], SecurityStatus]
    ) -> None:
        self._settings = settings
        self._security = security
        self._loop = LoopWatch()
        self._probe = StoreProbe()
        self._disks = Disks(settings)
        self._alarms = Alarms()
        self._ring = HistoryRing()
        self._figures = Figures(problems, self._probe.watch)
        self._failed: deque[tuple[float, int]] = deque()
        self._runtime: Runtime | None = None

    def watched(self, store: ObjectStore) -> ObjectStore:
        """Return the store with a watch on it, from now on the daemon's."""
        return self._probe.watched(store)

    def begin(self, runtime: Runtime) -> None:
        """Watch this daemon from now on: it has an epoch. Call once."""
        self._runtime = runtime
        self._probe.expect(runtime.writer.ingester_id, runtime.writer.epoch)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._probe.run)
            nursery.start_soon(self._disks.run)
            try:
                await self._turn()
            finally:
                self._loop.end()

    async def _turn(self) -> None:
        recorded_at = trio.current_time()
        while True:
            self._loop.turned()
            self.judge()
            if trio.current_time() - recorded_at >= STEP_S - TURN_S / 2:
                recorded_at = trio.current_time()
                self._record()
            await trio.sleep(TURN_S)

    @property
    def turns(self) -> bool:
        """Whether the loop has turned within the last half minute."""
        return self._loop.turns

    def standing(self, answers: Counter[tuple[str, int]]) -> Standing:
        """Return the figures for metrics; ``answers`` are HTTP's, by route and status."""
        runtime = self._runtime
        return Standing(
            version=__version__,
            alarms={alarm.name for alarm in self.alarms()},
            store=self.store_state(),
            requests=self._probe.watch.tally(),
            disk=self.disk(),
            oldest_unpersisted_s=None if runtime is None else runtime.tree.oldest_s() or 0.0,
            refresh_lag_s=0.0 if runtime is None else runtime.catalog.refresh_lag_s,
            fenced=runtime is not None and runtime.state == "fenced",
            answers=answers,
        )

    def judge(self) -> None:
        """Judge the alarms by the figures of now, and tell the log of those that come and go."""
        begun, gone = self._alarms.judge(self._facts(), trio.current_time(), time.time())
        for alarm in begun:
            log.warning(
                "alarm raised",
                alarm=alarm.name,
                severity=alarm.severity,
                said=alarm.message,
                runbook=alarm.runbook,
            )
        for name in gone:
            log.info("alarm fell", alarm=name)

    def alarms(self) -> list[Alarm]:
        """Return what is raised, judged now."""
        self.judge()
        return self._alarms.raised()

    def store_state(self) -> StoreState:
        """Return how the store stands."""
        found = self._probe.watch.standing()
        return StoreState(
            state=found.state,
            since=_utc(found.since),
            last_ok_at=_utc(found.last_ok_at),
            last_error=found.last_error,
            reads=found.reads,
            writes=found.writes,
        )

    def disk(self) -> DiskStatus:
        """Return the room of the disks, by the last look."""
        runtime, room = self._runtime, self._disks.room
        log_room, spill, store = room("log"), room("spill"), room("store")
        return DiskStatus(
            log_free_bytes=None if log_room is None else log_room.free_bytes,
            log_total_bytes=None if log_room is None else log_room.total_bytes,
            log_free_files=None if log_room is None else log_room.free_files,
            log_problem=self._disks.log_problem,
            reserved_bytes=0 if runtime is None else max(0, runtime.wal.certain_bytes),
            full=runtime is not None and runtime.admission.disk_full(),
            spill_free_bytes=None if spill is None else spill.free_bytes,
            store_free_bytes=None if store is None else store.free_bytes,
            store_total_bytes=None if store is None else store.total_bytes,
        )

    def history(self) -> History:
        """Return the last minutes."""
        return self._ring.tell(_since_boot(), time.time())

    def _facts(self) -> Facts:
        facts: dict[str, Any] = security_facts(self._security())
        if self._runtime is not None:
            facts |= runtime_facts(self._runtime, self._settings)
            facts["failed_persists"] = self._failed_lately(self._runtime)
        return Facts(
            store=self.store_state(),
            disk=self.disk(),
            starting=self._runtime is None,
            superseded=self._probe.superseded,
            segment_bytes=self._settings.wal.segment_bytes,
            stalled_s=self._loop.late_s,
            **facts,
        )

    def _failed_lately(self, runtime: Runtime) -> int:
        """The attempts of persists that have failed within the last minute."""
        now, failed = trio.current_time(), runtime.instrumentation.failed_attempts
        self._failed.append((now, failed))
        while now - self._failed[0][0] > FAILURES_S:
            self._failed.popleft()
        return failed - self._failed[0][1]

    def _record(self) -> None:
        runtime = self._runtime
        if runtime is None:
            return
        room = self._disks.room("log")
        own = {
            "log_free_bytes": None if room is None else room.free_bytes,
            "alarms": len(self._alarms.raised()),
        }
        self._ring.add(_since_boot(), {**self._figures.gather(runtime, trio.current_time()), **own})


def _since_boot() -> float:
    """Seconds that never run backwards, and also count while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _utc(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
