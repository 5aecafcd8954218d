"""Opens the room: snapshots of manifests, lists of files for Spark, and garbage collection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ingester.maintenance.garbage_collector import GarbageCollector
from ingester.maintenance.version_follower import SnapshotWriter, SparkMetadata
from ingester.tables.opening import Shared, TableParts


@dataclass(frozen=True, slots=True)
class MaintenanceParts:
    """The parts that other rooms use."""

    snapshots: SnapshotWriter
    spark_metadata: SparkMetadata | None
    garbage_collector: GarbageCollector

    @property
    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """The functions that run for as long as the daemon."""
        always = self.snapshots.run, self.garbage_collector.run
        return always if self.spark_metadata is None else (*always, self.spark_metadata.run)


def open_maintenance(shared: Shared, tables: TableParts) -> MaintenanceParts:
    """Return the parts, which follow the tables' versions. On the loop."""
    settings, catalog = shared.settings, tables.catalog
    manifest = settings.manifest
    return MaintenanceParts(
        SnapshotWriter(catalog.commits),
        SparkMetadata(catalog, manifest.refresh) if manifest.spark_metadata else None,
        GarbageCollector(catalog, tables.tree, settings, on_run=shared.metrics.clean_up_ended),
    )
