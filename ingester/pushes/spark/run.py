"""The work of a driver that writes a push's data: generations, then the data, then the end.

    wait for generations ─▶ write with Spark ─▶ decide on the files ─▶ commit ─▶ wait for the end
           └────────── the files were decided on by a driver that died ───▲

It leads nothing. It writes the data once, commits it in every reachable region, and requests an
abort if the data cannot be written. A push that ends early cancels its job. A region that misses
the commit copies the data later, so one commit is enough, and an unreachable region fails nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame

from ingester.pushes.config import PushConfig, RegionSettings
from ingester.pushes.driver import utc_now
from ingester.pushes.hook_calls import HookCounts
from ingester.pushes.record import PushRecord
from ingester.pushes.regions.data import SourceFault, copy_missing, files_of
from ingester.pushes.regions.region import StoreRegion, open_regions
from ingester.pushes.regions.shapes import PushedFile, clash
from ingester.pushes.spark.feed import UNLED, RecordFeed
from ingester.pushes.spark.job import DataList, WriteJob, decide, read_data_list
from ingester.pushes.spark.result import Progress, PushFailed, PushProgress, PushResult, result_of
from ingester.pushes.spark.task import RegionFolder, WriteTask
from ingester.pushes.states import Status
from ingester.pushes.store import PushStore
from ingester.pushes.tasks import AnotherStore, RegionFailed, RegionUnreachable
from persist.store import ObjectStore, StoreError
from persist.table import UNNUMBERED, TableDefinition

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
            if self._stage is DriverStage.WAITING:
                _warn_of_earlier(record, read_data_list(self.store, record.push_id))
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
            _warn_of_earlier(record, self._data)
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


def _warn_of_earlier(record: PushRecord, data: DataList | None) -> None:
    if data is not None:
        _LOG.warning(
            "push %s: an earlier driver has written its %s rows, in %s files; the rows of this one"
            " are not written, and not compared with them",
            record.push_id,
            f"{data.rows:,}",
            f"{len(data.files):,}",
        )


def _has_data(record: PushRecord) -> bool:
    return any(each.status in _WITH_DATA for each in record.regions)


# --------------------------------------------------------------------------------------- committing


Refusal = RegionFailed | RegionUnreachable
"""Why a region did not commit the data: for good, or this time."""


class Targets(NamedTuple):
    """The folders to which a push writes its files, and the table's definition there."""

    places: tuple[RegionFolder, ...]
    definition: TableDefinition


def targets_of(
    regions: Mapping[str, StoreRegion], settings: Mapping[str, RegionSettings], record: PushRecord
) -> Targets | None:
    """Return the reachable regions with a generation of the push; None if there is none.

    Raises:
        RegionFailed: the tables of two regions differ, or a generation was created in another store
            than the region has here.
    """
    places: list[RegionFolder] = []
    found: dict[str, TableDefinition] = {}
    for name in regions_with_generation(record):
        region, its = regions[name], settings[name]
        try:
            definition, root = region.definition(record), region.place(record).root
        except AnotherStore as exc:
            raise RegionFailed(f"region {name}: {exc}") from exc
        except RegionUnreachable:
            continue
        for other, table in found.items():
            if (why := clash(table, definition)) is not None:
                raise RegionFailed(f"the tables of regions {other} and {name} differ: {why}")
        found[name] = definition
        places.append(RegionFolder(name, its.url, dict(its.store_options), root))
    if not places:
        return None
    common = _common(list(found.values()))
    if len(found) < len(record.regions):
        # A region that gets the files later may number the columns differently.
        common = replace(common, first_schema_id=UNNUMBERED)
    return Targets(tuple(places), common)


def _common(tables: Sequence[TableDefinition]) -> TableDefinition:
    """The table with the columns that all regions have; no file has a column added since.

    Unless each has the same number in all regions, files get no numbers.
    """
    first, *others = tables
    fields = [f for f in first.schema if all(f.name in each.schema.names for each in others)]
    names = [field.name for field in fields]
    alike = all(
        (each.first_schema_id, each.schema.names[: len(names)]) == (first.first_schema_id, names)
        for each in tables
    )
    numbered = first.first_schema_id if alike else UNNUMBERED
    return replace(first, schema=pa.schema(fields), first_schema_id=numbered)


def regions_with_generation(record: PushRecord) -> list[str]:
    """Return the names of the active regions that have the push's generation."""
    return [r.name for r in record.regions if r.table_version is not None and not r.closed]


def commit_everywhere(
    regions: Mapping[str, StoreRegion], record: PushRecord, data: DataList
) -> dict[str, Refusal | None]:
    """Commit the data in each region that has all of its files.

    If no region has all files, because each was unreachable for a while, one is completed first.

    Returns:
        The refusal of each region that was asked; None if it has the data now.
    """
    active = regions_with_generation(record)
    whole = [name for name in active if data.complete_in(name)]
    if not whole:
        most = [name for name in active if name in data.places]
        if not most:
            return {}
        whole = [max(most, key=data.count_in)]
        if (why := _complete(regions, record, data, whole[0])) is not None:
            return {whole[0]: why}
    files = [PushedFile.of(file.add) for file in data.files]

    def commit(name: str) -> Refusal | None:
        try:
            regions[name].commit_data(record, files)
        except (RegionUnreachable, RegionFailed) as exc:
            return exc
        return None

    with ThreadPoolExecutor(len(whole), thread_name_prefix="push-commit") as pool:
        return dict(zip(whole, pool.map(commit, whole), strict=True))


def _complete(
    regions: Mapping[str, StoreRegion], record: PushRecord, data: DataList, name: str
) -> Refusal | None:
    """Copy what a region lacks, and return why that failed."""
    try:
        target = regions[name].place(record)
        for other in data.places:
            if other == name:
                continue
            taken = [f for f in data.files if name not in f.taken and other in f.taken]
            with suppress(SourceFault):
                source = regions[other].place(record)
                files: Sequence[PushedFile] = [PushedFile.of(file.add) for file in taken]
                while not copy_missing(source, target, files, files_of(*target)):
                    pass
    except (RegionUnreachable, RegionFailed) as exc:
        return exc
    except StoreError as exc:
        return RegionUnreachable(str(exc))
    return None
