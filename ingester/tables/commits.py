"""Changes to manifests: one at a time per table; due flushes share a version.

    finished flush ──▶ due ──┐
    finished flush ──▶ due ──┴─▶ one commit ──▶ version installed, buffers released

Every change that this daemon makes to a table's manifest goes through the table's gate. A
version is installed in the same step of the loop that releases the buffers whose files it has,
so no refresh can show a file beside its buffer (tests/tables).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog
import trio

from ingester.buffer import BufferHandle, BufferTree, FlushJob, TableBuffer
from ingester.errors import StoreUnreachable
from ingester.observability.logs import store_away
from ingester.tables.claims import EXPIRE_AFTER_S, NO_CLAIMS, CheckpointClaims, Claims, OriginClaims
from ingester.tables.commit_batches import (
    NO_FILES,
    CommitBatches,
    FilesOf,
    VersionOverlap,
    held_back,
)
from ingester.tables.commit_schedule import CommitGate, FinishedFlush, FlushState
from persist.jobs import ByteBudget
from persist.manifest import (
    Action,
    ActionRefused,
    CommitUnclear,
    Fenced,
    Manifest,
    ManifestDamaged,
    Proposal,
    Sealed,
    TableNotFound,
    TableState,
    VersionNotKept,
    VersionSealed,
    WriterIdentity,
    commit,
    current_version,
    last_switch,
    undisturbed,
    unmoved,
)
from persist.store import ObjectStore, StoreError, StoreRetry, StoreUnavailable, retry_async
from persist.switching import load_current
from persist.table import TableKey

log = structlog.get_logger(__name__)

T = TypeVar("T")

_GONE = (TableNotFound, VersionNotKept, ManifestDamaged, ActionRefused)
"""Raised when a deleted table version is read."""

COMMIT_RETRY = StoreRetry(first_s=0.1, cap_s=10.0, unreachable=(StoreError, CommitUnclear))
STORE_RETRY_S = 2.0
SPILL_RETRY_S = 0.5
LOCK_PATIENCE_S = 5.0
MAX_STORE_CALLS = 16
MAX_WAITING_FLUSHES = 1024
"""Limit on finished flushes that wait for their commit, because their rows stay in memory."""


@dataclass(frozen=True, slots=True)
class CommitHooks:
    """Callbacks into other rooms."""

    spill: Callable[[BufferHandle], object]
    """Writes what readers need of a buffer to local disk; called in a thread."""
    on_fenced: Callable[[Fenced], None] = lambda fence: None
    """Called when another process has taken over this identity."""
    on_change: Callable[[str, TableKey], None] = lambda what, table: None
    """Called when a table is created or switched."""
    reads: Callable[[], bool] = lambda: True
    """Returns whether the store answers reads, as far as known. Thread-safe."""


class Commits:
    """The gates of all tables. Event loop only; store calls run in threads."""

    def __init__(
        self,
        store: ObjectStore,
        tree: BufferTree,
        writer: WriterIdentity,
        hooks: CommitHooks,
        *,
        expire_after_s: float = EXPIRE_AFTER_S,
    ) -> None:
        self.store = store
        self.followers: list[Callable[[TableBuffer], None]] = []
        """Called with each table when it is opened or answers from a new version."""
        self.claims = OriginClaims(tree.origins, writer, expire_after_s)
        self.overlap = VersionOverlap(tree, writer.ingester_id, self.claims)
        self._hooks = hooks
        self.on_change = hooks.on_change
        self.reads = hooks.reads
        self._checkpoints = CheckpointClaims(tree)
        self._batches = CommitBatches(
            self.claims,
            self._checkpoints,
            writer,
            self._commit_with_retries,
            self._newest_with_retries,
        )
        self._tree = tree
        self._writer = writer
        self._gates: defaultdict[TableKey, CommitGate] = defaultdict(CommitGate)
        self._places = ByteBudget(MAX_WAITING_FLUSHES)
        self._manifests: dict[TableKey, Manifest] = {}
        self._limiter = trio.CapacityLimiter(MAX_STORE_CALLS)
        # Store calls wait here, in turns between namespaces.
        self._turns = ByteBudget(MAX_STORE_CALLS)

    def manifest(self, key: TableKey) -> Manifest:
        """Return the manifest of the table version in use, for use in a thread.

        For a table that is not open, the manifest of the current table version.
        """
        manifest, table = self._manifests.get(key), self._tree.tables.get(key)
        version = None if table is None else table.state.table_version
        if manifest is None or version not in (None, manifest.table_version):
            manifest = self._manifests[key] = Manifest(self.store, key[0], key[1], version)
        return manifest

    def _manifest_of(self, key: TableKey, base: TableState | None) -> Manifest:
        """Return the manifest in which the next version of ``base`` is created."""
        manifest = self.manifest(key)
        if base is None or manifest.table_version == base.table_version:
            return manifest
        return Manifest(self.store, key[0], key[1], base.table_version)

    async def load(self, key: TableKey) -> TableState:
        """Return the newest version of a table, open or not.

        Raises:
            TableNotFound, StoreUnreachable
        """
        return await self.read(partial(load_current, self.store, *key), key[0])

    async def newest(self, table: TableBuffer) -> TableState:
        """Return the newest version of the current table version.

        Raises:
            StoreUnreachable: the store cannot be reached.
        """
        return await self.read(self._looking(table), table.namespace)

    def _looking(self, table: TableBuffer) -> Callable[[], TableState]:
        manifest, known = self.manifest(table.key), table.state

        def look() -> TableState:
            try:
                state = manifest.refresh(known)
            except _GONE:
                if not self._is_elsewhere(manifest):
                    raise
                return load_current(self.store, *table.key)
            return state if state.sealed is None else load_current(self.store, *table.key)

        return look

    def _is_elsewhere(self, manifest: Manifest) -> bool:
        """Return whether the table was switched, so that this manifest may have been deleted."""
        current = current_version(self.store, manifest.namespace, manifest.table)
        return current != manifest.table_version

    async def _newest_with_retries(self, table: TableBuffer) -> TableState:
        look = self._looking(table)
        call = partial(self._in_thread, look, table.namespace)
        tell = store_away("switched table not read, trying again", table=table.key)
        return await retry_async(call, COMMIT_RETRY, tell, sleep=trio.sleep)

    async def follow_switch(self, table: TableBuffer) -> None:
        """Install the table version that the table was switched to. Requires the gate.

        Raises:
            StoreUnreachable: the store cannot be reached, or the version has rows that are also
                buffered here.
        """
        self.show(table, await self.newest(table))

    def under_way(self, key: TableKey) -> bool:
        """Return whether the table's manifest is being changed."""
        gate = self._gates.get(key)
        return gate is not None and gate.lock.locked()

    @asynccontextmanager
    async def held(self, key: TableKey) -> AsyncIterator[None]:
        """Hold the table's gate, waiting at most :data:`LOCK_PATIENCE_S` for it.

        Raises:
            StoreUnreachable: another task held it for that long.
        """
        lock = self._gates[key].lock
        with trio.move_on_after(LOCK_PATIENCE_S) as patience:
            await lock.acquire()
        if patience.cancelled_caught:
            raise StoreUnreachable(
                f"table {key[0]}/{key[1]}: a commit has been under way for {LOCK_PATIENCE_S:g} s;"
                " is the object store unreachable or slow?",
                retry_after_s=STORE_RETRY_S,
            )
        try:
            yield
        finally:
            lock.release()
            if not lock.locked() and key not in self._tree.tables:
                # The table does not exist; any name may be requested.
                self._gates.pop(key, None)
                self._manifests.pop(key, None)

    async def _in_thread(self, call: Callable[[], T], namespace: str) -> T:
        """Call the store in a thread, in the namespace's turn."""
        await self._turns.spend(1, namespace)
        try:
            return await trio.to_thread.run_sync(call, limiter=self._limiter)
        finally:
            self._turns.give_back(1)

    async def read(self, call: Callable[[], T], namespace: str = "") -> T:
        """Read from the store in a thread, in the namespace's turn.

        Raises:
            StoreUnreachable: the store cannot be reached.
        """
        try:
            return await self._in_thread(call, namespace)
        except (StoreUnavailable, CommitUnclear) as exc:
            raise StoreUnreachable(
                f"the object store cannot be reached: {exc}", retry_after_s=STORE_RETRY_S
            ) from exc

    async def commit_held(
        self,
        key: TableKey,
        base: TableState | None,
        actions: tuple[Action, ...],
        claims: Claims = NO_CLAIMS,
    ) -> TableState:
        """Commit these actions once and return the version. Requires the gate.

        Raises:
            StoreUnreachable: the store cannot be reached; the caller may retry.
            OriginMoved: the claims are no longer valid.
            VersionSealed: the table was switched; call :meth:`follow_switch` and start over.
            ProposalConflict, Fenced: as :func:`persist.manifest.commit`.
        """
        try:
            return await self._commit_once(key, base, Proposal(actions), claims)
        except (StoreUnavailable, CommitUnclear) as exc:
            raise StoreUnreachable(
                f"table {key[0]}/{key[1]}: the object store cannot be reached: {exc}",
                retry_after_s=STORE_RETRY_S,
            ) from exc

    def show(self, table: TableBuffer, state: TableState) -> None:
        """Install a version that came without a flush of this daemon. Requires the gate.

        Raises:
            StoreUnreachable: it has rows that are also buffered here and being flushed.
        """
        if self.overlap.freeze_behind(table, state):
            raise held_back(table)
        self.install(table, state)
        table.refreshed_at = time.monotonic()

    def install(self, table: TableBuffer, state: TableState) -> None:
        """Install a version that has no rows of buffers here, and notify followers."""
        before, definition = table.state.table_version, table.definition
        table.install(state)
        if table.definition.first_schema_id != definition.first_schema_id:
            for origin_table in self._tree.origins.of_table(table.key):
                origin_table.forget_partitions()
        if (now := table.state.table_version) != before:
            log.info("table switched", table=table.key, table_version=now, previous=before)
            self.on_change("table switched", table.key)
        self.tell_followers(table)

    def tell_followers(self, table: TableBuffer) -> None:
        """Notify followers that the table was opened or answers from another version."""
        self._checkpoints.settle(table)
        for follower in self.followers:
            follower(table)

    # Finished flushes

    def gate(self, key: TableKey) -> CommitGate:
        """Return the table's gate; its schedule learns of each flush."""
        return self._gates[key]

    async def take_place(self, job: FlushJob) -> None:
        """Wait for one of the places of flushes that wait for their commit.

        Replication's jobs need none: while they wait for their atomic flush they would block the
        others.
        """
        if not job.handle.messages:
            await self._places.spend(1, job.table.namespace)

    async def committed(self, flush: FinishedFlush) -> bool:
        """Commit a scheduled flush; return once its version is installed and its buffer released.

        Retries while the store is unreachable. Flushes of one table that are due together share
        a version.

        Returns:
            False if the commit of a keyed table left the flush out: assemble it again and call
            again. If it was refused, first
            make its files again, on top of version ``base`` or newer and without ``left_out``
            and ``covered_to``.

        Raises:
            Fenced: another process has taken over this identity.
        """
        table, gate = flush.table, self._gates[flush.table.key]
        await gate.until_due(flush)
        if (trace := flush.handle.flush_trace) is not None:
            trace.step("linger")
        async with gate.lock:
            if flush.state is FlushState.DUE:  # otherwise an earlier caller has committed it
                if table.definition.keyed:
                    await self._commit_keyed(table, gate)
                else:
                    await self._commit_all(table, gate)
        if trace is not None:
            trace.step("commit")
        return flush.state is FlushState.COMMITTED

    async def commit_checkpoints(self, table: TableBuffer) -> None:
        """Commit the checkpoints whose rows are in files, without a flush.

        Retries while the store is unreachable.

        Raises:
            Fenced: another process has taken over this identity.
        """
        async with self._gates[table.key].lock:
            state = await self._batches.commit_checkpoints(table)
            if state is not None and not self.overlap.freeze_behind(table, state):
                self.install(table, state)
                table.refreshed_at = time.monotonic()

    async def _commit_all(self, table: TableBuffer, gate: CommitGate) -> None:
        state, batch, further = table.state, list[FinishedFlush](), gate.schedule.take(keyed=False)
        while further:
            state = await self._batches.commit_all(table, state, further)
            for flush in further:
                self.dismiss(flush.job)
            batch += further
            behind = self.overlap.freeze_behind(table, state, {flush.handle for flush in batch})
            further = await gate.take_further(batch) if behind else []
        await self._install(table, state, batch)
        gate.schedule.end_commit(batch, batch)

    async def _commit_keyed(self, table: TableBuffer, gate: CommitGate) -> None:
        batch = gate.schedule.take(keyed=True)
        bases = (table.state, *(flush.base for flush in batch))
        newest = max(bases, key=lambda state: state.place)
        state, committed = await self._batches.commit_keyed(table, newest, batch)
        if committed:
            await self._install(table, state, committed)
            for flush in committed:
                self.dismiss(flush.job)
        gate.schedule.end_commit(batch, committed)

    def dismiss(self, job: FlushJob) -> None:
        """Free a flush's place: it is committed, or cannot be made again for now."""
        if not job.handle.messages:
            self._places.give_back(1)

    async def _install(
        self, table: TableBuffer, state: TableState, flushes: Sequence[FinishedFlush]
    ) -> None:
        persisted = [(flush.handle, flush.files) for flush in flushes]
        for flush in flushes:
            flush.handle.taken_back = bool(flush.left_out)
        if any(flush.left_out for flush in flushes):
            table.moved = (
                state.table_version,
                state.version,
            )  # before any of its rows is missing here
        while blocked := self._tree.install(table, state, persisted):
            for handle in blocked:
                await self._spill(handle)
        table.refreshed_at = time.monotonic()
        self.tell_followers(table)

    async def _spill(self, handle: BufferHandle) -> None:
        """Write what readers need of a buffer to local disk.

        Without free disk space the rows stay in memory until their readers finish or expire.
        """
        try:
            await trio.to_thread.run_sync(self._hooks.spill, handle)
        except OSError as exc:
            log.warning("spill failed", error=str(exc), runbook="spill-failed")
            await trio.sleep(SPILL_RETRY_S)

    async def _commit_with_retries(
        self,
        table: TableBuffer,
        base: TableState,
        actions: tuple[Action, ...],
        claims: Claims,
        files: FilesOf = NO_FILES,
    ) -> TableState:
        proposal = Proposal((*actions, *claims.actions))
        call = partial(self._commit_once, table.key, base, proposal, claims, files)
        tell = store_away("commit failed, trying again", table=table.key)
        return await retry_async(call, COMMIT_RETRY, tell, sleep=trio.sleep)

    async def _commit_once(
        self,
        key: TableKey,
        base: TableState | None,
        proposal: Proposal,
        claims: Claims,
        files: FilesOf = NO_FILES,
    ) -> TableState:
        rule = unmoved(claims.seen, undisturbed(files))
        manifest = self._manifest_of(key, base)

        def call() -> TableState:
            try:
                return commit(manifest, base, proposal, self._writer, rebase=rule)
            except _GONE as exc:
                if base is None or not self._is_elsewhere(manifest):
                    raise
                number, last = last_switch(self.store, *key)
                raise VersionSealed(Sealed(last.table_version, number)) from exc

        try:
            return await self._in_thread(call, key[0])
        except Fenced as exc:
            self.fenced(exc)
            raise

    def fenced(self, fence: Fenced) -> None:
        """Report that another process has taken over this identity."""
        self._hooks.on_fenced(fence)
