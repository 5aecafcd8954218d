"""``_spark_metadata`` beside each table's files, where ``manifest.spark_metadata`` is on.

Law of this file: it follows the versions, a moment later, and is of one version at any time. Where
several daemons write it, or Spark commits too, the one that sees the newest version last is right.
"""

from __future__ import annotations

from functools import partial

import structlog
import trio

from ingester.behind_commits import BehindCommits
from ingester.buffer import TableBuffer
from ingester.catalog import Catalog
from ingester.errors import StoreAway
from persist.manifest import ManifestError
from persist.spark_log import write_spark_log
from persist.store import StoreError

log = structlog.get_logger(__name__)

LOOKS_EVERY = 10
"""Times ``manifest.refresh``: nobody waits for it."""


class SparkLogs(BehindCommits):
    """Writes a table's list of files after each version. Loop only; the writing in a thread."""

    def __init__(self, catalog: Catalog, refresh_s: float) -> None:
        super().__init__(catalog.commits)
        self._catalog = catalog
        self._refresh_s = LOOKS_EVERY * refresh_s
        self._written: dict[TableBuffer, int] = {}

    async def run(self) -> None:
        """Write what is due, and look what others have committed, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().run)
            while True:
                await trio.sleep(self._refresh_s)
                for table in self._catalog.opened():
                    await self._look(table)

    async def _look(self, table: TableBuffer) -> None:
        try:
            await self._catalog.refresh(table, self._refresh_s)
        except (ManifestError, StoreError, StoreAway, OSError) as exc:
            log.warning(
                "manifest refresh failed",
                table=table.key,
                error=str(exc),
                runbook="refresh-failed",
            )

    def _is_due(self, table: TableBuffer) -> bool:
        return self._written.get(table) != table.state.version

    async def _write(self, table: TableBuffer) -> bool:
        state = table.state
        write = partial(write_spark_log, self._commits.manifest(table.key), state)
        try:
            await trio.to_thread.run_sync(write)
        except (StoreError, OSError) as exc:
            log.warning(
                "spark metadata not written",
                table=table.key,
                version=state.version,
                error=str(exc),
                runbook="store-away",
            )
            return False
        self._written[table] = state.version
        return True
