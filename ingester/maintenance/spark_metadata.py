"""``_spark_metadata`` beside each table's files, where ``manifest.spark_metadata`` is on.

Law of this file: it follows the versions, a moment later, and is of one version at any time. Where
several daemons write it, or Spark commits too, the one that sees the newest version last is right.
"""

from __future__ import annotations

import trio

from ingester.buffer import TableBuffer
from ingester.maintenance.version_follower import VersionFollower
from ingester.tables.catalog import Catalog
from persist.exports.spark_metadata import lies_in_one_way, write_spark_log
from persist.manifest import Manifest, TableState

LOOKS_EVERY = 10
"""The periods of ``manifest.refresh`` between two looks for others' versions: nobody waits."""


class SparkMetadata(VersionFollower):
    """Writes a table's list of files when it has changed."""

    what = "spark metadata"

    def __init__(self, catalog: Catalog, refresh_s: float) -> None:
        super().__init__(catalog.commits)
        self._catalog = catalog
        self._refresh_s = LOOKS_EVERY * refresh_s
        self._listed: dict[TableBuffer, object] = {}

    async def run(self) -> None:
        """Write what is due, and look what others have committed, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().run)
            while True:
                await trio.sleep(self._refresh_s)
                for table in self._catalog.opened():
                    await self._catalog.look(table, self._refresh_s)

    def _is_due(self, table: TableBuffer) -> bool:
        # Most versions of a busy table have other files; those that only say who writes have not.
        return self._listed.get(table) is not table.state.files and lies_in_one_way(table.state)

    def _write(self, manifest: Manifest, state: TableState) -> None:
        write_spark_log(manifest, state)

    def _written(self, table: TableBuffer, state: TableState) -> None:
        self._listed[table] = state.files
