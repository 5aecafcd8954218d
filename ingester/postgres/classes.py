"""The tables of a database, how they belong to each other, and which of them a publication has.

    pg_class, pg_inherits, pg_publication_rel, pg_publication_namespace ──▶ Classes

Law of this file: a publication has the partitioned tables themselves if it publishes via the root,
else their leaves; a partition is published too where something above it is.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from ingester.postgres.connection import ask
from ingester.postgres.facts import PublicationFacts

FIRST_NORMAL_OID = 16384
"""Objects below are the system's own."""
_ATTACHED_AT_ONCE = 3
"""A table that is born as a partition is one so many commands after its creation; each statement
between the two would add more."""


class Class(NamedTuple):
    """A row of ``pg_class``."""

    oid: int
    schema_oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    identity: str
    filenode: int
    is_partition: bool
    row_security: bool
    readable: bool
    owned: bool
    changed_by: int


class Parent(NamedTuple):
    """What a table is a partition of, and since which command of which transaction."""

    oid: int
    transaction: int
    command: int


class Entry(NamedTuple):
    """A table that the publication names."""

    oid: int
    row_filter: bool
    columns: tuple[int, ...] | None


class Classes:
    """All tables and views of the database."""

    def __init__(self, connection: Any, name: str, facts: PublicationFacts) -> None:
        """Read them; ``name`` and ``facts`` are the publication's."""
        version = connection.server_version
        self._facts = facts
        self.via_root = facts.via_root if facts.exists else version >= 130_000
        self.by_oid = _classes(connection)
        self._parents: dict[int, Parent] = {}
        self._children: dict[int, list[int]] = defaultdict(list)
        self.heirs: dict[int, list[Class]] = defaultdict(list)
        self._inherits(connection, version)
        self._entries = _entries(connection, name, version)
        self._schemas = _schemas(connection, name, version)
        self.published = self._published()

    def leaves(self, oid: int) -> list[Class]:
        """The partitions below a table, at any level, that have none themselves."""
        found: list[Class] = []
        for child in self._children.get(oid, ()):
            found += [self.by_oid[child]] if self.by_oid[child].kind != "p" else self.leaves(child)
        return sorted(found)

    def attached_by(self, oid: int) -> int:
        """The transaction that made the table a partition."""
        return self._parents[oid].transaction

    def is_born(self, oid: int, transaction: int, command: int) -> bool:
        """Whether a partition, made by that command, was a partition from the beginning."""
        parent = self._parents[oid]
        return (
            parent.transaction == transaction and 0 <= parent.command - command <= _ATTACHED_AT_ONCE
        )

    def entry(self, oid: int) -> Entry:
        """What the publication leaves out of a table that it has."""
        entry = self._entries.get(oid)
        if entry is None or self._facts.all_tables:
            return Entry(0, False, None)
        if self.by_oid[oid].schema_oid in self._schemas:
            return Entry(entry.oid, False, entry.columns)
        return entry

    def candidates(self) -> set[int]:
        """The tables that are published or could be, foreign tables, and views."""
        found = set(self.published)
        for each in self.by_oid.values():
            if each.persistence == "t" or (each.kind == "p" and not self.via_root):
                continue
            if not each.is_partition or (not self.via_root and each.kind == "r"):
                found.add(each.oid)
        return found

    def _inherits(self, connection: Any, version: int) -> None:
        pending = "inhdetachpending" if version >= 140_000 else "false"
        for child, parent, transaction, command in ask(
            connection,
            "SELECT inhrelid::bigint, inhparent::bigint, xmin::text::bigint, cmin::text::bigint"
            f" FROM pg_inherits WHERE NOT {pending}",
        ):
            if child not in self.by_oid or parent not in self.by_oid:
                continue
            if self.by_oid[child].is_partition:
                self._parents[child] = Parent(parent, transaction, command)
                self._children[parent].append(child)
            else:
                self.heirs[parent].append(self.by_oid[child])

    def _published(self) -> dict[int, tuple[int, ...]]:
        """The tables that the publication has, with the entries by which it has them."""
        found: dict[int, tuple[int, ...]] = {}
        for each in self.by_oid.values():
            if each.kind not in "rp" or each.persistence != "p":
                continue
            line = self._line(each.oid)
            members = [(oid, by) for oid in line if (by := self._member_by(oid))]
            if members and self.via_root:
                found[members[-1][0]] = members[-1][1]
            elif members and each.kind == "r":
                found[each.oid] = tuple(sorted({entry for _, by in members for entry in by}))
        return found

    def _line(self, oid: int) -> list[int]:
        """The table and what it is a partition of, the root last."""
        line = [oid]
        while line[-1] in self._parents:
            line.append(self._parents[line[-1]].oid)
        return line

    def _member_by(self, oid: int) -> tuple[int, ...]:
        """The entries that have a table itself; none if the publication has it not."""
        found = [self._facts.oid] if self._facts.all_tables else []
        if entry := self._entries.get(oid):
            found.append(entry.oid)
        if schema := self._schemas.get(self.by_oid[oid].schema_oid):
            found.append(schema)
        return tuple(sorted(found))


def _classes(connection: Any) -> dict[int, Class]:
    rows = ask(
        connection,
        "SELECT c.oid::bigint, n.oid::bigint, n.nspname::text, c.relname::text, c.relkind::text,"
        " c.relpersistence::text, c.relreplident::text, c.relfilenode::bigint, c.relispartition,"
        " c.relrowsecurity AND (c.relforcerowsecurity"
        " OR NOT pg_has_role(current_user, c.relowner, 'USAGE')),"
        " COALESCE(has_table_privilege(c.oid, 'SELECT')"
        " AND has_schema_privilege(n.oid, 'USAGE'), false),"
        " pg_has_role(current_user, c.relowner, 'USAGE'), c.xmin::text::bigint"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') AND c.oid >= %s"
        " AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')",
        FIRST_NORMAL_OID,
    )
    return {row[0]: Class(*row) for row in rows}


def _entries(connection: Any, name: str, version: int) -> dict[int, Entry]:
    what = "prqual IS NOT NULL, prattrs::int2[]" if version >= 150_000 else "false, NULL"
    rows = ask(
        connection,
        f"SELECT prrelid::bigint, r.oid::bigint, {what} FROM pg_publication_rel r"
        " JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s",
        name,
    )
    return {
        table: Entry(oid, filters, None if columns is None else tuple(columns))
        for table, oid, filters, columns in rows
    }


def _schemas(connection: Any, name: str, version: int) -> dict[int, int]:
    """The entries of whole schemas, by the schema's OID."""
    if version < 150_000:
        return {}
    rows = ask(
        connection,
        "SELECT pnnspid::bigint, s.oid::bigint FROM pg_publication_namespace s"
        " JOIN pg_publication p ON p.oid = s.pnpubid WHERE p.pubname = %s",
        name,
    )
    return dict(rows)
