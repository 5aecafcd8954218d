"""Regions with real stores, and a small job that fills them, for the tests of whole pushes.

:class:`Realm` leads pushes as a controller does, in threads and by the clock (``lead``), or step
by step with a simulated clock (``step``). A test can thus kill it anywhere, and an hour takes no
time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa

from ingester.pushes.config import push_config
from ingester.pushes.driver import DriverPace, PushDriver, utc_now
from ingester.pushes.leading import Leadership, lead_held
from ingester.pushes.record import PushPlan, PushRecord, new_push
from ingester.pushes.regions.region import StoreRegion, open_regions
from ingester.pushes.regions.shapes import PushedFile, with_schema
from ingester.pushes.regions.store import RegionDaemons, RegionStore
from ingester.pushes.regions.tables import plan_for, tables_of
from ingester.pushes.states import RegionOrder
from ingester.pushes.store import HeldPush, PushStore
from ingester.pushes.tasks import Rules
from persist.manifest import Manifest, TableNotFound
from persist.store import ObjectStore
from tests.drivers.memory_store import MemoryStore
from tests.drivers.pushing import write_rows
from tests.pushes.world import ONCE, ScriptedPanel

TABLE = ("shop", "visits")
PACE = DriverPace(poll=timedelta(seconds=0.02), retry=timedelta(seconds=0.05))
Hear = Callable[[PushRecord], None]


def some_rows(first: int, count: int) -> pa.RecordBatch:
    """Return rows of a push, by their numbers."""
    numbers = range(first, first + count)
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), "s": [f"row {n}" for n in numbers]})


def in_folders(
    path: Path, names: Sequence[str], endpoints: Mapping[str, str] | None = None
) -> Realm:
    """Create regions whose stores are folders."""
    regions = {}
    for name in names:
        (path / name).mkdir(parents=True, exist_ok=True)
        daemons = [endpoints[name]] if endpoints else []
        regions[name] = {"url": f"file://{path / name}", "endpoints": daemons}
    return Realm(open_regions(push_config({"regions": regions}).regions))


def in_stores(stores: Mapping[str, ObjectStore]) -> Realm:
    """Open regions over existing stores, as another process would."""
    homes = [RegionStore(name, store) for name, store in stores.items()]
    return Realm(
        {
            home.name: StoreRegion(
                home, RegionDaemons(()), [each for each in homes if each != home]
            )
            for home in homes
        }
    )


def copied(store: ObjectStore) -> ObjectStore:
    """Return another store with the same objects."""
    copy = MemoryStore()
    for info in store.list(""):
        copy.put(info.path, store.get(info.path))
    return copy


@dataclass
class Realm:
    """Some regions and the pushes through them, by default one region after another."""

    regions: dict[str, StoreRegion]
    panel: ScriptedPanel = field(default_factory=ScriptedPanel)
    rules: Rules = Rules()  # noqa: RUF009 (frozen)
    ahead: timedelta = timedelta()
    """How far the simulated clock is ahead of the real one, as steps do not wait."""

    @property
    def now(self) -> datetime:
        """The simulated time."""
        return utc_now() + self.ahead

    @property
    def first(self) -> ObjectStore:
        """The store of the first region, which holds the records of pushes."""
        return next(iter(self.regions.values())).home.store

    @property
    def pushes(self) -> PushStore:
        """The records of pushes."""
        return PushStore(self.first, ONCE)

    def begin(
        self,
        rows: pa.RecordBatch,
        push_id: str = "p1",
        plan: PushPlan | None = None,
        order: RegionOrder | None = None,
        deferred: bool = False,
    ) -> HeldPush:
        """Begin a push, by default one region after another; do nothing else of it."""
        plan = with_schema(plan or PushPlan(), rows.schema)
        plan = plan_for(tables_of([each.home for each in self.regions.values()], *TABLE), plan)
        order = order or RegionOrder(tuple(self.regions), "in_order")
        record = new_push(push_id, TABLE, order, {}, self.now, plan, deferred=deferred)
        return self.pushes.begin(record, "c1", self.now)

    def lead(
        self, held: HeldPush, hear: Hear | None = None, stop: threading.Event | None = None
    ) -> PushRecord:
        """Lead a push as a controller does, until its end or until ``stop`` is set."""
        leadership = Leadership(
            store=self.first,
            controller="c1",
            regions=lambda: self.regions,
            panel=self.panel,
            rules=self.rules,
            pace=PACE,
        )
        return lead_held(leadership, held, stop or threading.Event(), hear)

    def push(self, rows: pa.RecordBatch, push_id: str = "p1") -> PushRecord:
        """Run a whole push: a job writes once all versions exist."""
        return self.lead(self.begin(rows, push_id), Job(self, rows).hear)

    def step(
        self, held: HeldPush, hear: Hear, until: Callable[[PushRecord], bool] | None = None
    ) -> PushRecord:
        """Lead a push step by step in this thread, until it is over or ``until`` is true."""
        driver = PushDriver(held, self.regions, self.panel, self.rules)
        driver.hear = hear
        hear(held.record)
        for _ in range(5000):
            jobs = driver.ready(self.now)
            if driver.record.over or (until is not None and until(driver.record)):
                return driver.record
            for job in jobs:
                driver.took(job, driver.do(job), self.now)
            if not jobs:
                now = self.now
                self.ahead += max(timedelta(milliseconds=1), driver.next_at(now) - now)
        raise AssertionError(f"no end in sight: {driver.record}")

    def state(self, name: str) -> tuple[int, int] | None:
        """Return the current table version of a region and its number of rows."""
        try:
            state = Manifest(self.regions[name].home.store, *TABLE).load()
        except TableNotFound:
            return None
        return state.table_version, state.rows

    def states(self) -> list[tuple[int, int] | None]:
        """Return the same for all regions, in their order."""
        return [self.state(name) for name in self.regions]


@dataclass
class Job:
    """Writes a push's rows once its versions exist, unless a region already lists them."""

    realm: Realm
    rows: pa.RecordBatch
    into: Sequence[str] | None = None
    """The regions that get the files; all by default."""
    listed: Sequence[str] | None = None
    """The regions that list the files; by default those that get them."""
    files: list[PushedFile] | None = None

    def hear(self, record: PushRecord) -> None:
        """Write once, in the driver's thread."""
        into = list(self.realm.regions if self.into is None else self.into)
        if self.files is not None or record.ending is not None:
            return
        if not all(record.region(name).table_version for name in into):
            return
        regions = [self.realm.regions[name] for name in into]
        self.files = []
        if not any(region.written(record) for region in regions):
            self.files = write_rows(regions, record, self.rows)
            for name in into if self.listed is None else self.listed:
                self.realm.regions[name].commit_data(record, self.files)
