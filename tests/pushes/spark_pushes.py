"""Three regions in folders, and their contents after a push, with and without Spark."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from ingester.pushes import PROCEED, Answer, HookContext, LifecycleHooks, wait
from ingester.pushes.config import PushConfig, push_config
from ingester.pushes.record import PushRecord
from ingester.pushes.spark import PushProgress, RegionSettings
from ingester.pushes.store import PushStore
from ingester.spark import read_table
from persist.manifest import Manifest, TableState, verify
from persist.store import ObjectStore, open_store
from persist.table import TableKey
from tests.drivers.column_numbers import check_numbers
from tests.drivers.s3_server import S3Server

NAMES = ("a", "b", "c")


def regions_in(
    folder: Path, order: str = "at_once", bucket: S3Server | None = None, **hooks: object
) -> PushConfig:
    """Create three regions in this order; the last one may be in a bucket."""
    for name in NAMES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    regions: dict[str, Any] = {name: {"url": f"file://{folder / name}"} for name in NAMES}
    if bucket is not None:
        bucket.make_bucket("lake")
        regions["c"] = {"url": "s3://lake/c", "store_options": bucket.storage_options}
    return push_config({"regions": regions, "pushes": {"order": order}, "hooks": hooks})


def store_of(region: RegionSettings) -> ObjectStore:
    return open_store(region.url, **region.store_options)


def state_of(region: RegionSettings, table: TableKey) -> TableState:
    """Return a region's current version after a check that it is sound."""
    manifest = Manifest(store_of(region), *table)
    assert verify(manifest).findings == ()
    return manifest.load()


def frame_of(spark: SparkSession, region: RegionSettings, table: TableKey) -> DataFrame:
    """Read a region's table with Spark, without the partition columns from folder names."""
    frame = read_table(spark, region.url, *table, store_options=region.store_options)
    made = [name for name in frame.columns if "_" in name]
    return frame.drop(*made)


def assert_same_rows(one: DataFrame, other: DataFrame) -> None:
    """Check that both frames have the same rows, equally often."""
    other = other.select(*one.columns)
    assert one.exceptAll(other).count() == 0
    assert other.exceptAll(one).count() == 0


def plain_rows(region: RegionSettings, table: TableKey) -> pa.Table:
    """Return the rows of the listed files, read by pyarrow alone."""
    store, state = store_of(region), state_of(region, table)
    root = Manifest(store, *table).root
    files = [pa.BufferReader(store.get(f"{root}/{path}")) for path in state.files]
    tables = [pq.ParquetFile(file).read() for file in files]
    return pa.concat_tables(tables, promote_options="permissive")


def assert_same_files(
    config: PushConfig, table: TableKey, *, numbered: bool = True
) -> dict[str, bytes]:
    """Check that all regions list the same files, byte for byte, and return one region's.

    Args:
        numbered: whether their columns have the numbers of each region's table; else none has one.
    """
    found = []
    for region in config.regions:
        state = state_of(region, table)
        manifest = Manifest(store_of(region), *table)
        found.append({path: manifest.store.get(manifest.object_path(path)) for path in state.files})
        assert check_numbers(manifest, state) == (
            (len(found[0]), 0) if numbered else (0, len(found[0]))
        )
    assert found[0] == found[1] == found[2]
    return found[0]


def pushes_of(config: PushConfig) -> PushStore:
    """Return the records of pushes."""
    return PushStore(open_store(config.regions[0].url))


def everything(config: PushConfig) -> dict[str, bytes]:
    """Return all objects of all regions."""
    roots = [Path(region.url.removeprefix("file://")) for region in config.regions]
    paths = [path for root in roots for path in root.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in paths}


class Died(BaseException):
    """A simulated end of the driver."""


def dying_at(what: str) -> Callable[[PushProgress], None]:
    """Return a listener that ends the driver at this event."""
    return on(what, lambda record: _die(what))


def on(what: str, do: Callable[[PushRecord], object]) -> Callable[[PushProgress], None]:
    """Return a listener that acts once, at this event.

    Another leader of the push may be further ahead by then.
    """
    done: list[str] = []

    def hear(progress: PushProgress) -> None:
        events = [f"{e.region or ''} {e.what}".strip() for e in progress.record.history]
        if not done and any(event.startswith(what) for event in events):
            done.append(what)
            do(progress.record)

    return hear


def _die(what: str) -> None:
    raise Died(what)


class KillOnce(LifecycleHooks):
    """Kills the leading process once, before region b goes live."""

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Kill, unless it was done before."""
        done = Path(self.config["kill.once"])
        if context.region == "b" and not done.exists():
            done.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return PROCEED


class FailsAfterwards(LifecycleHooks):
    """Waits once before the swap of b, and fails after each swap."""

    def pre_version_swap(self, context: HookContext) -> Answer:
        """Answer wait to the first call for b."""
        return wait("a moment") if (context.region, context.call) == ("b", 1) else PROCEED

    def post_version_swap(self, context: HookContext) -> Answer:
        """Raise an error."""
        raise OSError("the disk is full")
