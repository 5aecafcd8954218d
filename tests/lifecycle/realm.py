"""Regions with real stores, and a small job that fills them, for the tests of whole pushes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from ingester.lifecycle.driver import Pace, utc_now
from ingester.lifecycle.leading import Leadership, lead_held
from ingester.lifecycle.push_config import PushConfig, push_config
from ingester.lifecycle.push_store import HeldPush, PushStore
from ingester.lifecycle.pushed_files import PushedFile
from ingester.lifecycle.record import PushPlan, PushRecord, new_push
from ingester.lifecycle.shapes import with_schema
from ingester.lifecycle.store_region import StoreRegion, check_shapes, open_regions
from ingester.lifecycle.tasks import Rules
from persist.manifest import Manifest, TableNotFound
from persist.store import ObjectStore
from tests.drivers.pushing import write_rows
from tests.lifecycle.world import ONCE, ScriptedPanel

TABLE = ("shop", "visits")
PACE = Pace(poll=timedelta(seconds=0.02), retry=timedelta(seconds=0.05))


def some_rows(first: int, count: int) -> pa.RecordBatch:
    """Rows of a push, by their numbers."""
    numbers = range(first, first + count)
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), "s": [f"row {n}" for n in numbers]})


def folders(path: Path, names: Sequence[str], **pushes: Any) -> PushConfig:
    """The configuration of regions whose stores are folders, which are made here."""
    for name in names:
        (path / name).mkdir(parents=True, exist_ok=True)
    regions = {name: {"url": f"file://{path / name}"} for name in names}
    return push_config({"regions": regions, "pushes": {"order": "in_order", **pushes}})


@dataclass
class Realm:
    """Some regions, and pushes through them by one controller after another."""

    config: PushConfig
    panel: ScriptedPanel = field(default_factory=ScriptedPanel)
    rules: Rules | None = None

    def __post_init__(self) -> None:
        self.regions = open_regions(self.config.regions)
        self.rules = self.rules or self.config.rules()

    @property
    def first(self) -> ObjectStore:
        """The store that pushes are kept in."""
        return self.regions[self.config.names[0]].home.store

    def begin(self, push_id: str, rows: pa.RecordBatch, plan: PushPlan | None = None) -> HeldPush:
        """A push that has begun; nothing of it is done."""
        plan = with_schema(plan or PushPlan(), rows.schema)
        plan = check_shapes(self.regions.values(), plan, *TABLE)
        record = new_push(push_id, TABLE, self.config.order(), {}, utc_now(), plan)
        return PushStore(self.first, ONCE).begin(record, "c1", utc_now())

    def lead(
        self,
        held: HeldPush,
        hear: Callable[[PushRecord], None] | None = None,
        regions: Mapping[str, StoreRegion] | None = None,
        stop: threading.Event | None = None,
    ) -> PushRecord:
        """Lead a push to its end, or until it is told to stop."""
        there = self.regions if regions is None else regions
        assert self.rules is not None
        leadership = Leadership(
            store=self.first,
            controller="c1",
            regions=lambda: there,
            panel=self.panel,
            rules=self.rules,
            pace=PACE,
        )
        return lead_held(leadership, held, stop or threading.Event(), hear)

    def push(self, push_id: str, rows: pa.RecordBatch, plan: PushPlan | None = None) -> PushRecord:
        """A whole push: a job writes once all versions are made."""
        return self.lead(self.begin(push_id, rows, plan), Job(self, rows).hear)

    def state(self, name: str) -> tuple[int, int] | None:
        """The table version that counts in a region, and how many rows it has."""
        try:
            state = Manifest(self.regions[name].home.store, *TABLE).load()
        except TableNotFound:
            return None
        return state.table_version, state.rows

    def states(self) -> list[tuple[int, int] | None]:
        """The same of all regions, in their order."""
        return [self.state(name) for name in self.config.names]


@dataclass
class Job:
    """Writes a push's rows once its versions are made, and lists them where it is told to."""

    realm: Realm
    rows: pa.RecordBatch
    into: Sequence[str] | None = None
    """The regions that get the files; all by default."""
    listed: Sequence[str] | None = None
    """The regions in which they are listed; those that get the files by default."""
    files: list[PushedFile] = field(default_factory=list)

    def hear(self, record: PushRecord) -> None:
        """Do the work, once, in the driver's thread."""
        if self.files or not all(each.table_version for each in record.regions):
            return
        into = list(self.realm.config.names if self.into is None else self.into)
        regions = [self.realm.regions[name] for name in into]
        self.files = write_rows(regions, record, self.rows)
        for name in into if self.listed is None else self.listed:
            self.realm.regions[name].commit_data(record, self.files)
