"""One push, as who writes its data sees it: versions, then the data, then the end of it.

    wait for versions ─▶ write, with Spark ─▶ decide on the files ─▶ commit them ─▶ wait for the end
           └────────── there is a list of files already: from a driver that died ────▲

Law of this file: it leads nothing. It writes the data once, lets every region that can have it have
it, and tells a push whose data cannot be written to end. A push that ends early ends its job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from ingester.pushes.counts import HookCounts
from ingester.pushes.driver import utc_now
from ingester.pushes.push_config import PushConfig
from ingester.pushes.push_store import PushStore
from ingester.pushes.record import PushRecord
from ingester.pushes.regions import RegionFailed
from ingester.pushes.spark.committing import commit_everywhere, regions_there, targets_of
from ingester.pushes.spark.data_list import DataList, decide, read_data_list
from ingester.pushes.spark.job import WriteJob
from ingester.pushes.spark.result import Progress, PushFailed, PushProgress, PushResult, result_of
from ingester.pushes.spark.task import WriteTask
from ingester.pushes.spark.watch import UNLED, Watch
from ingester.pushes.status import Status
from ingester.pushes.store_region.region import StoreRegion, open_regions
from persist.store import ObjectStore

_LOG = logging.getLogger("ingester.push")

OTHERS_S = 10.0
"""So long after the first version others are waited for, whose regions are away, or whose hooks say
wait: what they lack is copied to them afterwards."""
STEP_S = 0.5
"""What is done, and what has happened, is looked at this often."""
COMMIT_AGAIN_S = 5.0
CANCEL_WITHIN_S = 30.0
"""A job that does not end when it is told to is left behind; what it writes does not count."""
_THERE = (Status.COMPLETED, Status.WAITING, Status.SERVING)
"""A region of such a status has all of the data."""


@dataclass(slots=True)
class PushRun:
    """What one driver does for one push.

    Attributes:
        store: Where the push is kept.
        hooks: Says what was counted of the hooks that this driver has called, where it leads.
    """

    frame: DataFrame
    config: PushConfig
    store: ObjectStore
    target_bytes: int
    expected_rows: int | None = None
    progress: Progress | None = None
    hooks: Callable[[], Sequence[HookCounts]] = tuple
    _regions: dict[str, StoreRegion] = field(init=False)
    _data: DataList | None = None
    _job: WriteJob | None = None
    _first_at: float | None = None
    _asked_to_end: bool = False
    _committed: bool = False
    _commit_at: float = 0.0

    def __post_init__(self) -> None:
        self._regions = open_regions(self.config.regions)

    def see_through(self, watch: Watch) -> PushResult:
        """Write the data of a push that is led, and return its result when it is over.

        Raises:
            PushFailed: It has ended, and is not live everywhere.
            StoreError: The store of the pushes stayed away: the push can be taken up again.
        """
        try:
            while not watch.record.over:
                for event, record in watch.wait(STEP_S):
                    self._tell(PushProgress(event.at, event.region, event.what, record))
                self._step(watch.record)
        finally:
            self._end_job()
        return self.result(watch.record)

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
        if self._committed or any(each.status in _THERE for each in record.regions):
            return
        if self._data is None:
            self._data = self._written(record)
        if self._data is not None and time.monotonic() >= self._commit_at:
            self._commit(record, self._data)

    def _written(self, record: PushRecord) -> DataList | None:
        """The files that count, once they are written and decided on."""
        job = self._job
        if job is None:
            if not self._may_write(record):
                return None
            found = read_data_list(self.store, record.push_id)
            if found is None:
                self._start(record)
            return found
        if not job.done.is_set():
            return None
        if job.written is None:
            self._give_up(record, f"the data was not written: {job.reason}")
            return None
        return decide(self.store, record.push_id, job.written)

    def _may_write(self, record: PushRecord) -> bool:
        """Whether every region that is in the push has its version, or was waited for."""
        there = regions_there(record)
        if not there:
            return False
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
        missing = [each for each in record.regions if not each.closed and each.name not in there]
        return not missing or now - self._first_at >= OTHERS_S

    def _start(self, record: PushRecord) -> None:
        settings = {each.name: each for each in self.config.regions}
        try:
            targets = targets_of(self._regions, settings, record)
        except RegionFailed as exc:
            self._give_up(record, str(exc))
            return
        if targets is None:
            return  # asked again
        task = WriteTask(targets.places, targets.definition, self.target_bytes)
        self._job = WriteJob(self.frame, task, record.push_id, self.expected_rows)
        self._job.start()

    def _commit(self, record: PushRecord, data: DataList) -> None:
        outcomes = commit_everywhere(self._regions, record, data)
        self._committed = None in outcomes.values()
        refused = [(n, why) for n, why in outcomes.items() if isinstance(why, RegionFailed)]
        if refused and len(refused) == len(outcomes):
            name, why = refused[0]
            self._give_up(record, f"region {name} does not take the data: {why}")
        self._commit_at = time.monotonic() + COMMIT_AGAIN_S

    def _give_up(self, record: PushRecord, reason: str) -> None:
        if not self._asked_to_end:
            PushStore(self.store).request(record.push_id, "abort", reason, utc_now())
            self._asked_to_end = True

    def _end_job(self) -> None:
        job, until = self._job, time.monotonic() + CANCEL_WITHIN_S
        while job is not None and not job.done.is_set() and time.monotonic() < until:
            job.cancel()
            job.done.wait(1.0)
