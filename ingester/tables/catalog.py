"""The daemon's tables: opening, creating and widening them.

Everything that an acknowledgement depends on (the table, its columns, this daemon's epoch) is in
the manifest before the operation is logged (tests/tables). Work on wide schemas runs in a
thread: it takes microseconds per column, and opening a stream with 2,000 columns would block the
event loop for 60 ms.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa
import structlog
import trio

from ingester.buffer import BufferTree, TableBuffer
from ingester.errors import StoreUnreachable, UnknownTable
from ingester.schema.definition import automatic_definition, check_same, keyed_definition, widened
from ingester.schema.limits import check_columns, check_table_name
from ingester.schema.normalise import missing_columns
from ingester.tables.commit_batches import held_back
from ingester.tables.commits import Commits
from ingester.tables.ddl import TableRules, TableSteps
from ingester.tables.new_version import NewVersions
from persist.manifest import Manifest, ManifestError, WriterIdentity, list_tables
from persist.store import StoreError
from persist.table import TableDefinition, TableKey

T = TypeVar("T")

WIDE = 200
"""Schemas with more columns are processed in a thread; smaller ones take less than 2 ms."""


class WideSchemas:
    """Runs work on schemas; wide ones in a thread, one at a time. Event loop only."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(1)

    async def work(self, schema: pa.Schema, call: Callable[[], T]) -> T:
        """Return or raise the call's outcome. Without a checkpoint if the schema is narrow."""
        if not is_wide(schema):
            return call()
        return await trio.to_thread.run_sync(call, limiter=self._limiter)

    async def of_table(
        self,
        table: TableBuffer,
        schema: pa.Schema,
        call: Callable[[TableDefinition], T],
    ) -> T:
        """Return the call's result for the table's current definition; repeated if the columns
        changed.
        """
        while True:
            definition = table.definition
            found = await self.work(schema, partial(call, definition))
            if table.definition.schema_id == definition.schema_id:
                return found

    async def missing(self, table: TableBuffer, sent: pa.Schema) -> list[pa.Field]:
        """Return the batch's columns that the table lacks."""
        return await self.of_table(table, sent, partial(_missing, sent))


def is_wide(schema: pa.Schema) -> bool:
    """Return whether a schema is too wide to process on the event loop."""
    return len(schema) > WIDE


def _missing(sent: pa.Schema, definition: TableDefinition) -> list[pa.Field]:
    return missing_columns(definition, sent)


log = structlog.get_logger(__name__)

ASKED_FOR_S = 60.0
"""A table without queries for this long is not refreshed again after a failure, in seconds."""

ANY_TABLES = TableRules()
"""Default rules."""


class Catalog:
    """Opens, creates and widens tables. Event loop only; store calls run in threads."""

    def __init__(
        self,
        commits: Commits,
        tree: BufferTree,
        writer: WriterIdentity,
        rules: TableRules = ANY_TABLES,
    ) -> None:
        self.store = commits.store
        self.commits = commits
        self._steps = TableSteps(commits, tree, writer, rules)
        self.new_versions = NewVersions(commits, self._steps, writer)
        self.wide = WideSchemas()
        self._tree = tree
        self._rules = rules
        self._unseen: dict[TableKey, tuple[float, float]] = {}
        """Tables whose newest version could not be loaded: since when, and the last attempt."""

    @property
    def rules(self) -> TableRules:
        return self._rules

    # Reading

    async def open(self, namespace: str, name: str) -> TableBuffer:
        """Return a table, loading it from its manifest if necessary.

        Raises:
            UnknownTable: the table does not exist.
            StoreUnreachable: the table is not loaded and the store cannot be reached.
        """
        table = self.known(namespace, name)
        if table is not None:
            return table
        key = (namespace, name)
        async with self.commits.held(key):
            return await self._steps.open(key)

    def known(self, namespace: str, name: str) -> TableBuffer | None:
        """Return a table if it is in memory; BadRequest for an invalid name. Thread-safe."""
        key = (check_table_name("namespace", namespace), check_table_name("table", name))
        return self._tree.tables.get(key)

    def opened(self) -> list[TableBuffer]:
        """Return the tables in memory."""
        return list(self._tree.tables.values())

    async def names(self) -> list[TableKey]:
        """Return the sorted keys of all tables, in the store or in memory."""
        stored = await self.commits.read(lambda: list(list_tables(self.store)))
        return sorted({*stored, *self._tree.tables})

    async def chosen(self, namespace: str | None, name: str | None) -> list[TableBuffer]:
        """Return one table, all tables of a namespace, or all open tables, sorted.

        Raises:
            UnknownTable: the table does not exist, or the namespace has no table.
        """
        if namespace is not None and name is not None:
            return [await self.open(namespace, name)]
        if namespace is not None:
            check_table_name("namespace", namespace)
        tables = [t for t in self._tree.tables.values() if namespace in (None, t.namespace)]
        if namespace is not None and not tables:
            tables = [await self.open(*key) for key in await self.names() if key[0] == namespace]
            if not tables:
                raise UnknownTable(f"namespace {namespace} does not exist")
        return sorted(tables, key=lambda t: t.key)

    def manifest(self, key: TableKey) -> Manifest:
        """Return a table's manifest, for use in a thread."""
        return self.commits.manifest(key)

    def is_fresh(self, table: TableBuffer, older_than_s: float) -> bool:
        """Return whether :meth:`refresh` would do nothing. Thread-safe."""
        if time.monotonic() - table.refreshed_at <= older_than_s:
            return True
        # A commit under way installs the newest version anyway.
        return older_than_s >= 0 and self.commits.under_way(table.key)

    async def refresh(self, table: TableBuffer, older_than_s: float) -> None:
        """Load commits of other writers if the last look is older than this many seconds.

        If the store is unreachable, the table stays as it is and its own rows are still
        answered; a store known to be unreachable is not called, because each answer could hang
        for half a minute. With a negative age the newest version is required.

        Raises:
            StoreUnreachable: with a negative age only.
        """
        if self.is_fresh(table, older_than_s):
            return
        async with self.commits.held(table.key):
            if time.monotonic() - table.refreshed_at <= older_than_s:
                return
            started = time.monotonic()
            if older_than_s >= 0 and not self.commits.reads():
                self._not_seen(table, started)
                return
            try:
                state = await self.commits.newest(table)
            except (StoreError, StoreUnreachable) as exc:
                log.warning(
                    "manifest refresh failed",
                    table=table.key,
                    error=str(exc),
                    runbook="refresh-failed",
                )
                self._not_seen(table, started)
                if older_than_s < 0:
                    raise StoreUnreachable(
                        f"the manifest cannot be read: {exc}", retry_after_s=2.0
                    ) from exc
            else:
                self._unseen.pop(table.key, None)
                if not self.commits.overlap.freeze_behind(table, state):
                    self.commits.install(table, state)
                elif older_than_s < 0:
                    raise held_back(table)
            table.refreshed_at = started

    def _not_seen(self, table: TableBuffer, tried_at: float) -> None:
        self._unseen[table.key] = (self._unseen.get(table.key, (tried_at,))[0], tried_at)
        table.refreshed_at = tried_at

    @property
    def refresh_lag_s(self) -> float:
        """Return for how many seconds a recently queried table could not be refreshed; 0 if all
        could.
        """
        now = time.monotonic()
        since = [since for since, tried in self._unseen.values() if now - tried < ASKED_FOR_S]
        return now - min(since, default=now)

    async def look(self, table: TableBuffer, older_than_s: float) -> None:
        """Refresh in the background; failures are only logged."""
        try:
            await self.refresh(table, older_than_s)
        except (ManifestError, StoreError, StoreUnreachable, OSError) as exc:
            log.warning(
                "manifest refresh failed",
                table=table.key,
                error=str(exc),
                runbook="refresh-failed",
            )

    # What a write depends on

    async def find(self, namespace: str, name: str) -> TableBuffer | None:
        """Return the table; None if it does not exist and a write may create it.

        Raises:
            BadRequest: an invalid name.
            UnknownTable: the table does not exist and ``auto_create`` is off.
            StoreUnreachable: the table is not loaded and the store cannot be reached.
        """
        return await self._unless_to_be_made(self.open(namespace, name))

    def check_draft(self, key: TableKey, table: TableBuffer | None, draft: TableDefinition) -> None:
        """Raise :class:`BadRequest` if a limit forbids these columns.

        Creating or widening the table checks again.
        """
        if table is None:
            self._rules.check_new(key, len(draft.schema), self._tree.tables.keys())
            self._steps.quota.check_open(key)
        else:
            had = len(table.definition.schema)
            check_columns(key, had, len(draft.schema), self._rules.shapes)

    async def draft_keyed(
        self, namespace: str, name: str, sent: pa.Schema, primary_key: Sequence[str]
    ) -> TableDefinition:
        """Return the definition that results from changes with this schema and key, existing table
        or not.

        Raises:
            BadRequest, UnknownTable, StoreUnreachable: as :meth:`prepare_write`.
        """
        table = await self._unless_to_be_made(self.open(namespace, name))
        if table is None:
            draft = keyed_definition(sent, primary_key)
        else:
            draft = widened(table.definition, sent)
        self.check_draft((namespace, name), table, draft)
        return draft

    async def prepare_write(
        self,
        namespace: str,
        name: str,
        sent: pa.Schema,
        drafted: TableDefinition | None = None,
    ) -> TableBuffer:
        """Return the table, with every column of ``sent`` and this daemon's epoch in its manifest.

        Args:
            drafted: the definition that keyed changes were made for. If the table does not
                exist, it is created with that key.

        Raises:
            BadRequest: names, types or columns that the table cannot have.
            UnknownTable: the table does not exist and ``auto_create`` is off.
            OwnedElsewhere: another daemon owns the writes of this keyed table.
            StoreUnreachable: a commit is needed and the store cannot be reached.
            ReplacedByCopy: ``drafted`` precedes a copy that replaced the table.
        """
        key = (check_table_name("namespace", namespace), check_table_name("table", name))
        table = self._tree.tables.get(key)
        if table is not None and drafted is not None:
            table.check_shape(drafted)
        if table is not None and self._steps.may_write(table):
            missing = await self.wide.missing(table, sent)
            if drafted is not None:
                table.check_shape(drafted)  # a copy may have replaced it meanwhile
            if not missing and self._steps.may_write(table):
                return table
        async with self.commits.held(key):
            table = await self._unless_to_be_made(self._steps.open(key))
            if table is None:
                make = (
                    partial(automatic_definition, sent)
                    if drafted is None
                    else partial(keyed_definition, sent, drafted.primary_key)
                )
                table = await self._steps.create(key, await self.wide.work(sent, make))
            await self._steps.own(table)
            if drafted is not None:
                table.check_shape(drafted)  # a copy may have replaced it before the gate was free
            while missing := await self.wide.missing(table, sent):
                await self._steps.widen(table, missing)
            return table

    async def _unless_to_be_made(self, opening: Awaitable[TableBuffer]) -> TableBuffer | None:
        """Return the table; None if it does not exist and a write may create it."""
        try:
            return await opening
        except UnknownTable:
            if not self._rules.auto_create:
                raise
            return None

    async def prepare_delete(self, namespace: str, name: str) -> TableBuffer:
        """Return the table, with this daemon's epoch in its manifest.

        Raises:
            BadRequest, UnknownTable, StoreUnreachable: as :meth:`prepare_write`.
        """
        table = await self.open(namespace, name)
        if not self._steps.may_write(table):
            async with self.commits.held(table.key):
                await self._steps.own(table)
        return table

    async def create(self, namespace: str, name: str, definition: TableDefinition) -> TableBuffer:
        """Create a table; repeating the same definition succeeds.

        Raises:
            BadRequest: the table exists with another definition.
        """
        key = (check_table_name("namespace", namespace), check_table_name("table", name))
        async with self.commits.held(key):
            try:
                table = await self._steps.open(key)
            except UnknownTable:
                table = await self._steps.create(key, definition)
            check_same(table.state, definition, key)
            return table

    async def record_transformers(
        self, table: TableBuffer, used: tuple[tuple[str, str], ...]
    ) -> None:
        """Record in the manifest which transformers are in force, with their versions.

        Once per table and daemon, so that two daemons with different versions do not alternate.

        Raises:
            StoreUnreachable
        """
        if table.transformed_by == used:
            return
        async with self.commits.held(table.key):
            await self._steps.record_transformers(table, used)

    async def register(self, table: TableBuffer) -> None:
        """Record this daemon's epoch in the table's manifest if necessary."""
        async with self.commits.held(table.key):
            await self._steps.register(table)

    async def close_writer(self, table: TableBuffer) -> None:
        """Record in the manifest that this incarnation stops writing (clean stop)."""
        async with self.commits.held(table.key):
            await self._steps.close_writer(table)

    def close(self) -> None:
        """Create and register no more tables: the daemon has stopped."""
        self._steps.closed = True

    def reopen(self) -> None:
        """Allow creating and registering again; each table is registered before its next write."""
        self._steps.closed = False
        for table in self._tree.tables.values():
            table.registered = False
