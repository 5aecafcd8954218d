"""Background work after a table's commits: manifest snapshots, file lists for Spark, and garbage.

A :class:`VersionFollower` writes what belongs to a version: a manifest snapshot when the changelogs
outweigh it, and ``_spark_metadata`` if ``manifest.spark_metadata`` is on. :class:`GarbageCollector`
deletes old versions and unlisted files, one table at a time, in a thread of its own; the table's
gate is held only for the commit of a horizon. A collection may be interrupted at any step: the next
one, here or at another daemon, deletes what is left.

Nothing here delays a commit, and no row depends on it. Failures are logged and retried
(tests/maintenance).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeVar

import structlog
import trio

from ingester.buffer import BufferTree, TableBuffer
from ingester.config.settings import Settings
from ingester.errors import StoreUnreachable
from ingester.observability.status import CleanUpStatus
from ingester.tables.catalog import Catalog
from ingester.tables.commits import Commits
from ingester.tables.opening import Shared, TableParts
from persist.exports import has_one_layout, write_spark_log
from persist.manifest import (
    CleanUp,
    Fenced,
    Horizon,
    Manifest,
    ManifestError,
    Removals,
    Retention,
    TableState,
    VersionNotKept,
    carry_out,
    plan_clean_up,
    snapshot_due,
    write_due_snapshot,
    write_snapshot,
)
from persist.store import StoreError
from persist.switching import VersionRetention, clean_up_versions
from persist.table import TableKey

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


T = TypeVar("T")

LONGEST_PAUSE_S = 3600.0
SHORTEST_PAUSE_S = 1.0


class GarbageCollector:
    """Collects garbage of every open table about once an hour. Event loop only; the work runs in
    a thread.
    """

    def __init__(
        self,
        catalog: Catalog,
        tree: BufferTree,
        settings: Settings,
        on_run: Callable[[int, int, float, bool], None],
        clean_published: Callable[[TableBuffer], Awaitable[int]],
    ) -> None:
        """Args:
        on_run: called with each run's deleted objects and bytes, its seconds, and whether it
            failed.
        clean_published: deletes old metadata of open formats, and returns the number of objects.
        """
        self._done = CleanUpStatus()
        self._on_run = on_run
        self._clean_published = clean_published
        self._catalog = catalog
        self._tree = tree
        of = settings.manifest
        self._retention = Retention(retain_s=of.retain, orphan_grace_s=of.orphan_grace)
        self._versions = VersionRetention(settings.versions.keep, of.orphan_grace, of.retain)
        # Nothing expires sooner than these settings say.
        longest_s = max(of.retain, of.orphan_grace, SHORTEST_PAUSE_S)
        self._pause_s = min(LONGEST_PAUSE_S, longest_s)
        self._removals: dict[tuple[TableKey, int], Removals] = {}
        # A limiter of its own, so that no store call waits for garbage collection.
        self._limiter = trio.CapacityLimiter(1)
        self._random = Random()

    def statistics(self) -> CleanUpStatus:
        """Return the totals since the start."""
        return self._done

    async def run(self) -> None:
        """Collect garbage until cancelled.

        Raises:
            Fenced: another process has taken over this identity.
        """
        # Daemons started together spread out, and one that restarts often still collects.
        await trio.sleep(self._pause_s * self._random.uniform(0.1, 0.5))
        while True:
            for table in list(self._tree.tables.values()):
                await self._try(table)
            await trio.sleep(self._pause_s * self._random.uniform(0.9, 1.1))

    async def _try(self, table: TableBuffer) -> None:
        began = time.monotonic()
        try:
            done = await self._clean(table)
            await self._clean_versions(table)
            if published := await self._clean_published(table):
                log.info("published metadata cleaned", table=table.key, objects=published)
        except Fenced:
            raise
        except VersionNotKept as exc:
            log.info("table is being cleaned elsewhere", table=table.key, reason=str(exc))
        except (ManifestError, StoreError, StoreUnreachable, OSError) as exc:
            log.warning(
                "table not cleaned", table=table.key, error=str(exc), runbook="clean-up-failed"
            )
            self._note(None, time.monotonic() - began)
        else:
            self._note(done, time.monotonic() - began)

    def _note(self, done: CleanUp | None, seconds: float) -> None:
        before = self._done
        objects, nbytes = (0, 0) if done is None else (done.files, done.bytes)
        self._done = CleanUpStatus(
            runs=before.runs + (done is not None),
            failed_runs=before.failed_runs + (done is None),
            deleted_objects=before.deleted_objects + objects,
            deleted_bytes=before.deleted_bytes + nbytes,
            last_run_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            last_run_s=round(seconds, 4),
        )
        self._on_run(objects, nbytes, seconds, done is None)

    async def _clean(self, table: TableBuffer) -> CleanUp:
        key, commits = table.key, self._catalog.commits
        # Even without queries: the table may have been switched.
        await self._catalog.refresh(table, 0.0)
        manifest = commits.manifest(key)
        removals = self._removals.setdefault((key, manifest.table_version), Removals())
        plan = await self._in_thread(
            partial(plan_clean_up, manifest, self._retention, known=table.state, removals=removals)
        )
        await self._in_thread(partial(write_due_snapshot, manifest, plan))
        state = plan.state
        if plan.horizon is not None:
            async with commits.held(key):
                if table.state.table_version != plan.state.table_version:
                    # Switched meanwhile: the next run uses the current table version.
                    raise VersionNotKept(plan.oldest, plan.oldest, plan.state.version)
                horizon = Horizon(at=plan.horizon)
                state = await commits.commit_held(key, table.state, (horizon,))
            await self._catalog.refresh(table, 0.0)
        done = await self._in_thread(partial(carry_out, manifest, plan, state))
        if done.files:
            log.info(
                "table cleaned",
                table=key,
                oldest=done.oldest,
                newest=done.newest,
                commits=done.commits.files,
                changelogs=done.changelogs.files,
                snapshots=done.snapshots.files,
                data_files=done.data.files,
                data_bytes=done.data.bytes,
            )
        return done

    async def _clean_versions(self, table: TableBuffer) -> None:
        store, key = self._catalog.store, table.key
        done = await self._in_thread(partial(clean_up_versions, store, *key, self._versions))
        if done.marked or done.deleted:
            log.info(
                "old table versions cleaned",
                table=key,
                given_up=done.marked,
                deleted=done.deleted,
                objects=done.objects.files,
                bytes=done.objects.bytes,
            )

    async def _in_thread(self, call: Callable[[], T]) -> T:
        # Abandoned at a stop: whatever the thread still does, the next run can do as well.
        return await trio.to_thread.run_sync(call, limiter=self._limiter, abandon_on_cancel=True)


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


def open_maintenance(
    shared: Shared, tables: TableParts, clean_published: Callable[[TableBuffer], Awaitable[int]]
) -> MaintenanceParts:
    """Return the parts, which follow the tables' versions. On the loop.

    Args:
        clean_published: as :class:`GarbageCollector`.
    """
    settings, catalog = shared.settings, tables.catalog
    manifest = settings.manifest
    return MaintenanceParts(
        SnapshotWriter(catalog.commits),
        SparkMetadata(catalog, manifest.refresh) if manifest.spark_metadata else None,
        GarbageCollector(
            catalog, tables.tree, settings, shared.metrics.clean_up_ended, clean_published
        ),
    )
