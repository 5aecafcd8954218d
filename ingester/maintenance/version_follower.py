"""Writing things that belong to a table's version, in the background after its commit.

Manifest snapshots, and ``_spark_metadata`` if ``manifest.spark_metadata`` is on. Neither delays
a commit nor is needed for reading; failures are retried later and do not delay other tables
(tests/maintenance). One object is written at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial

import structlog
import trio

from ingester.buffer import TableBuffer
from ingester.tables.catalog import Catalog
from ingester.tables.commits import Commits
from persist.exports.spark_metadata import has_one_layout, write_spark_log
from persist.manifest import Manifest, TableState, snapshot_due, write_snapshot
from persist.store import StoreError

log = structlog.get_logger(__name__)

RETRY_S = 10.0


class VersionFollower(ABC):
    """Follows the versions of all tables. Event loop only."""

    what: str
    """The thing that is written, as the log names it."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._due: dict[TableBuffer, None] = {}
        self._changed = trio.Event()
        self._writing = trio.Lock()
        commits.followers.append(self.note)

    def note(self, table: TableBuffer) -> None:
        """Record that a table has a new version or was opened."""
        if table not in self._due and self._is_due(table):
            self._due[table] = None
            self._changed.set()

    async def run(self) -> None:
        """Write what is due until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            while self._due:
                failed = False
                for table in list(self._due):
                    failed = not await self._write_one(table) or failed
                if failed:
                    await trio.sleep(RETRY_S)

    async def catch_up(self) -> None:
        """Write what is due now, once."""
        for table in list(self._due):
            await self._write_one(table)

    async def _write_one(self, table: TableBuffer) -> bool:
        async with self._writing:
            state = table.state
            write = partial(self._write, self._commits.manifest(table.key), state)
            try:
                # The store writes an object completely or not at all.
                await trio.to_thread.run_sync(write, abandon_on_cancel=True)
            except (StoreError, OSError) as exc:
                log.warning(
                    f"{self.what} not written",
                    table=table.key,
                    version=state.version,
                    error=str(exc),
                    runbook="store-away",
                )
                return False
            self._written(table, state)
        self._due.pop(table, None)
        self.note(table)  # a newer version may exist by now
        return True

    @abstractmethod
    def _is_due(self, table: TableBuffer) -> bool:
        """Return whether something must be written for the table's version."""

    @abstractmethod
    def _write(self, manifest: Manifest, state: TableState) -> None:
        """Write what is due for this version. Runs in a thread.

        Raises:
            StoreError: it was not written.
        """

    @abstractmethod
    def _written(self, table: TableBuffer, state: TableState) -> None:
        """Record that this version's object is written; the table may have a newer version by
        now.
        """


log = structlog.get_logger(__name__)


class SnapshotWriter(VersionFollower):
    """Writes a table's manifest snapshot when one is due."""

    what = "snapshot"

    def __init__(self, commits: Commits) -> None:
        super().__init__(commits)
        self.written = 0

    def _is_due(self, table: TableBuffer) -> bool:
        return snapshot_due(table.state)

    def _write(self, manifest: Manifest, state: TableState) -> None:
        write_snapshot(manifest, state)

    def _written(self, table: TableBuffer, state: TableState) -> None:
        # Newer versions may exist; their lineage starts at this snapshot as well.
        table.install(table.state.after_snapshot(state.version, state.uid))
        self.written += 1
        log.info("snapshot written", table=table.key, version=state.version)


LOOKS_EVERY = 10
"""Number of ``manifest.refresh`` periods between two looks for others' versions."""


class SparkMetadata(VersionFollower):
    """Writes the list of a table's files when it has changed.

    With several writers, or commits by Spark, the last one to see the newest version is right.
    """

    what = "spark metadata"

    def __init__(self, catalog: Catalog, refresh_s: float) -> None:
        super().__init__(catalog.commits)
        self._catalog = catalog
        self._refresh_s = LOOKS_EVERY * refresh_s
        self._listed: dict[TableBuffer, object] = {}

    async def run(self) -> None:
        """Write what is due, and look for others' commits, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().run)
            while True:
                await trio.sleep(self._refresh_s)
                for table in self._catalog.opened():
                    await self._catalog.look(table, self._refresh_s)

    def _is_due(self, table: TableBuffer) -> bool:
        # Most versions of a busy table change its files; those that only name a writer do not.
        return self._listed.get(table) is not table.state.files and has_one_layout(table.state)

    def _write(self, manifest: Manifest, state: TableState) -> None:
        write_spark_log(manifest, state)

    def _written(self, table: TableBuffer, state: TableState) -> None:
        self._listed[table] = state.files
