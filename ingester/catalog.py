"""The daemon's tables: opened, created, widened, and committed to, one step at a time per table.

Law of this file: whatever an acknowledgement depends on (the table, its columns, this daemon's
epoch) is in the manifest before the operation goes to the log. Everything that changes a table's
manifest goes through one lock per table, and a new version is installed in the same step of the
loop that releases the buffers whose files it has: a refresh can never show a file beside its
buffer.

Finished persists that wait while a commit is under way go into the next one together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TypeVar

import pyarrow as pa
import structlog
import trio

from ingester.buffer import BufferHandle, BufferTree, PersistedFiles, TableBuffer
from ingester.errors import StoreAway, UnknownTable
from ingester.schema.definition import automatic_definition, check_same
from ingester.schema.names import check_table_name
from ingester.schema.normalise import missing_columns
from persist.backoff import Backoff
from persist.manifest import (
    Action,
    CommitUnclear,
    Fenced,
    Manifest,
    Proposal,
    ProposalConflict,
    TableNotFound,
    TableState,
    Writer,
    WriterIdentity,
    commit,
    list_tables,
)
from persist.store import ObjectStore, StoreError, StoreUnavailable
from persist.table import TableDefinition

log = structlog.get_logger(__name__)

T = TypeVar("T")
TableKey = tuple[str, str]

_STORE_RETRY_S = 2.0
LOCK_PATIENCE_S = 5.0
SPILL_RETRY_S = 0.5


@dataclass(slots=True, eq=False)
class PersistedBuffer:
    """One buffer's files, uploaded and waiting for their commit."""

    handle: BufferHandle
    files: PersistedFiles
    actions: tuple[Action, ...]
    committed: bool = False


@dataclass(slots=True)
class _Gate:
    """What serialises one table's manifest, and who waits for the next commit."""

    lock: trio.Lock = field(default_factory=trio.Lock)
    waiting: list[PersistedBuffer] = field(default_factory=list)


class Catalog:
    """Opens, creates and commits tables. Loop only; the store's calls run in threads."""

    def __init__(
        self,
        store: ObjectStore,
        tree: BufferTree,
        writer: WriterIdentity,
        *,
        auto_create: bool,
        spill: Callable[[BufferHandle], object],
    ) -> None:
        self.store = store
        self._tree = tree
        self._writer = writer
        self._auto_create = auto_create
        self._spill = spill
        self.on_fenced: Callable[[Fenced], None] = lambda fence: None
        self._gates: dict[TableKey, _Gate] = {}
        self._manifests: dict[TableKey, Manifest] = {}
        self._limiter = trio.CapacityLimiter(16)

    # Reading

    async def open(self, namespace: str, name: str) -> TableBuffer:
        """The table, loaded from its manifest when it is not known yet.

        Raises:
            UnknownTable: it does not exist.
            StoreAway: it is not loaded, and the store cannot be reached.
        """
        key = (check_table_name("namespace", namespace), check_table_name("table", name))
        table = self._tree.tables.get(key)
        if table is not None:
            return table
        async with self._held(key):
            return await self._open_locked(key)

    async def names(self) -> list[TableKey]:
        """All tables, in the store or open here, sorted."""
        stored = await self._in_thread(lambda: list(list_tables(self.store)))
        return sorted({*stored, *self._tree.tables})

    def manifest(self, key: TableKey) -> Manifest:
        """The table's manifest, to be used in a thread."""
        manifest = self._manifests.get(key)
        if manifest is None:
            manifest = self._manifests[key] = Manifest(self.store, key[0], key[1])
        return manifest

    async def refresh(self, table: TableBuffer, older_than_s: float) -> None:
        """See commits of other writers, if the last look is older than this many seconds.

        A store that is away leaves the table as it was: its own rows are still answered.
        """
        lock = self._gate(table.key).lock
        if trio.current_time() - table.refreshed_at <= older_than_s:
            return
        if lock.locked() and older_than_s >= 0:
            return  # a commit is under way: it installs the newest version, or the store is away
        async with self._held(table.key):
            if trio.current_time() - table.refreshed_at <= older_than_s:
                return
            started = trio.current_time()
            try:
                refresh = partial(self.manifest(table.key).refresh, table.state)
                state = await trio.to_thread.run_sync(refresh, limiter=self._limiter)
            except StoreError as exc:
                log.warning(
                    "manifest refresh failed",
                    table=table.key,
                    error=str(exc),
                    runbook="refresh-failed",
                )
            else:
                table.install(state)
            table.refreshed_at = started

    # What a write depends on

    async def draft(self, namespace: str, name: str, sent: pa.Schema) -> TableDefinition | None:
        """The definition that a write of this schema would lead to; None where it is there already.

        Raises:
            InvalidRequest, UnknownTable, StoreAway: as :meth:`prepare_write`.
        """
        try:
            table = await self.open(namespace, name)
        except UnknownTable:
            if not self._auto_create:
                raise
            return automatic_definition(sent)
        missing = missing_columns(table.definition, sent)
        if not missing:
            return None
        return table.definition.with_schema(pa.schema([*table.definition.schema, *missing]))

    async def prepare_write(self, namespace: str, name: str, sent: pa.Schema) -> TableBuffer:
        """The table, with every column of ``sent`` and this daemon's epoch in its manifest.

        Raises:
            InvalidRequest: names, types or columns that the table cannot take.
            UnknownTable: it does not exist and ``auto_create`` is off.
            StoreAway: something has to be committed first, and the store cannot be reached.
        """
        key = (check_table_name("namespace", namespace), check_table_name("table", name))
        table = self._tree.tables.get(key)
        if table is not None and table.registered and not missing_columns(table.definition, sent):
            return table
        async with self._held(key):
            try:
                table = await self._open_locked(key)
            except UnknownTable:
                if not self._auto_create:
                    raise
                table = await self._create_locked(key, automatic_definition(sent))
            await self._register_locked(table)
            while missing := missing_columns(table.definition, sent):
                await self._widen_locked(table, missing)
            return table

    async def create(self, namespace: str, name: str, definition: TableDefinition) -> TableBuffer:
        """Create a table; the same definition again is fine.

        Raises:
            InvalidRequest: the table exists with another definition.
        """
        key = (check_table_name("namespace", namespace), check_table_name("table", name))
        async with self._held(key):
            try:
                table = await self._open_locked(key)
            except UnknownTable:
                table = await self._create_locked(key, definition)
            check_same(table.state, definition, key)
            return table

    async def register(self, table: TableBuffer) -> None:
        """Put this daemon's epoch into the table's manifest, if it is not there yet."""
        async with self._held(table.key):
            await self._register_locked(table)

    async def close_writer(self, table: TableBuffer) -> None:
        """Say in the manifest that this incarnation writes no more: a clean stop."""
        async with self._held(table.key):
            if table.registered:
                await self._commit_locked(table, (self._writer_action("closed"),))
                table.registered = False

    # Persisted buffers

    def join_commit(self, table: TableBuffer, persisted: PersistedBuffer) -> None:
        """Take a place in the order of the table's commits. Follow with :meth:`commit_joined`."""
        self._gate(table.key).waiting.append(persisted)

    async def commit_joined(self, table: TableBuffer, persisted: PersistedBuffer) -> None:
        """Commit a buffer's files and release it; returns when both have happened.

        Retries while the store is away. Buffers of one table are committed in the order in which
        they joined, those that wait together in one version.

        Raises:
            Fenced: another process has taken over this identity.
            RewriteVoid: files that this one replaces were replaced by somebody else.
        """
        gate = self._gate(table.key)
        async with gate.lock:
            if persisted.committed:
                return  # an earlier caller has taken it along
            group = gate.waiting
            actions = [action for member in group for action in member.actions]
            taken = len(group)
            state = await self._commit_with_retries(table, tuple(actions))
            await self._install(table, state, [(m.handle, m.files) for m in group[:taken]])
            for member in group[:taken]:
                member.committed = True
            gate.waiting = group[taken:]

    async def commit_alone(self, table: TableBuffer, persisted: PersistedBuffer) -> None:
        """Commit a keyed buffer's files in a version of their own; see :meth:`commit_joined`."""
        async with self._gate(table.key).lock:
            state = await self._commit_with_retries(table, persisted.actions)
            await self._install(table, state, [(persisted.handle, persisted.files)])

    async def _install(
        self,
        table: TableBuffer,
        state: TableState,
        persisted: Sequence[tuple[BufferHandle, PersistedFiles]],
    ) -> None:
        while blocked := self._tree.install(table, state, persisted):
            for handle in blocked:
                await self._spill_or_wait(handle)
        table.refreshed_at = trio.current_time()

    async def _spill_or_wait(self, handle: BufferHandle) -> None:
        """Without room on the disk the rows stay in memory until their readers end or are ended."""
        try:
            await trio.to_thread.run_sync(self._spill, handle)
        except OSError as exc:
            log.warning("spill failed", error=str(exc), runbook="spill-failed")
            await trio.sleep(SPILL_RETRY_S)

    async def _commit_with_retries(
        self, table: TableBuffer, actions: tuple[Action, ...]
    ) -> TableState:
        backoff = Backoff(0.1, 10.0, Random())
        proposal = Proposal(actions)
        while True:
            try:
                return await self._commit_once(table.key, table.state, proposal)
            except (StoreError, CommitUnclear) as exc:
                wait_s = backoff.next_s()
                log.warning(
                    "commit failed, trying again",
                    table=table.key,
                    error=str(exc),
                    wait_s=round(wait_s, 3),
                    runbook="store-away",
                )
                await trio.sleep(wait_s)

    # Under the table's lock

    async def _open_locked(self, key: TableKey) -> TableBuffer:
        table = self._tree.tables.get(key)
        if table is not None:
            return table
        try:
            state = await self._in_thread(self.manifest(key).load)
        except TableNotFound as exc:
            raise UnknownTable(f"table {key[0]}/{key[1]} does not exist") from exc
        return self._keep(key, state)

    async def _create_locked(self, key: TableKey, definition: TableDefinition) -> TableBuffer:
        proposal = Proposal((*definition.actions(), self._writer_action("open")))
        try:
            state = await self._commit_or_refuse(key, None, proposal)
        except ProposalConflict as exc:
            return self._keep(key, exc.state)
        table = self._keep(key, state)
        table.registered = True
        log.info("table created", namespace=key[0], table=key[1], version=state.version)
        return table

    async def _register_locked(self, table: TableBuffer) -> None:
        if not table.registered:
            await self._commit_locked(table, (self._writer_action("open"),))
            table.registered = True

    async def _widen_locked(self, table: TableBuffer, missing: list[pa.Field]) -> None:
        wider = table.definition.with_schema(pa.schema([*table.definition.schema, *missing]))
        try:
            await self._commit_locked(table, (wider.schema_action(),))
        except ProposalConflict as exc:
            table.install(exc.state)  # somebody else added columns: look again
            return
        log.info("columns added", table=table.key, columns=[field.name for field in missing])

    async def _commit_locked(self, table: TableBuffer, actions: tuple[Action, ...]) -> None:
        state = await self._commit_or_refuse(table.key, table.state, Proposal(actions))
        table.install(state)
        table.refreshed_at = trio.current_time()

    async def _commit_or_refuse(
        self, key: TableKey, base: TableState | None, proposal: Proposal
    ) -> TableState:
        """Commit for a caller who waits: a store that is away is the caller's to retry."""
        try:
            return await self._commit_once(key, base, proposal)
        except (StoreUnavailable, CommitUnclear) as exc:
            raise StoreAway(
                f"table {key[0]}/{key[1]}: the object store cannot be reached: {exc}",
                retry_after_s=_STORE_RETRY_S,
            ) from exc

    async def _commit_once(
        self, key: TableKey, base: TableState | None, proposal: Proposal
    ) -> TableState:
        call = partial(commit, self.manifest(key), base, proposal, self._writer)
        try:
            return await trio.to_thread.run_sync(call, limiter=self._limiter)
        except Fenced as exc:
            self.on_fenced(exc)
            raise

    async def _in_thread(self, call: Callable[[], T]) -> T:
        try:
            return await trio.to_thread.run_sync(call, limiter=self._limiter)
        except StoreUnavailable as exc:
            raise StoreAway(
                f"the object store cannot be reached: {exc}", retry_after_s=_STORE_RETRY_S
            ) from exc

    @asynccontextmanager
    async def _held(self, key: TableKey) -> AsyncIterator[None]:
        """The table's lock, for a caller who waits: not longer than a store that is away allows."""
        lock = self._gate(key).lock
        with trio.move_on_after(LOCK_PATIENCE_S) as patience:
            await lock.acquire()
        if patience.cancelled_caught:
            raise StoreAway(
                f"table {key[0]}/{key[1]}: a commit has been under way for {LOCK_PATIENCE_S:g} s;"
                " is the object store away or slow?",
                retry_after_s=_STORE_RETRY_S,
            )
        try:
            yield
        finally:
            lock.release()

    def _keep(self, key: TableKey, state: TableState) -> TableBuffer:
        table = TableBuffer(key[0], key[1], state)
        table.refreshed_at = trio.current_time()
        self._tree.tables[key] = table
        return table

    def _writer_action(self, state: str) -> Writer:
        return Writer(
            ingester_id=self._writer.ingester_id,
            incarnation=self._writer.incarnation,
            epoch=self._writer.epoch,
            state="open" if state == "open" else "closed",
        )

    def _gate(self, key: TableKey) -> _Gate:
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = _Gate()
        return gate
