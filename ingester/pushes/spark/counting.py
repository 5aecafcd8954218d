"""The regions of a push that a Spark job leads: Spark counts the nulls that manifests do not know.

Regions and rules are otherwise those of any controller. Counts are exact, and cached while a
generation has the same files: hooks ask repeatedly.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ingester.pushes.config import PushConfig, RegionSettings
from ingester.pushes.driver import HookPanel
from ingester.pushes.hooks import Comparison, VersionStatistics
from ingester.pushes.leading import Leadership
from ingester.pushes.record import PushRecord
from ingester.pushes.regions.region import StoreRegion, open_regions, statistics_of
from ingester.pushes.spark.frames import named
from ingester.spark.read.read_table import read_table
from persist.manifest import Manifest
from persist.store import ObjectStore


class NullCounter:
    """Counts nulls in the tables of regions. Thread-safe."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str, int, int, str], int] = {}

    def count(
        self,
        region: RegionSettings,
        table: tuple[str, str],
        version: tuple[int, int],
        columns: Collection[str],
    ) -> dict[str, int]:
        """Return the number of nulls in these columns.

        Args:
            version: the generation, and the version of its manifest.

        Raises:
            ManifestError, StoreError, TailUnavailable: they cannot be counted now.
        """
        with self._lock:  # two hooks share one count
            keys = {name: (region.url, *table, *version, name) for name in columns}
            missing = [name for name, key in keys.items() if key not in self._known]
            if missing:
                frame = read_table(
                    self._spark,
                    region.url,
                    *table,
                    version=version[1],
                    table_version=version[0],
                    storage_options=region.storage_options,
                )
                counts = [F.count(F.when(named(name).isNull(), 1)) for name in missing]
                [row] = frame.agg(*counts).collect()
                self._known.update({keys[name]: row[i] for i, name in enumerate(missing)})
            return {name: self._known[key] for name, key in keys.items()}


@dataclass(slots=True, kw_only=True)
class CountingRegion(StoreRegion):
    """A region with complete statistics."""

    settings: RegionSettings
    counter: NullCounter

    def statistics(self, push: PushRecord) -> Comparison | None:
        """Return the statistics of both generations; None before the push's data."""
        found = StoreRegion.statistics(self, push)
        if found is None:
            return None
        current = None if found.current is None else self._completed(push, found.current)
        return Comparison(self._completed(push, found.new), current)

    def _completed(self, push: PushRecord, said: VersionStatistics) -> VersionStatistics:
        if None not in said.nulls.values():
            return said
        with self.home.reached() as store:
            table = (push.namespace, push.table)
            state = Manifest(store, *table, said.table_version).load()
            said = statistics_of(state)
            unknown = [name for name, nulls in said.nulls.items() if nulls is None]
            version = (said.table_version, state.version)
            counted = self.counter.count(self.settings, table, version, unknown)
        nulls = {**said.nulls, **counted}
        return VersionStatistics(said.table_version, said.rows, said.bytes, nulls)


def leadership_of(
    config: PushConfig, store: ObjectStore, name: str, panel: HookPanel, spark: SparkSession
) -> Leadership:
    """Return the leadership of a push in ``store``; ``name`` is the leader."""
    counter = NullCounter(spark)

    def regions() -> Mapping[str, StoreRegion]:
        plain = open_regions(config.regions)
        return {
            each.name: CountingRegion(
                plain[each.name].home,
                plain[each.name].daemons,
                plain[each.name].peers,
                settings=each,
                counter=counter,
            )
            for each in config.regions
        }

    return Leadership(
        store=store, controller=name, regions=regions, panel=panel, rules=config.rules()
    )
