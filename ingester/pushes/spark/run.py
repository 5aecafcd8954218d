"""The work of a driver that writes a push's data: generations, then the data, then the end.

    wait for generations ─▶ write with Spark ─▶ decide on the files ─▶ commit ─▶ wait for the end
           └────────── the files were decided on by a driver that died ───▲

It leads nothing. It writes the data once, commits it in every reachable region, and requests an
abort if the data cannot be written. A push that ends early cancels its job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pyspark.sql import DataFrame

from ingester.pushes.config import PushConfig
from ingester.pushes.driver import utc_now
from ingester.pushes.hook_runner import HookCounts
from ingester.pushes.record import PushRecord
from ingester.pushes.regions.region import StoreRegion, open_regions
from ingester.pushes.spark.committing import commit_everywhere, regions_with_generation, targets_of
from ingester.pushes.spark.feed import UNLED, RecordFeed
from ingester.pushes.spark.job import DataList, WriteJob, decide, read_data_list
from ingester.pushes.spark.result import Progress, PushFailed, PushProgress, PushResult, result_of
from ingester.pushes.spark.task import WriteTask
from ingester.pushes.states import Status
from ingester.pushes.store import PushStore
from ingester.pushes.tasks import RegionFailed
from persist.store import ObjectStore

_LOG = logging.getLogger("ingester.push")

OTHERS_S = 10.0
"""How long after the first generation the others are waited for, whose regions are unreachable or
whose hooks wait. They copy the data later."""
STEP_S = 0.5
"""The interval of steps."""
COMMIT_AGAIN_S = 5.0
CANCEL_WITHIN_S = 30.0
"""How long a cancelled job is waited for; what it still writes does not count."""
_WITH_DATA = (Status.COMPLETED, Status.WAITING, Status.SERVING)
"""The statuses of a region with all of the data."""


class DriverStage(Enum):
    """The work that a driver has left."""

    WAITING = "waiting"
    """The regions have to create their generations first."""
    WRITING = "writing"
    """The Spark job runs."""
    COMMITTING = "committing"
    """The list of files is decided."""
    DONE = "done"
    """A region has the data, or an abort was requested: only the end of the push is left."""


_NEXT: Mapping[DriverStage, frozenset[DriverStage]] = {
    DriverStage.WAITING: frozenset(
        # A former driver may have decided on the files already.
        {DriverStage.WRITING, DriverStage.COMMITTING, DriverStage.DONE}
    ),
    DriverStage.WRITING: frozenset({DriverStage.COMMITTING, DriverStage.DONE}),
    DriverStage.COMMITTING: frozenset({DriverStage.DONE}),
    DriverStage.DONE: frozenset(),
}


@dataclass(slots=True)
class PushRun:
    """The work of one driver for one push.

    Attributes:
        store: the store of the push's records.
        hooks: returns the counts of the hooks that this driver has called.
    """

    frame: DataFrame
    config: PushConfig
    store: ObjectStore
    target_bytes: int
    expected_rows: int | None = None
    progress: Progress | None = None
    hooks: Callable[[], Sequence[HookCounts]] = tuple
    _regions: dict[str, StoreRegion] = field(init=False)
    _stage: DriverStage = DriverStage.WAITING
    _job: WriteJob | None = None
    """Set from ``WRITING`` on, unless a former driver has written the data."""
    _data: DataList | None = None
    """Set from ``COMMITTING`` on."""
    _first_at: float | None = None
    _commit_at: float = 0.0

    def __post_init__(self) -> None:
        self._regions = open_regions(self.config.regions)

    def see_through(self, feed: RecordFeed) -> PushResult:
        """Write the data of a push, and return its result when it is over.

        Raises:
            PushFailed: it has ended and is not live in every region.
            StoreError: the store of the records is unreachable; the push can be resumed.
        """
        try:
            while not feed.record.over:
                for event, record in feed.wait(STEP_S):
                    self._tell(PushProgress(event.at, event.region, event.what, record))
                self._step(feed.record)
        finally:
            self._end_job()
        return self.result(feed.record)

    def _tell(self, progress: PushProgress) -> None:
        if self.progress is not None:
            self.progress(progress)
        elif progress.what.startswith(UNLED):
            _LOG.warning(progress.text())

    def result(self, record: PushRecord) -> PushResult:
        """Return the result of a push that is over, or raise :class:`PushFailed`."""
        data = self._data or read_data_list(self.store, record.push_id)
        result = result_of(record, (0, 0, 0) if data is None else data.written, self.hooks())
        if not result.live:
            raise PushFailed(result)
        return result

    def _step(self, record: PushRecord) -> None:
        if record.over:
            return
        if record.ending is not None:
            if self._job is not None and not self._job.done.is_set():
                self._job.cancel()
            return
        if self._stage is not DriverStage.DONE and _has_data(record):
            self._go(DriverStage.DONE)
        if self._stage is DriverStage.WAITING and self._may_write(record):
            self._start(record)
        if self._stage is DriverStage.WRITING:
            self._decide(record)
        if self._stage is DriverStage.COMMITTING and time.monotonic() >= self._commit_at:
            self._commit(record)

    def _go(self, stage: DriverStage) -> None:
        assert stage in _NEXT[self._stage], (self._stage, stage)
        self._stage = stage

    def _may_write(self, record: PushRecord) -> bool:
        """Whether every active region has its generation, or was waited for."""
        ready = regions_with_generation(record)
        if not ready:
            return False
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
        missing = [each for each in record.regions if not each.closed and each.name not in ready]
        return not missing or now - self._first_at >= OTHERS_S

    def _start(self, record: PushRecord) -> None:
        self._data = read_data_list(self.store, record.push_id)
        if self._data is not None:
            self._go(DriverStage.COMMITTING)
            return
        settings = {each.name: each for each in self.config.regions}
        try:
            targets = targets_of(self._regions, settings, record)
        except RegionFailed as exc:
            self._give_up(record, str(exc))
            return
        if targets is None:
            return  # retried at the next step
        task = WriteTask(targets.places, targets.definition, self.target_bytes)
        self._job = WriteJob(self.frame, task, record.push_id, self.expected_rows)
        self._job.start()
        self._go(DriverStage.WRITING)

    def _decide(self, record: PushRecord) -> None:
        assert self._job is not None
        if not self._job.done.is_set():
            return
        if self._job.written is None:
            self._give_up(record, f"the data was not written: {self._job.reason}")
            return
        self._data = decide(self.store, record.push_id, self._job.written)
        self._go(DriverStage.COMMITTING)

    def _commit(self, record: PushRecord) -> None:
        assert self._data is not None
        outcomes = commit_everywhere(self._regions, record, self._data)
        refused = [(n, why) for n, why in outcomes.items() if isinstance(why, RegionFailed)]
        if None in outcomes.values():
            self._go(DriverStage.DONE)
        elif refused and len(refused) == len(outcomes):
            name, why = refused[0]
            self._give_up(record, f"region {name} refuses the data: {why}")
        self._commit_at = time.monotonic() + COMMIT_AGAIN_S

    def _give_up(self, record: PushRecord, reason: str) -> None:
        PushStore(self.store).request(record.push_id, "abort", reason, utc_now())
        self._go(DriverStage.DONE)

    def _end_job(self) -> None:
        job, until = self._job, time.monotonic() + CANCEL_WITHIN_S
        while job is not None and not job.done.is_set() and time.monotonic() < until:
            job.cancel()
            job.done.wait(1.0)


def _has_data(record: PushRecord) -> bool:
    return any(each.status in _WITH_DATA for each in record.regions)
