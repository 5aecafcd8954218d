"""Merges small files of open tables in the background, if ``maintenance.compact`` is on.

    look at a table ─▶ plan the groups that pay ─▶ until the daemon is calm: rewrite one group
                                                        │             └─▶ commit at the gate
                                                        └── repeat for the next group

One table and one group at a time, in a thread of its own. A group begins only while the daemon is
not busy and the ledger is below its low watermark, and counts there until it is done. The
table's gate is held for the commit alone. A commit replaces a whole group or nothing: if one of its
files is gone by then, the new files are garbage. Nothing is deleted here, so versions that are kept
keep their files. Which groups pay is a rule of :func:`persist.compaction.plan_tiers`
(tests/maintenance/test_compaction.py).

Several daemons of one store may do this at once: each takes the groups in another order, and skips
those whose files are gone.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any, TypeVar

import msgspec
import structlog
import trio

from ingester.buffer import BufferTree, TableBuffer
from ingester.config.settings import Settings
from ingester.errors import StoreUnreachable
from ingester.memory.ledger import MemoryLedger
from ingester.observability.status import CompactionStatus
from ingester.tables.catalog import Catalog
from persist.compaction import (
    TARGET_FILE_BYTES,
    FileGroup,
    InProcess,
    RewriteTask,
    Rewritten,
    actions_of,
    plan_tiers,
)
from persist.manifest import (
    Add,
    Fenced,
    ManifestError,
    PartitionKey,
    RewriteVoid,
    TableState,
    UploadExpired,
    VersionSealed,
    live_owner,
)
from persist.manifest.actions import parse_time
from persist.parquet.copy_on_write import OlderRows
from persist.parquet.reading import FileDamaged
from persist.store import StoreError
from persist.table import TableDefinition, TableKey

log = structlog.get_logger(__name__)
T = TypeVar("T")

MOST_BYTES, MEMORY_SHARE = 1 << 30, 8
"""The memory of a group: this, or the memory limit divided by the second number."""
LONGEST_LOOK_S, SHORTEST_LOOK_S = 60.0, 1.0
"""Time between two looks at a table: ``persist.max_age`` within these limits."""
QUIET_FLUSHES = 12
"""A partition without a new file for this many times ``persist.max_age`` is not written to."""
CALM_S = 1.0
FAILED_S = 600.0
"""A table whose compaction failed is left alone for this long."""
NICENESS = 10
"""As of the threads that flush. One with less time that holds the interpreter's lock would hold up
all the others."""
KEPT_REFUSALS = 10_000


class Stopped(Exception):
    """The daemon ends: what the thread does is of no use."""


@dataclass(frozen=True, slots=True)
class CompactionHooks:
    """Functions of other rooms."""

    busy: Callable[[], bool]
    """Returns whether writes are refused, or nearly so."""
    stopping: Callable[[], bool]
    """Returns whether the daemon takes no more writes."""
    on_run: Callable[[float, Mapping[str, int]], None]
    """Called with each run's seconds and counts."""


@dataclass(slots=True)
class _Run:
    """One run over a table."""

    table: TableBuffer
    state: TableState
    task: RewriteTask
    runner: InProcess
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, **more: int) -> None:
        for name, number in more.items():
            self.counts[name] = self.counts.get(name, 0) + number

    def is_there(self, group: FileGroup) -> bool:
        """Whether the table still has all files of the group."""
        state = self.table.state
        same = state.table_version == self.state.table_version
        return same and all(add.path in state.files for add in group.files)


class Compactor:
    """Compacts open tables. Event loop only; the work runs in a thread."""

    def __init__(
        self,
        catalog: Catalog,
        tree: BufferTree,
        ledger: MemoryLedger,
        settings: Settings,
        hooks: CompactionHooks,
    ) -> None:
        self._catalog = catalog
        self._tree = tree
        self._ledger = ledger
        self._hooks = hooks
        self._on = settings.maintenance.compact
        self._memory = min(MOST_BYTES, settings.memory.limit // MEMORY_SHARE)
        self._held = OlderRows()
        ledger.gauge("compacted", lambda: self._held.nbytes)
        max_age = settings.persist.max_age
        self._look_s = min(LONGEST_LOOK_S, max(SHORTEST_LOOK_S, max_age))
        self._quiet_s = QUIET_FLUSHES * max_age
        self._done = CompactionStatus()
        self._seen: dict[TableKey, tuple[object, float]] = {}
        """The place of each table at its last look, None if that failed, and when the next one is
        due even without a change."""
        self._refused: set[str] = set()
        """Files that did not fit into memory with another one."""
        self._random = Random()
        self._ended = False

    def statistics(self) -> CompactionStatus:
        """Return the totals since the start."""
        return self._done

    async def run(self) -> None:
        """Compact tables until cancelled; nothing if it is off.

        Raises:
            Fenced: another process has taken over this identity.
        """
        try:
            while self._on:
                await trio.sleep(self._look_s * self._random.uniform(0.5, 1.0))
                for table in list(self._tree.tables.values()):
                    if self._is_due(table):
                        await self._try(table)
        finally:
            self._ended = True

    def _is_due(self, table: TableBuffer) -> bool:
        place, due_at = self._seen.get(table.key, (None, 0.0))
        changed = place not in (None, table.state.place)
        due = changed or time.monotonic() >= due_at
        return due and not self._is_of_another(table.state)

    def _is_of_another(self, state: TableState) -> bool:
        """Whether another daemon takes the writes of a keyed table: it compacts it, too."""
        owner = live_owner(state)
        return owner is not None and owner.ingester_id != self._tree.ingester_id

    async def _try(self, table: TableBuffer) -> None:
        await self._catalog.look(table, 0.0)
        began, run = time.monotonic(), self._begin(table)
        seen: object = run.state.place
        failed = False
        next_s = self._quiet_s
        try:
            await self._compact(run)
        except Fenced:
            raise
        except VersionSealed as exc:
            log.info("table switched during its compaction", table=table.key, reason=str(exc))
            await self._catalog.look(table, 0.0)
        except StoreUnreachable as exc:
            log.info("compaction put off", table=table.key, reason=str(exc))
            next_s = self._look_s
        except (ManifestError, StoreError, FileDamaged, OSError, MemoryError) as exc:
            log.warning(
                "table not compacted", table=table.key, error=str(exc), runbook="compaction-failed"
            )
            failed, seen, next_s = True, None, FAILED_S
        self._seen[table.key] = seen, time.monotonic() + next_s
        if run.counts or failed:
            self._note(run, time.monotonic() - began, failed)

    def _note(self, run: _Run, seconds: float, failed: bool) -> None:
        counts = run.counts | {"runs": int(not failed), "failed_runs": int(failed)}
        before = self._done
        totals: dict[str, Any] = {name: getattr(before, name) + counts[name] for name in counts}
        totals["last_run_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._done = msgspec.structs.replace(before, **totals, last_run_s=round(seconds, 4))
        self._hooks.on_run(seconds, counts)
        if run.counts:
            log.info(
                "table compacted",
                table=run.table.key,
                version=run.table.state.version,
                seconds=round(seconds, 3),
                **run.counts,
            )

    def _begin(self, table: TableBuffer) -> _Run:
        state, manifest = table.state, self._catalog.commits.manifest(table.key)
        task = RewriteTask(
            manifest.root, TableDefinition.of_state(state), TARGET_FILE_BYTES, "compaction"
        )
        runner = InProcess(self._catalog.store, self._memory, self._pause, self._held)
        return _Run(table, state, task, runner)

    def _pause(self) -> None:
        """Called in the thread before each file."""
        if self._ended:
            raise Stopped

    async def _compact(self, run: _Run) -> None:
        buffered = {key for key, part in run.table.partitions.items() if not part.empty}
        groups = await self._in_thread(partial(self._plan, run, buffered))
        self._random.shuffle(groups)
        for group in groups:
            await self._until_calm()
            if run.is_there(group):
                await self._rewrite(run, group)

    def _plan(self, run: _Run, buffered: set[PartitionKey]) -> list[FileGroup]:
        """The groups that pay and fit into memory. Runs in the thread."""

        def written(key: PartitionKey, files: Sequence[Add]) -> bool:
            return key in buffered or any(_age_s(add) < self._quiet_s for add in files)

        groups = plan_tiers(run.state, run.task.target_bytes, written)
        if not groups:
            return []
        fits = run.runner.fitting_target(run.task, max(groups, key=lambda group: group.bytes))
        if fits < run.task.target_bytes:
            run.task = replace(run.task, target_bytes=fits)
            groups = plan_tiers(run.state, fits, written)
        return [group for group in groups if not self._was_refused(group)]

    def _was_refused(self, group: FileGroup) -> bool:
        return sum(add.path not in self._refused for add in group.files) < 2

    async def _until_calm(self) -> None:
        """Wait until writes are admitted and there is memory for a group."""
        marks = self._ledger.watermarks
        most = min(marks.low, marks.high - 2 * self._memory)  # as much again is left to writes
        while self._hooks.busy() or self._ledger.used > most:
            await trio.sleep(CALM_S)

    async def _rewrite(self, run: _Run, group: FileGroup) -> None:
        found = await self._in_thread(partial(run.runner, run.task, [group]))
        for one in found:
            if one.refused is not None:
                if len(self._refused) > KEPT_REFUSALS:
                    self._refused.clear()
                self._refused.update(add.path for add in one.group.files)
        results = [one for one in found if one.refused is None]
        if results and not self._hooks.stopping():
            await self._commit(run, results)

    async def _commit(self, run: _Run, results: list[Rewritten]) -> None:
        key, commits = run.table.key, self._catalog.commits
        try:
            async with commits.held(key):
                if all(run.is_there(one.group) for one in results):
                    await commits.commit_held(key, run.table.state, actions_of(results))
                else:
                    run.count(conflicts=1)
                    return
        except (RewriteVoid, UploadExpired):
            run.count(conflicts=1)
        else:
            for group, adds, _ in results:
                run.count(
                    replaced_files=len(group.files),
                    replaced_bytes=group.bytes,
                    new_files=len(adds),
                    new_bytes=sum(add.bytes for add in adds),
                )
        await self._catalog.look(run.table, 0.0)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """The result of a call in a thread of low priority, which is abandoned at a stop."""
        token, ended = trio.lowlevel.current_trio_token(), trio.Event()
        done: list[tuple[T | None, BaseException | None]] = []

        def work() -> None:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
            try:
                done.append((call(), None))
            except BaseException as exc:
                done.append((None, exc))
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(ended.set)

        threading.Thread(target=work, name="compaction", daemon=True).start()
        await ended.wait()
        result, error = done.pop()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]


def _age_s(add: Add) -> float:
    """Seconds since the rows of a file were written; long ago for a file that was only merged."""
    if add.kind == "rewrite" or (at := parse_time(add.at)) is None:
        return math.inf
    return (datetime.now(UTC) - at).total_seconds()
