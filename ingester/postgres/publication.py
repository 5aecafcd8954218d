"""The publication: which tables it should contain, and how it is created, altered and restored.

    tables ──▶ plan_publication ──▶ PublicationPlan ──▶ ensure ──▶ Made ──▶ undo

Only tables that can be replicated are published: PostgreSQL refuses UPDATE and DELETE of a
published table without a replica identity. A publication created by somebody else is used as it
is. Ours is recognized by its comment; tables are added to it, and those are dropped whose writes
it would break.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ingester.postgres.catalog import OURS, read_publication, read_server
from ingester.postgres.conditions import (
    MAX_NAME_BYTES,
    Hindrance,
    breaks_writes,
    hindrance,
    obstacle,
)
from ingester.postgres.connection import source_errors
from ingester.postgres.facts import PublicationFacts, ServerFacts, TableFacts
from ingester.postgres.options import quoted, quoted_table
from ingester.postgres.server_errors import SourceFailed

VIA_ROOT_SINCE = 130_000
_LOCK_S = 1
"""A table that stays locked this long is added at the next look."""


LeftOut = tuple[TableFacts, Hindrance]


class PublicationPlan(NamedTuple):
    """The changes to make to a publication."""

    create: bool
    adds: tuple[TableFacts, ...]
    drops: tuple[TableFacts, ...]
    left_out: tuple[LeftOut, ...]
    """Tables that cannot be followed, and why."""


class PublicationChange:
    """The changes made to a publication, which can be undone."""

    def __init__(self, connection: Any, name: str, left_out: Iterable[LeftOut]) -> None:
        self.created = False
        self.added: list[TableFacts] = []
        self.dropped: list[TableFacts] = []
        self.left_out = list(left_out)
        """Tables that cannot be followed, or could not be added now, and why."""
        self._connection = connection
        self._name = name

    @property
    def changed(self) -> bool:
        """Whether anything was changed: facts read before are outdated."""
        return self.created or bool(self.added or self.dropped)

    def undo(self) -> None:
        """Drop the publication, or the added tables, if they were created here."""
        if self.created:
            _run(self._connection, f"DROP PUBLICATION IF EXISTS {quoted(self._name)}")
        else:
            for table in self.added:
                self._try(table, "DROP")
        self.created, self.added = False, []

    def do(self, plan: PublicationPlan, version: int) -> None:
        """Carry out the plan."""
        if plan.create:
            _run(self._connection, *creation(self._name, (), version))
            self.created = True
        self.dropped = [table for table in plan.drops if self._try(table, "DROP") is None]
        if plan.adds and self._try_all(plan.adds):
            self.added = list(plan.adds)
            return
        for table in plan.adds:
            if failed := self._try(table, "ADD"):
                self.left_out.append((table, failed))
            else:
                self.added.append(table)

    def _try_all(self, tables: Iterable[TableFacts]) -> bool:
        import psycopg2

        try:
            _run(self._connection, f"{_alter(self._name)} ADD TABLE {_list(tables)}")
        except (SourceFailed, psycopg2.OperationalError):
            if self._connection.closed:
                raise
            return False
        return True

    def _try(self, table: TableFacts, verb: str) -> Hindrance | None:
        """Add or drop one table; a failure, such as a lock, is retried at the next look."""
        import psycopg2

        try:
            _run(self._connection, f"{_alter(self._name)} {verb} TABLE {_sql(table)}")
        except (SourceFailed, psycopg2.OperationalError) as exc:
            if self._connection.closed:
                raise
            return Hindrance(f"it could not be published: {exc}")
        return None


def plan_publication(
    server: ServerFacts, publication: PublicationFacts, tables: Iterable[TableFacts]
) -> PublicationPlan:
    """Plan which tables to add and drop."""
    changes = not publication.exists or (publication.ours and publication.owned)
    adds, drops = [], []
    left_out: list[LeftOut] = []
    for table in tables:
        found = planned_hindrance(table, server, publication)
        if found is not None:
            left_out.append((table, found))
        if not changes:
            continue
        if found is None and not table.published:
            adds.append(table)
        elif breaks_writes(table, publication):
            drops.append(table)
    return PublicationPlan(not publication.exists, tuple(adds), tuple(drops), tuple(left_out))


def planned_hindrance(
    table: TableFacts, server: ServerFacts, publication: PublicationFacts
) -> Hindrance | None:
    """Why a table cannot be followed once the plan is carried out.

    An unpublished table is added if the publication is ours or does not exist yet.
    """
    if table.published or (publication.exists and not (publication.ours and publication.owned)):
        return hindrance(table, server, publication)
    found = obstacle(table, server, publication)
    if found is None and not table.owned:
        return Hindrance(
            f"role {server.role!r} may not publish it: it is not the table's owner",
            (
                f"as the owner of both: {_alter(publication.name)} ADD TABLE {_sql(table)}"
                if publication.exists
                else "as the tables' owner: "
                + creation(publication.name, (table,), server.version_num)[0],
            ),
        )
    return found


def ensure(connection: Any, name: str, tables: Iterable[TableFacts]) -> PublicationChange:
    """Create or alter the publication so that it contains all followable tables.

    Args:
        connection: a plain one in autocommit.
        tables: as read with ``everything``, or some of those.

    Raises:
        SourceFailed: the role may not; the error names commands for the owner.
    """
    if len(name.encode()) > MAX_NAME_BYTES:
        raise SourceFailed(f"publication {name!r}: a name has at most {MAX_NAME_BYTES} bytes")
    server, publication = read_server(connection), read_publication(connection, name)
    planned = plan_publication(server, publication, tables)
    made = PublicationChange(connection, name, planned.left_out)
    if planned.create and not server.may_create:
        tables = [each for each in tables if obstacle(each, server, publication) is None]
        raise SourceFailed(
            f"publication {name!r} does not exist, and role {server.role!r} may not create it in"
            f" database {server.database!r}",
            "42501",
            helps=(
                f"GRANT CREATE ON DATABASE {quoted(server.database)} TO {quoted(server.role)}",
                "or, as the tables' owner: " + creation(name, tables, server.version_num)[0],
            ),
        )
    made.do(planned, server.version_num)
    return made


def commands(name: str, planned: PublicationPlan, version: int) -> list[str]:
    """The commands that :func:`ensure` would run."""
    if planned.create:
        return list(creation(name, planned.adds, version))
    found = [f"{_alter(name)} DROP TABLE {_sql(table)}" for table in planned.drops]
    if planned.adds:
        found.append(f"{_alter(name)} ADD TABLE {_list(planned.adds)}")
    return found


def creation(name: str, tables: Iterable[TableFacts], version: int) -> tuple[str, ...]:
    """The commands that create a publication of ours."""
    what = f" FOR TABLE {found}" if (found := _list(tables)) else ""
    root = " WITH (publish_via_partition_root = true)" if version >= VIA_ROOT_SINCE else ""
    return (
        f"CREATE PUBLICATION {quoted(name)}{what}{root}",
        f"COMMENT ON PUBLICATION {quoted(name)} IS '{OURS}'",
    )


def _run(connection: Any, *statements: str) -> None:
    """Run statements as one transaction, with a short lock timeout."""
    wait = f"SET LOCAL lock_timeout = '{_LOCK_S}s'"
    with source_errors(), connection.cursor() as cursor:
        cursor.execute("; ".join((wait, *statements)))


def _alter(name: str) -> str:
    return f"ALTER PUBLICATION {quoted(name)}"


def _sql(table: TableFacts) -> str:
    # Tables that inherit from it are published separately.
    only = "" if table.kind == "p" else "ONLY "
    return only + quoted_table(table.schema, table.name)


def _list(tables: Iterable[TableFacts]) -> str:
    return ", ".join(_sql(table) for table in tables)
