"""How a job leads its push: with the regions as they are, and with Spark to count what hooks ask.

Law of this file: the same regions and rules as any controller has; that nulls can be counted is all
that differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from ingester.pushes.contexts import Comparison, VersionStatistics
from ingester.pushes.driver import HookPanel
from ingester.pushes.leading import Leadership
from ingester.pushes.push_config import PushConfig, RegionSettings
from ingester.pushes.record import PushRecord
from ingester.pushes.spark.null_counts import NullCounter
from ingester.pushes.store_region.region import StoreRegion, open_regions
from ingester.pushes.version_statistics import statistics_of
from persist.manifest import Manifest
from persist.store import ObjectStore


@dataclass(slots=True, kw_only=True)
class CountingRegion(StoreRegion):
    """A region whose statistics are complete: Spark counts what manifests do not know."""

    settings: RegionSettings
    counter: NullCounter

    def statistics(self, push: PushRecord) -> Comparison | None:
        """Return how the version compares to the current one, None while its data is not there."""
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
    """Return what it takes to lead a push that is kept in ``store``; ``name`` is who leads."""
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
