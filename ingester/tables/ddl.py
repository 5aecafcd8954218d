"""A table's steps in its manifest: loaded, created, registered, owned, widened, closed.

Law of this file: whoever calls here holds the table's gate (:meth:`Commits.held`), so that nothing
of this daemon comes between a look at the table and the commit that follows from it. What another
writer has committed meanwhile is shown, and looked at again. Loop only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Literal

import pyarrow as pa
import structlog

from ingester.buffer import BufferTree, TableBuffer
from ingester.errors import OwnedElsewhere, Stopping, UnknownTable
from ingester.schema.limits import check_columns
from ingester.tables.commits import Commits
from ingester.tables.rules import TableRules
from persist.manifest import (
    Action,
    Owner,
    ProposalConflict,
    TableNotFound,
    TableState,
    VersionSealed,
    Writer,
    WriterIdentity,
    live_owner,
    tables_of,
)
from persist.table import TableDefinition, TableKey, UsedTransformer

OWNER_RETRY_S = 5.0


class TableOwners:
    """Decides whose a keyed table is.

    Args:
        endpoint: where clients find this daemon, once that is known.
    """

    def __init__(self, writer: WriterIdentity, endpoint: Callable[[], str]) -> None:
        self._writer = writer
        self._endpoint = endpoint

    def owns(self, table: TableBuffer) -> bool:
        """Say whether the table needs no claim, or has this daemon's."""
        if not table.definition.keyed:
            return True
        owner = table.state.owner
        return owner is not None and (owner.ingester_id, owner.epoch) == (
            self._writer.ingester_id,
            self._writer.epoch,
        )

    def claim(self, table: TableBuffer) -> Owner:
        """Return the claim of the table, on top of its newest version.

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
        """The claim of a table that nobody has claimed."""
        return Owner(self._writer.ingester_id, self._writer.epoch, self._endpoint())


STORED_HOLD_S = 30.0
"""The time for which the store's tables of a namespace are not listed again."""


class TableQuota:
    """Sees that a namespace makes no more tables than it may have."""

    def __init__(self, commits: Commits, tree: BufferTree) -> None:
        self._commits = commits
        self._tree = tree
        self._stored: dict[str, tuple[float, frozenset[str]]] = {}
        self._making: Counter[str] = Counter()

    def check_open(self, key: TableKey) -> None:
        """Raise OverQuota where the tables that are open here are as many as there may be."""
        if key not in self._tree.tables:
            use = self._tree.namespaces.of(key[0])
            self._tree.namespaces.check_tables(use, use.tables)

    @asynccontextmanager
    async def making(self, key: TableKey) -> AsyncIterator[None]:
        """Count a table as on its way inside the block.

        Raises:
            OverQuota: the namespace has as many as it may have.
            StoreAway: a quota is set, and the store cannot be listed.
        """
        namespace, use = key[0], self._tree.namespaces.of(key[0])
        if use.quota.tables:
            self.check_open(key)
            stored = await self._names_stored(namespace, use.quota.tables)
            # Atomic from here to the count: no await.
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
    """Takes one table at a time from step to step, for whoever holds its gate."""

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
        """Whether nothing is made or registered any more."""

    def may_write(self, table: TableBuffer) -> bool:
        """Say whether :meth:`own` has nothing to do. Without the gate, too."""
        return table.registered and self._owners.owns(table)

    async def open(self, key: TableKey) -> TableBuffer:
        """Return the table, loaded when it is not known yet.

        Raises:
            UnknownTable, StoreAway
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
        """Return the table: new, or as somebody else has just made it.

        Raises:
            InvalidRequest: a limit says that it may not be made.
            OverQuota: the namespace has as many tables as it may have.
            Stopping, StoreAway
        """
        self._check_open()
        self._rules.check_new(key, len(definition.schema), self._tree.tables.keys())
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
        """What the first commit of a keyed table of this daemon's says beside its definition.

        Raises:
            InvalidRequest: a limit says that it may not be made.
            Stopping
        """
        self._check_open()
        self._rules.check_new(key, columns, self._tree.tables.keys())
        return (self._writer_action("open"), self._owners.first_claim())

    def keep_new(self, key: TableKey, state: TableState) -> TableBuffer:
        """The table that this daemon has made, and takes the writes of."""
        table = self._tree.tables.get(key) or self._keep(key, state)
        table.registered = True
        log.info("table created", namespace=key[0], table=key[1], version=state.version)
        self._commits.on_change("table created", key)
        return table

    async def register(self, table: TableBuffer) -> None:
        """See that this daemon's epoch is in the manifest."""
        self._check_open()
        if not table.registered:
            await self._commit(table, (self._writer_action("open"),))
            table.registered = True

    async def own(self, table: TableBuffer) -> None:
        """See that this daemon's writes are the table's next ones, whatever was known before.

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
        """Add these columns; nothing, where somebody else has changed the table meanwhile.

        Raises:
            InvalidRequest: the table would have more columns than it may.
        """
        had = len(table.definition.schema)
        check_columns(table.key, had, had + len(missing), self._rules.shapes)
        wider = table.definition.with_schema(pa.schema([*table.definition.schema, *missing]))
        try:
            # With the spec, whose partition columns have names, too: nobody may have changed it.
            spec = table.state.current_spec
            assert spec is not None
            await self._commit(table, (wider.schema_action(), spec))
        except ProposalConflict as exc:
            self._commits.show(table, exc.state)  # somebody else added columns: look again
            return
        log.info("columns added", table=table.key, columns=[field.name for field in missing])

    async def record_transformers(
        self, table: TableBuffer, used: tuple[tuple[str, str], ...]
    ) -> None:
        """Have the manifest say that these transformers, each (class, version), are in force."""
        before = table.definition.transformers
        while (now := table.definition.with_transformers(used)) is not table.definition:
            try:
                await self._commit(table, (now.properties_action(),))
            except ProposalConflict as exc:
                self._commits.show(table, exc.state)
        table.transformed_by = used
        _tell_of_changes(table, before)

    async def close_writer(self, table: TableBuffer) -> None:
        """Say that this incarnation writes no more, if it is registered."""
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

    def _writer_action(self, state: Literal["open", "closed"]) -> Writer:
        return Writer(
            ingester_id=self._writer.ingester_id,
            incarnation=self._writer.incarnation,
            epoch=self._writer.epoch,
            state=state,
        )


def _tell_of_changes(table: TableBuffer, before: Sequence[UsedTransformer]) -> None:
    """Log which transformers are others than before, or the same in another version."""
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
