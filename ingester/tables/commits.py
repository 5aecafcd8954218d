"""Changes to manifests: one table's at a time, in order, joined where they wait together.

    persisted ──join──▶ waiting ──┐
    persisted ──join──▶ waiting ──┴─▶ one commit ──▶ version installed, buffers released

Law of this file: everything that changes a table's manifest goes through its gate, and a new
version is installed in the same step of the loop that releases the buffers whose files it has: a
refresh can never show a file beside its buffer.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import trio

from ingester.buffer import BufferHandle, BufferTree, TableBuffer
from ingester.errors import StoreAway
from ingester.observability.logs import store_away
from ingester.tables.commit_batches import NO_FILES, CommitGroups, FilesOf, Group
from ingester.tables.install import Installation
from ingester.tables.origin_claims import EXPIRE_AFTER_S, NO_CLAIMS, Claims, OriginClaims
from ingester.tables.pending_commit import Gate, PersistedBuffer, held_back
from ingester.tables.version_overlap import VersionOverlap
from persist.manifest import (
    Action,
    CommitUnclear,
    Fenced,
    Manifest,
    Proposal,
    TableState,
    WriterIdentity,
    commit,
    undisturbed,
    unmoved,
)
from persist.store import ObjectStore, StoreError, StoreRetry, StoreUnavailable, retry_async
from persist.table import TableKey

T = TypeVar("T")

COMMIT_RETRY = StoreRetry(first_s=0.1, cap_s=10.0, away=(StoreError, CommitUnclear))
STORE_RETRY_S = 2.0
LOCK_PATIENCE_S = 5.0
MAX_STORE_CALLS = 16


class Commits:
    """The gates of all tables. Loop only; the store's calls run in threads."""

    def __init__(
        self,
        store: ObjectStore,
        tree: BufferTree,
        writer: WriterIdentity,
        *,
        spill: Callable[[BufferHandle], object],
        expire_after_s: float = EXPIRE_AFTER_S,
    ) -> None:
        self.store = store
        self.on_fenced: Callable[[Fenced], None] = lambda fence: None
        self.followers: list[Callable[[TableBuffer], None]] = []
        """Told of each version that a table answers from, and of each table that is opened."""
        self.claims = OriginClaims(tree.origins, writer, expire_after_s)
        self.adopted = VersionOverlap(tree, writer.ingester_id, self.claims)
        self.groups = CommitGroups(self.claims, writer, self._commit_with_retries)
        self._tree = tree
        self._writer = writer
        self._installation = Installation(tree, spill)
        self._gates: defaultdict[TableKey, Gate] = defaultdict(Gate)
        self._manifests: dict[TableKey, Manifest] = {}
        self._limiter = trio.CapacityLimiter(MAX_STORE_CALLS)

    def manifest(self, key: TableKey) -> Manifest:
        """The table's manifest, to be used in a thread."""
        manifest = self._manifests.get(key)
        if manifest is None:
            manifest = self._manifests[key] = Manifest(self.store, key[0], key[1])
        return manifest

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

    async def read(self, call: Callable[[], T]) -> T:
        """What a call gives that reads from the store, in a thread.

        Raises:
            StoreAway: the store cannot be reached.
        """
        try:
            return await trio.to_thread.run_sync(call, limiter=self._limiter)
        except StoreUnavailable as exc:
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
        """Answer from this version, which came while no buffer was persisted. Hold the gate.

        Raises:
            StoreAway: it has rows that are in buffers here, too, and on their way to files.
        """
        if self.adopted.freeze_behind(table, state):
            raise held_back(table)
        table.install(state)
        table.refreshed_at = time.monotonic()
        self.tell_followers(table)

    def tell_followers(self, table: TableBuffer) -> None:
        """The table answers from another version, or was opened."""
        for follower in self.followers:
            follower(table)

    # Persisted buffers

    def join(self, persisted: PersistedBuffer) -> None:
        """Take a place in the order of the table's commits. Follow with :meth:`joined`."""
        gate = self._gates[persisted.table.key]
        gate.waiting.append(persisted)
        gate.grown.set()
        gate.grown = trio.Event()

    async def joined(self, persisted: PersistedBuffer) -> bool:
        """Commit a buffer's files and release it; returns when both have happened.

        Retries while the store is away. Buffers of one table are committed in the order in which
        they joined, those that wait together in one version.

        Returns:
            False for the buffer of a keyed table that cannot go in as it is: make it anew, on top
            of a newer version and as its ``left_out`` and ``covered_to`` say, and join again.

        Raises:
            Fenced: another process has taken over this identity.
        """
        table = persisted.table
        gate = self._gates[table.key]
        async with gate.lock:
            if persisted in gate.waiting:  # else an earlier caller has taken it along
                group = list(gate.waiting)
                if table.definition.keyed:
                    await self._commit_keyed(table, gate, group)
                else:
                    await self._commit_all(table, gate, group)
        return persisted.committed

    async def _commit_all(self, table: TableBuffer, gate: Gate, group: Group) -> None:
        state = await self.groups.commit_all(table, table.state, group)
        while self.adopted.freeze_behind(table, state, {m.handle for m in group}):
            # Whoever comes is committed, not only who is waited for: that one may stand behind more
            # buffers than may wait for a commit.
            while len(gate.waiting) == len(group):
                await gate.grown.wait()
            further = gate.waiting[len(group) :]
            state = await self.groups.commit_all(table, state, further)
            group += further
        await self._install(table, state, group)
        del gate.waiting[: len(group)]

    async def _commit_keyed(self, table: TableBuffer, gate: Gate, group: Group) -> None:
        bases = (table.state, *(member.base for member in group if member.base is not None))
        newest = max(bases, key=lambda state: state.version)
        state, taken = await self.groups.commit_keyed(table, newest, group)
        if taken:
            await self._install(table, state, taken)
        del gate.waiting[: len(group)]

    async def _install(
        self, table: TableBuffer, state: TableState, members: Sequence[PersistedBuffer]
    ) -> None:
        persisted = [(member.handle, member.files) for member in members]
        await self._installation.install(table, state, persisted)
        for member in members:
            member.committed = True
        table.refreshed_at = time.monotonic()
        self.tell_followers(table)

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
        call = partial(commit, self.manifest(key), base, proposal, self._writer, rebase=rule)
        try:
            return await trio.to_thread.run_sync(call, limiter=self._limiter)
        except Fenced as exc:
            self.on_fenced(exc)
            raise
