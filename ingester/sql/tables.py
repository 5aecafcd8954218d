"""The tables of one query: one snapshot of all of them.

    names ─▶ open and refresh ─▶ snapshots, in one step of the loop ─▶ `sources`
                                                                   └▶ `peers`, for each table

With ``sql.peers`` the newest version is read first, and a snapshot is repeated if rows of an origin
moved between daemons meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from ingester.buffer import TableBuffer
from ingester.errors import BadRequest, Refused, UnknownTable
from ingester.query.queries import Queries
from ingester.query.snapshot import Snapshot, Upto, snapshot_all, snapshot_version
from ingester.sql.peers import Peers, Tail
from ingester.sql.sources import SnapshotReader, Source, encoded
from ingester.sql.wire import Names, TableGiven
from ingester.tables.catalog import Catalog
from persist.manifest import live_owner
from persist.table import TableKey

T = TypeVar("T")
ATTEMPTS = 6
_SYSTEM_SCHEMAS = ("information_schema", "pg_catalog")
"""DuckDB's own; SQL cannot read namespaces of these names."""
_VERSIONED = re.compile(r"(?P<table>.+)@v(?P<version>[0-9]{1,18})", re.DOTALL)
MayRead = Callable[[str], bool]


class CallLoop(Protocol):
    """Runs a coroutine function on the event loop for a thread."""

    def __call__(self, coroutine: Callable[..., Awaitable[T]], *args: object) -> T: ...


@dataclass(frozen=True, slots=True)
class Here:
    """This daemon.

    Attributes:
        ingester_id: its name.
        upto: returns a table's position.
        call: runs a coroutine on the loop, after everything acknowledged is applied.
    """

    ingester_id: str
    upto: Upto
    call: CallLoop


@dataclass(frozen=True, slots=True)
class Named:
    """A table that a statement names.

    Attributes:
        key: the table.
        spelled: namespace and name as the statement has them.
        version: the manifest version; None for the newest rows.
    """

    key: TableKey
    spelled: tuple[str, str]
    version: int | None


class Taken(NamedTuple):
    """The snapshot of a table.

    Attributes:
        moved: the version since which rows of an origin may have moved between daemons.
        owner: the daemon that takes a keyed table's writes; None without one.
    """

    named: Named
    snapshot: Snapshot
    moved: int
    owner: str | None


@dataclass(slots=True)
class QueryTables:
    """The tables of a query. Must be closed.

    Attributes:
        given: the tables as the worker gets them.
        sources: by number.
        namespaces: the namespaces that the query reads.
        daemons: the daemons whose buffers were read; none if no table's newest rows were.
        missing: the addresses of unreachable peers.
    """

    given: list[TableGiven] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    namespaces: set[str] = field(default_factory=set)
    daemons: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)

    def close(self) -> None:
        """Release the snapshots. Thread-safe and idempotent."""
        for snapshot in self.snapshots:
            snapshot.close()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a query asks for.

    Attributes:
        names: the names in its statement.
        may_read: returns whether its caller may read a namespace.
        authorization: the caller's header, for peers.
        check_wanted: raises if nobody waits for the answer any more.
        described: whether only the tables' columns are asked for.
        allows_missing: whether unreachable peers may be left out.
    """

    names: Names
    may_read: MayRead
    authorization: str
    check_wanted: Callable[[], None]
    described: bool
    allows_missing: bool = False


class TableFinder:
    """Finds tables by the names in statements, and takes their snapshots."""

    def __init__(
        self, here: Here, catalog: Catalog, queries: Queries, reader: SnapshotReader, peers: Peers
    ) -> None:
        self._here = here
        self._catalog = catalog
        self._queries = queries
        self._reader = reader
        self._peers = peers

    def open(self, asked: Asked) -> QueryTables:
        """Return the tables that a statement names, as far as they exist and may be read.

        Raises:
            BadRequest: a version is not kept, or a name is ambiguous.
            Refused: the store or a peer cannot be reached.
        """
        everything: list[TableGiven] = []
        if asked.names.everything:
            everything = self._here.call(self._everything, asked.may_read)
        tables = self._described(asked) if asked.described else self._with_rows(asked)
        known = {folded(given.namespace, given.name) for given in tables.given}
        for given in everything:
            # Of tables whose names differ only in case, the catalogue shows one.
            if (name := folded(given.namespace, given.name)) not in known:
                known.add(name)
                tables.given.append(given)
        return tables

    def _described(self, asked: Asked) -> QueryTables:
        tables = QueryTables()
        for taken in self._here.call(self._snapshots, asked):
            taken.snapshot.close()
            schema = encoded(taken.snapshot.definition.schema)
            tables.given.append(_without_rows(taken.named.spelled, schema))
        return tables

    def _with_rows(self, asked: Asked) -> QueryTables:
        for _ in range(ATTEMPTS):
            found = self._here.call(self._snapshots, asked)
            tables = QueryTables(snapshots=[taken.snapshot for taken in found])
            try:
                if all(self._add(asked, taken, tables) for taken in found):
                    return tables
            except BaseException:
                tables.close()
                raise
            tables.close()
        raise Refused("origins kept moving between daemons: try again", retry_after_s=1.0)

    def _add(self, asked: Asked, taken: Taken, tables: QueryTables) -> bool:
        """Add a table; return False if its snapshots do not fit together."""
        named, snapshot = taken.named, taken.snapshot
        tables.namespaces.add(named.key[0])
        given = self._reader.given(named.spelled, named.key, snapshot, tables.sources)
        tables.given.append(given)
        if named.version is not None:
            return True
        tables.daemons.add(self._here.ingester_id)
        if not self._peers:
            return True
        tails = self._peers.tails(
            named.key,
            snapshot,
            asked.authorization,
            asked.check_wanted,
            tables.missing if asked.allows_missing else None,
        )
        if max([taken.moved, *(tail.taken_version for tail in tails)]) > snapshot.version:
            return False
        tables.daemons |= {tail.ingester_id for tail in tails}
        if snapshot.definition.keyed:
            self._use_owner(taken, tails, given, tables)
            return True
        for tail in tails:
            if tail.rows is not None:
                given.copies.append(len(tables.sources))
                tables.sources.append(tail.rows)
        return True

    def _use_owner(
        self, taken: Taken, tails: list[Tail], given: TableGiven, tables: QueryTables
    ) -> None:
        """Read a keyed table's changes at its owner, which alone has rows that are in no file."""
        if taken.owner in (None, self._here.ingester_id):
            return
        owners = [tail for tail in tails if tail.ingester_id == taken.owner]
        if not owners and tables.missing:
            return
        if not owners:
            raise Refused(
                f"daemon {taken.owner!r} takes the writes of {'.'.join(taken.named.key)} and is not"
                " among sql.peers: add its address",
                retry_after_s=5.0,
            )
        given.changes.clear()
        if owners[0].rows is not None:
            given.changes.append(len(tables.sources))
            tables.sources.append(owners[0].rows)

    async def _snapshots(self, asked: Asked) -> list[Taken]:
        """Return one snapshot of all tables. On the loop."""
        found: list[tuple[Named, TableBuffer, Any]] = []
        seen: dict[tuple[str, str], Named] = {}
        for namespace, name in asked.names.tables:
            named = await self._find(namespace, name, asked.may_read)
            if named is None:
                continue
            before = seen.setdefault(folded(namespace, name), named)
            if before.key != named.key:
                raise BadRequest(
                    f"{'.'.join(before.key)} and {'.'.join(named.key)} differ only in case: a query"
                    " can read one of them"
                )
            if before is not named:
                continue
            table = await self._catalog.open(*named.key)
            state = None
            if named.version is not None:
                state = await self._queries.version_tail.files(table, named.version)
            elif self._peers:
                await self._catalog.refresh(table, -1.0)
            else:
                await self._queries.refresh(table)
            found.append((named, table, state))
        # Atomic: no await until all snapshots are taken, so they are of one moment.
        return [self._taken(*each) for each in found]

    def _taken(self, named: Named, table: TableBuffer, state: Any) -> Taken:
        upto = self._here.upto
        if state is not None:
            return Taken(named, snapshot_version(state, upto(table)), 0, None)
        table_version, moved = table.moved
        owner = live_owner(table.state)
        return Taken(
            named,
            snapshot_all(table, upto),
            moved if table_version == table.state.table_version else 0,
            None if owner is None else owner.ingester_id,
        )

    async def _everything(self, may_read: MayRead) -> list[TableGiven]:
        """Return all tables that may be read, without rows. On the loop."""
        found = []
        for key in await self._catalog.names():
            if not may_read(key[0]) or key[0].lower() in _SYSTEM_SCHEMAS:
                continue
            try:
                table = await self._catalog.open(*key)
            except UnknownTable:
                continue  # dropped meanwhile
            found.append(_without_rows(key, encoded(table.definition.schema)))
        return found

    async def _find(self, namespace: str, name: str, may_read: MayRead) -> Named | None:
        spelled, version = (namespace, name), None
        versioned = _VERSIONED.fullmatch(name)
        if versioned is not None:
            name, version = versioned["table"], int(versioned["version"])
        if not namespace or namespace.lower() in _SYSTEM_SCHEMAS:
            return None
        key = (namespace, name)
        try:
            if may_read(namespace):
                await self._catalog.open(*key)
                return Named(key, spelled, version)
        except (UnknownTable, BadRequest):
            pass
        wanted = folded(namespace, name)
        similar = [
            each
            for each in await self._catalog.names()
            if folded(*each) == wanted and may_read(each[0])
        ]
        if len(similar) > 1:
            shown = " and ".join(f"{namespace}.{table}" for namespace, table in similar)
            raise BadRequest(f"{namespace}.{name} may be {shown}: write the name exactly")
        return Named(similar[0], spelled, version) if similar else None


def _without_rows(spelled: tuple[str, str], schema: bytes) -> TableGiven:
    return TableGiven(*spelled, schema, [], [], [], [], [])


def folded(namespace: str, name: str) -> tuple[str, str]:
    """Return a name as SQL compares it: names of tables are ASCII."""
    return namespace.lower(), name.lower()
