"""Garbage collection of this daemon's open tables.

One table at a time, in a thread of its own. The table's gate is held only for the commit of a
horizon. Failures are logged and retried at the next run. It may be interrupted at any step: the
next run, here or at another daemon, deletes what is left (tests/maintenance).
"""

from __future__ import annotations

import time
from collections.abc import Callable
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
from persist.manifest import (
    CleanUp,
    Fenced,
    Horizon,
    ManifestError,
    Removals,
    Retention,
    VersionNotKept,
    carry_out,
    plan_clean_up,
    write_due_snapshot,
)
from persist.store import StoreError
from persist.switching import VersionRetention, clean_up_versions
from persist.table import TableKey

log = structlog.get_logger(__name__)

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
    ) -> None:
        """``on_run``: called with each run's deleted objects and bytes, its seconds, and whether
        it failed.
        """
        self._done = CleanUpStatus()
        self._on_run = on_run
        self._catalog = catalog
        self._tree = tree
        of = settings.manifest
        self._retention = Retention(retain_s=of.retain, orphan_grace_s=of.orphan_grace)
        self._versions = VersionRetention(settings.versions.keep, of.orphan_grace)
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
