"""Changes to manifests: one at a time for each table; flushes that are due go into one version.

    finished flush ──▶ due ──┐
    finished flush ──▶ due ──┴─▶ one commit ──▶ version installed, buffers released

Law of this file: every change by this daemon to a table's manifest goes through its gate, and a new
version is installed in the same step of the loop that releases the buffers whose files it has: a
refresh can never show a file beside its buffer.
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
from ingester.errors import StoreAway
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
"""The errors that a version of a table which was deleted leads to."""

COMMIT_RETRY = StoreRetry(first_s=0.1, cap_s=10.0, away=(StoreError, CommitUnclear))
STORE_RETRY_S = 2.0
SPILL_RETRY_S = 0.5
LOCK_PATIENCE_S = 5.0
MAX_STORE_CALLS = 16
MAX_WAITING_FLUSHES = 1024
"""Finished flushes that may wait for their commit: their rows stay in memory meanwhile."""


@dataclass(frozen=True, slots=True)
class CommitHooks:
    """Functions of other rooms that commits call."""

    spill: Callable[[BufferHandle], object]
    """Writes what readers need of a buffer to local disk. Runs in a thread."""
    on_fenced: Callable[[Fenced], None] = lambda fence: None
    """Is told that another process has taken over this identity."""
    on_change: Callable[[str, TableKey], None] = lambda what, table: None
    """Is told of what operators want to know of a whole table: it was created, or switched."""
    reads: Callable[[], bool] = lambda: True
    """Says whether reads of the store are answered, as far as that is known. Any thread."""


class Commits:
    """The gates of all tables. Loop only; the store's calls run in threads."""

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
        """Callbacks that are told each version that a table answers from, and each table opened."""
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
        # Who waits for a call waits here, in turn with other namespaces.
        self._turns = ByteBudget(MAX_STORE_CALLS)

    def manifest(self, key: TableKey) -> Manifest:
        """The manifest of the table version that is answered from, to be used in a thread.

        Where the table is not open it is the one that counts.
        """
        manifest, table = self._manifests.get(key), self._tree.tables.get(key)
        version = None if table is None else table.state.table_version
        if manifest is None or version not in (None, manifest.table_version):
            manifest = self._manifests[key] = Manifest(self.store, key[0], key[1], version)
        return manifest

    def _manifest_of(self, key: TableKey, base: TableState | None) -> Manifest:
        """The manifest that a version comes next in."""
        manifest = self.manifest(key)
        if base is None or manifest.table_version == base.table_version:
            return manifest
        return Manifest(self.store, key[0], key[1], base.table_version)

    async def load(self, key: TableKey) -> TableState:
        """The newest version of a table, which need not be open.

        Raises:
            TableNotFound, StoreAway
        """
        return await self.read(partial(load_current, self.store, *key), key[0])

    async def newest(self, table: TableBuffer) -> TableState:
        """The table's newest version, of the table version that counts now.

        Raises:
            StoreAway: the store cannot be reached.
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
        """Whether the table was switched, and what this manifest was of may be deleted since."""
        current = current_version(self.store, manifest.namespace, manifest.table)
        return current != manifest.table_version

    async def _newest_with_retries(self, table: TableBuffer) -> TableState:
        look = self._looking(table)
        call = partial(self._in_thread, look, table.namespace)
        tell = store_away("switched table not read, trying again", table=table.key)
        return await retry_async(call, COMMIT_RETRY, tell, sleep=trio.sleep)

    async def follow_switch(self, table: TableBuffer) -> None:
        """Answer from the version that the table was switched to. Hold the gate.

        Raises:
            StoreAway: the store cannot be reached; or it has rows that are in buffers here, too.
        """
        self.show(table, await self.newest(table))

    def under_way(self, key: TableKey) -> bool:
        """Whether the table's manifest is being changed."""
        gate = self._gates.get(key)
        return gate is not None and gate.lock.locked()

    @asynccontextmanager
    async def held(self, key: TableKey) -> AsyncIterator[None]:
        """The table's gate, for a caller who waits: not longer than a store that is away allows.

        Raises:
            StoreAway: somebody else has held it for :data:`LOCK_PATIENCE_S`.
        """
        lock = self._gates[key].lock
        with trio.move_on_after(LOCK_PATIENCE_S) as patience:
            await lock.acquire()
        if patience.cancelled_caught:
            raise StoreAway(
                f"table {key[0]}/{key[1]}: a commit has been under way for {LOCK_PATIENCE_S:g} s;"
                " is the object store away or slow?",
                retry_after_s=STORE_RETRY_S,
            )
        try:
            yield
        finally:
            lock.release()
            if not lock.locked() and key not in self._tree.tables:
                # There is no such table: any name may be asked for.
                self._gates.pop(key, None)
                self._manifests.pop(key, None)

    async def _in_thread(self, call: Callable[[], T], namespace: str) -> T:
        """Make a call of the store in a thread, in the namespace's turn."""
        await self._turns.spend(1, namespace)
        try:
            return await trio.to_thread.run_sync(call, limiter=self._limiter)
        finally:
            self._turns.give_back(1)

    async def read(self, call: Callable[[], T], namespace: str = "") -> T:
        """Make a call that reads from the store, in a thread; whose it is says whose turn it is.

        Raises:
            StoreAway: the store cannot be reached.
        """
        try:
            return await self._in_thread(call, namespace)
        except (StoreUnavailable, CommitUnclear) as exc:
            raise StoreAway(
                f"the object store cannot be reached: {exc}", retry_after_s=STORE_RETRY_S
            ) from exc

    async def commit_held(
        self,
        key: TableKey,
        base: TableState | None,
        actions: tuple[Action, ...],
        claims: Claims = NO_CLAIMS,
    ) -> TableState:
        """The version with these actions, for a caller who holds the gate and waits.

        Raises:
            StoreAway: the store cannot be reached; it is the caller's to try again.
            OriginMoved: the claims do not hold any more.
            VersionSealed: the table was switched; :meth:`follow_switch`, and look again.
            ProposalConflict, Fenced: as :func:`persist.manifest.commit`.
        """
        try:
            return await self._commit_once(key, base, Proposal(actions), claims)
        except (StoreUnavailable, CommitUnclear) as exc:
            raise StoreAway(
                f"table {key[0]}/{key[1]}: the object store cannot be reached: {exc}",
                retry_after_s=STORE_RETRY_S,
            ) from exc

    def show(self, table: TableBuffer, state: TableState) -> None:
        """Answer from this version, which came while no buffer was flushed. Hold the gate.

        Raises:
            StoreAway: it has rows that are in buffers here, too, and on their way to files.
        """
        if self.overlap.freeze_behind(table, state):
            raise held_back(table)
        self.install(table, state)
        table.refreshed_at = time.monotonic()

    def install(self, table: TableBuffer, state: TableState) -> None:
        """Answer from this version, which has no rows of buffers here, and tell the followers."""
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
        """Tell the followers that the table answers from another version, or was opened."""
        self._checkpoints.settle(table)
        for follower in self.followers:
            follower(table)

    # Finished flushes

    def gate(self, key: TableKey) -> CommitGate:
        """The table's gate; its schedule is told of each flush."""
        return self._gates[key]

    async def take_place(self, job: FlushJob) -> None:
        """Wait for a place among the flushes that wait for their commit; it gives the place back.

        A job of replication, which may wait for others of its atomic flush, needs none: it would
        keep their places from them.
        """
        if not job.handle.messages:
            await self._places.spend(1, job.table.namespace)

    async def committed(self, flush: FinishedFlush) -> bool:
        """Commit a flush that its table's schedule has; returns when its version is installed.

        Then its buffer is released. Retries while the store is away. Flushes of one table that are
        due at the same time are committed in one version.

        Returns:
            False for a flush of a table with a primary key that a commit went without: assemble it
            again and call again. Where it is refused, make its files anew before, on top of version
            ``base`` or a newer one and without what its ``left_out`` and ``covered_to`` say.

        Raises:
            Fenced: another process has taken over this identity.
        """
        table, gate = flush.table, self._gates[flush.table.key]
        await gate.until_due(flush)
        if (trace := flush.handle.flush_trace) is not None:
            trace.step("linger")
        async with gate.lock:
            if flush.state is FlushState.DUE:  # else an earlier caller has taken it along
                if table.definition.keyed:
                    await self._commit_keyed(table, gate)
                else:
                    await self._commit_all(table, gate)
        if trace is not None:
            trace.step("commit")
        return flush.state is FlushState.COMMITTED

    async def commit_checkpoints(self, table: TableBuffer) -> None:
        """Commit the states of sources whose rows are in files, without a flush.

        Retries while the store is away.

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
        """Give a flush's place back: it is committed, or cannot be made anew for now."""
        if not job.handle.messages:
            self._places.give_back(1)

    async def _install(
        self, table: TableBuffer, state: TableState, flushes: Sequence[FinishedFlush]
    ) -> None:
        persisted = [(flush.handle, flush.files) for flush in flushes]
        for flush in flushes:
            flush.handle.taken_back = bool(flush.left_out)
        if any(flush.left_out for flush in flushes):
            table.moved = (state.table_version, state.version)  # before a row of it is missing here
        while blocked := self._tree.install(table, state, persisted):
            for handle in blocked:
                await self._spill(handle)
        table.refreshed_at = time.monotonic()
        self.tell_followers(table)

    async def _spill(self, handle: BufferHandle) -> None:
        """Keep on disk what readers need of a buffer, and no file alone has.

        Without room there the rows stay in memory until their readers end or are ended.
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
        """Tell that another process has taken over this identity."""
        self._hooks.on_fenced(fence)
