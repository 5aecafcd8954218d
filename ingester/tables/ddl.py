"""A table's steps in its manifest: load, create, register, own, widen, close.

:class:`TableRules` decides whether a table may be created or widened. An existing table can be
opened whatever the limits say; only new tables and columns are refused, before anything is
committed.

Callers hold the table's gate (:meth:`Commits.held`), so nothing of this daemon comes between
reading the table and the commit that follows. If another writer committed meanwhile, its version
is installed and the step is repeated. A keyed table is written only by the daemon that its
manifest names as owner; the claim ends with a clean stop, or when the log it left is adopted
(tests/tables). Event loop only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import pyarrow as pa
import structlog

from ingester.buffer import BufferTree, TableBuffer
from ingester.config.settings import LimitsSettings
from ingester.errors import BadRequest, OwnedElsewhere, Stopping, UnknownTable, limit_facts
from ingester.schema.limits import ShapeLimits, check_columns
from ingester.tables.commits import Commits
from ingester.tables.encodable import check_encodable
from persist.manifest import (
    Action,
    Owner,
    ProposalConflict,
    TableNotFound,
    TableState,
    VersionSealed,
    WriterAction,
    WriterIdentity,
    live_owner,
    tables_of,
)
from persist.table import TableDefinition, TableKey, UsedTransformer

DEFAULTS = LimitsSettings()


@dataclass(frozen=True, slots=True)
class TableRules:
    """The rules for one daemon's tables."""

    auto_create: bool = True
    """Whether a first write creates its table."""
    limits: LimitsSettings = DEFAULTS
    endpoint: Callable[[], str] = lambda: ""
    """Returns this daemon's client endpoint, once known."""

    @property
    def shapes(self) -> ShapeLimits:
        return shapes_of(self.limits)

    def check_new(self, key: TableKey, columns: int, there: Collection[TableKey]) -> None:
        """Raise :class:`BadRequest` if a table cannot be created beside those in ``there``.

        Args:
            there: the daemon's open tables.
        """
        if key in there:
            return
        check_columns(key, 0, columns, self.shapes)
        _check_count("tables", key, len(there), self.limits.tables)
        most = self.limits.namespaces
        if len(there) >= most:  # fewer tables cannot have that many namespaces
            namespaces = {namespace for namespace, _ in there}
            if key[0] not in namespaces:
                _check_count("namespaces", key, len(namespaces), most)


def shapes_of(limits: LimitsSettings) -> ShapeLimits:
    """Return the limits on schemas."""
    return ShapeLimits(
        columns=limits.columns,
        dictionaries=limits.dictionaries,
        nesting=limits.nesting,
        name_bytes=limits.name_bytes,
        metadata_bytes=limits.metadata_bytes,
    )


def _check_count(limit: str, key: TableKey, found: int, most: int) -> None:
    if found >= most:
        raise BadRequest(
            f"table {key[0]}/{key[1]} cannot be created: the daemon has {found} {limit} open;"
            f" limits.{limit} is {most}",
            details=limit_facts(f"limits.{limit}", most, found),
        )


OWNER_RETRY_S = 5.0


class TableOwners:
    """Decides which daemon owns a keyed table.

    Args:
        endpoint: returns this daemon's client endpoint, once known.
    """

    def __init__(self, writer: WriterIdentity, endpoint: Callable[[], str]) -> None:
        self._writer = writer
        self._endpoint = endpoint

    def owns(self, table: TableBuffer) -> bool:
        """Return whether the table needs no claim or has this daemon's."""
        if not table.definition.keyed:
            return True
        owner = table.state.owner
        return owner is not None and (owner.ingester_id, owner.epoch) == (
            self._writer.ingester_id,
            self._writer.epoch,
        )

    def claim(self, table: TableBuffer) -> Owner:
        """Return a claim on the table, on top of its newest version.

        Raises:
            OwnedElsewhere
        """
        owner = live_owner(table.state)
        if owner is not None and owner.ingester_id != self._writer.ingester_id:
            at = f" at {owner.endpoint}" if owner.endpoint else ""
            raise OwnedElsewhere(
                f"daemon {owner.ingester_id!r}{at} takes the writes of table"
                f" {table.namespace}/{table.name}, which has a primary key",
                retry_after_s=OWNER_RETRY_S,
                details={"owner": owner.ingester_id, "endpoint": owner.endpoint or None},
            )
        return self.first_claim()

    def first_claim(self) -> Owner:
        """Return the claim on a table without an owner."""
        return Owner(self._writer.ingester_id, self._writer.epoch, self._endpoint())


STORED_HOLD_S = 30.0
"""How long a listing of a namespace's tables in the store is reused, in seconds."""


class TableQuota:
    """Limits how many tables a namespace may create.

    Tables in the store count as well as open ones, so a restart frees nothing. The store is
    listed only if a quota is set. Tables being created count, so concurrent creators cannot
    exceed it.
    """

    def __init__(self, commits: Commits, tree: BufferTree) -> None:
        self._commits = commits
        self._tree = tree
        self._stored: dict[str, tuple[float, frozenset[str]]] = {}
        self._making: Counter[str] = Counter()

    def check_open(self, key: TableKey) -> None:
        """Raise OverQuota if the namespace's open tables have reached its quota."""
        if key not in self._tree.tables:
            use = self._tree.namespaces.of(key[0])
            self._tree.namespaces.check_tables(use, use.tables)

    @asynccontextmanager
    async def making(self, key: TableKey) -> AsyncIterator[None]:
        """Count a table as being created inside the block.

        Raises:
            OverQuota: the namespace has reached its quota.
            StoreUnreachable: a quota is set and the store cannot be listed.
        """
        namespace, use = key[0], self._tree.namespaces.of(key[0])
        if use.quota.tables:
            self.check_open(key)
            stored = await self._names_stored(namespace, use.quota.tables)
            # Atomic: no await until the table is counted.
            here = {name for space, name in self._tree.tables if space == namespace}
            number = len((here | stored) - {key[1]}) + self._making[namespace]
            self._tree.namespaces.check_tables(use, number)
        self._making[namespace] += 1
        try:
            yield
        finally:
            self._making[namespace] -= 1
            if not self._making[namespace]:
                del self._making[namespace]

    async def _names_stored(self, namespace: str, most: int) -> frozenset[str]:
        at, names = self._stored.get(namespace, (-STORED_HOLD_S, frozenset[str]()))
        now = time.monotonic()
        if now - at < STORED_HOLD_S:
            return names
        self._stored = {
            n: each for n, each in self._stored.items() if now - each[0] < STORED_HOLD_S
        }
        listing = tables_of(self._commits.store, namespace)
        names = await self._commits.read(lambda: frozenset(islice(listing, most)), namespace)
        self._stored[namespace] = (now, names)
        return names


log = structlog.get_logger(__name__)


class TableSteps:
    """Performs the steps of one table at a time. Callers hold the table's gate."""

    def __init__(
        self,
        commits: Commits,
        tree: BufferTree,
        writer: WriterIdentity,
        rules: TableRules,
    ) -> None:
        self._commits = commits
        self._tree = tree
        self._writer = writer
        self._owners = TableOwners(writer, rules.endpoint)
        self._rules = rules
        self.quota = TableQuota(commits, tree)
        self.closed = False
        """Whether tables may no longer be created or registered."""

    def may_write(self, table: TableBuffer) -> bool:
        """Return whether :meth:`own` would do nothing. Needs no gate."""
        return table.registered and self._owners.owns(table)

    async def open(self, key: TableKey) -> TableBuffer:
        """Return the table, loading it if necessary.

        Raises:
            UnknownTable, StoreUnreachable
        """
        table = self._tree.tables.get(key)
        if table is not None:
            return table
        try:
            state = await self._commits.load(key)
        except TableNotFound as exc:
            raise UnknownTable(f"table {key[0]}/{key[1]} does not exist") from exc
        return self._keep(key, state)

    async def create(self, key: TableKey, definition: TableDefinition) -> TableBuffer:
        """Create the table, or return it as another writer has just created it.

        Raises:
            BadRequest: a limit forbids it, or a type cannot be encoded.
            OverQuota: the namespace has reached its quota of tables.
            Stopping, StoreUnreachable
        """
        self._check_open()
        self._rules.check_new(key, len(definition.schema), self._tree.tables.keys())
        await check_encodable(definition.schema)
        actions = (*definition.actions(), self._writer_action("open"))
        try:
            async with self.quota.making(key):
                state = await self._commits.commit_held(key, None, actions)
        except ProposalConflict as exc:
            return self._keep(key, exc.state)
        except VersionSealed:
            return self._keep(key, await self._commits.load(key))
        table = self._keep(key, state)
        table.registered = True
        log.info("table created", namespace=key[0], table=key[1], version=state.version)
        self._commits.on_change("table created", key)
        return table

    def first_actions(self, key: TableKey, columns: int) -> tuple[Action, ...]:
        """Return the first commit's additional actions for a keyed table of this daemon.

        Raises:
            BadRequest: a limit forbids it.
            Stopping
        """
        self._check_open()
        self._rules.check_new(key, columns, self._tree.tables.keys())
        return (self._writer_action("open"), self._owners.first_claim())

    def keep_new(self, key: TableKey, state: TableState) -> TableBuffer:
        """Return the open table that this daemon has created and owns."""
        table = self._tree.tables.get(key) or self._keep(key, state)
        table.registered = True
        log.info("table created", namespace=key[0], table=key[1], version=state.version)
        self._commits.on_change("table created", key)
        return table

    async def register(self, table: TableBuffer) -> None:
        """Record this daemon's epoch in the manifest."""
        self._check_open()
        if not table.registered:
            await self._commit(table, (self._writer_action("open"),))
            table.registered = True

    async def own(self, table: TableBuffer) -> None:
        """Make this daemon the table's owner, whatever was known before.

        Raises:
            OwnedElsewhere
        """
        await self.register(table)
        while not self._owners.owns(table):
            await self._commits.follow_switch(table)
            try:
                await self._commit(table, (self._owners.claim(table),))
            except ProposalConflict as exc:
                self._commits.show(table, exc.state)

    async def widen(self, table: TableBuffer, missing: list[pa.Field]) -> None:
        """Add columns; does nothing if another writer changed the table meanwhile.

        Raises:
            BadRequest: the table would exceed its column limit, or a type cannot be encoded.
        """
        had = len(table.definition.schema)
        check_columns(table.key, had, had + len(missing), self._rules.shapes)
        await check_encodable(missing)
        wider = table.definition.with_schema(pa.schema([*table.definition.schema, *missing]))
        try:
            # The spec is included, because its partition columns have names, too.
            spec = table.state.current_spec
            assert spec is not None
            await self._commit(table, (wider.schema_action(), spec))
        except ProposalConflict as exc:
            self._commits.show(table, exc.state)  # another writer added columns: look again
            return
        log.info("columns added", table=table.key, columns=[field.name for field in missing])

    async def record_transformers(
        self, table: TableBuffer, used: tuple[tuple[str, str], ...]
    ) -> None:
        """Record these transformers, (class, version) each, in the manifest."""
        before = table.definition.transformers
        while (now := table.definition.with_transformers(used)) is not table.definition:
            try:
                await self._commit(table, (now.properties_action(),))
            except ProposalConflict as exc:
                self._commits.show(table, exc.state)
        table.transformed_by = used
        _tell_of_changes(table, before)

    async def close_writer(self, table: TableBuffer) -> None:
        """Record that this incarnation stops writing, if it is registered."""
        if table.registered:
            await self._commit(table, (self._writer_action("closed"),))
            table.registered = False

    def _check_open(self) -> None:
        if self.closed:
            raise Stopping("the daemon is stopping", retry_after_s=1.0)

    async def _commit(self, table: TableBuffer, actions: tuple[Action, ...]) -> None:
        while True:
            try:
                state = await self._commits.commit_held(table.key, table.state, actions)
            except VersionSealed:
                await self._commits.follow_switch(table)
            else:
                self._commits.show(table, state)
                return

    def _keep(self, key: TableKey, state: TableState) -> TableBuffer:
        use = self._tree.namespaces.of(key[0])
        use.tables += key not in self._tree.tables
        table = TableBuffer(key[0], key[1], state, use)
        table.refreshed_at = time.monotonic()
        self._tree.tables[key] = table
        self._commits.tell_followers(table)
        return table

    def _writer_action(self, state: Literal["open", "closed"]) -> WriterAction:
        return WriterAction(
            ingester_id=self._writer.ingester_id,
            incarnation=self._writer.incarnation,
            epoch=self._writer.epoch,
            state=state,
        )


def _tell_of_changes(table: TableBuffer, before: Sequence[UsedTransformer]) -> None:
    """Log transformers that differ from the previous ones, or from their version."""
    now = table.definition.transformers
    had = {each.name: each.version for each in before}
    for each in now:
        if had.get(each.name, each.version) != each.version:
            log.warning(
                "transformer changed",
                table=table.key,
                transformer=each.name,
                version=each.version,
                previous=had[each.name],
                runbook="transformer-changed",
            )
    names = [each.name for each in now]
    if not had and names:
        log.info("table transformed", table=table.key, transformers=names)
    elif list(had) != names:
        log.warning(
            "transformers replaced",
            table=table.key,
            transformers=names,
            previous=list(had),
            runbook="transformer-changed",
        )
