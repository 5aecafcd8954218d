"""Catalog queries: tables, partitions, publication membership, columns, indexes, nested types.

    pg_class, pg_inherits, pg_publication_rel, pg_publication_namespace ──▶ Classes
    pg_attribute, pg_type, pg_enum ──▶ ColumnFacts        pg_index ──▶ Index

A publication contains the partitioned tables themselves if it publishes via the root, else their
leaves; a partition is published, too, if one of its ancestors is. A column's facts contain all
that the text of its values depends on: the base type of a domain, and at any depth the labels of
enum types and the fields of composite types.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import msgspec

from ingester.postgres.connection import ask
from ingester.postgres.facts import ColumnFacts, PublicationFacts

FIRST_NORMAL_OID = 16384
"""Objects below are built in."""
_ATTACHED_AT_ONCE = 3
"""A table created as a partition is attached at most this many commands after its creation;
separate statements need more."""
STORED = "s"
"""``attgenerated`` of a stored generated column."""
_CREATION = -1
"""The system column ``ctid``: every table has it, and its entry never changes."""


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
    """The parent of a partition, and the command and transaction that attached it."""

    oid: int
    transaction: int
    command: int


class PublicationEntry(NamedTuple):
    """A table that the publication names."""

    oid: int
    row_filter: bool
    columns: tuple[int, ...] | None


class Classes:
    """All tables and views of the database, and a publication's membership."""

    def __init__(self, connection: Any, name: str, facts: PublicationFacts) -> None:
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
        """The partitions below a table, at any level, without partitions of their own."""
        found: list[Class] = []
        for child in self._children.get(oid, ()):
            found += [self.by_oid[child]] if self.by_oid[child].kind != "p" else self.leaves(child)
        return sorted(found)

    def attached_by(self, oid: int) -> int:
        """The transaction that attached the partition."""
        return self._parents[oid].transaction

    def is_born(self, oid: int, transaction: int, command: int) -> bool:
        """Whether a partition created by that command was created as a partition."""
        parent = self._parents[oid]
        return (
            parent.transaction == transaction and 0 <= parent.command - command <= _ATTACHED_AT_ONCE
        )

    def entry(self, oid: int) -> PublicationEntry:
        """The publication's row filter and column list for a table."""
        entry = self._entries.get(oid)
        if entry is None or self._facts.all_tables:
            return PublicationEntry(0, False, None)
        if self.by_oid[oid].schema_oid in self._schemas:
            return PublicationEntry(entry.oid, False, entry.columns)
        return entry

    def candidates(self) -> set[int]:
        """Tables that are published or could be, foreign tables, and views."""
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
        """The published tables, each with the entries that publish it."""
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
        """The table and its ancestors, the root last."""
        line = [oid]
        while line[-1] in self._parents:
            line.append(self._parents[line[-1]].oid)
        return line

    def _member_by(self, oid: int) -> tuple[int, ...]:
        """The entries that publish the table itself; empty if none does."""
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


def _entries(connection: Any, name: str, version: int) -> dict[int, PublicationEntry]:
    what = "prqual IS NOT NULL, prattrs::int2[]" if version >= 150_000 else "false, NULL"
    rows = ask(
        connection,
        f"SELECT prrelid::bigint, r.oid::bigint, {what} FROM pg_publication_rel r"
        " JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s",
        name,
    )
    return {
        table: PublicationEntry(oid, filters, None if columns is None else tuple(columns))
        for table, oid, filters, columns in rows
    }


def _schemas(connection: Any, name: str, version: int) -> dict[int, int]:
    """The publication's entries for whole schemas, by the schema's OID."""
    if version < 150_000:
        return {}
    rows = ask(
        connection,
        "SELECT pnnspid::bigint, s.oid::bigint FROM pg_publication_namespace s"
        " JOIN pg_publication p ON p.oid = s.pnpubid WHERE p.pubname = %s",
        name,
    )
    return dict(rows)


class Index(NamedTuple):
    """A valid unique index over all rows."""

    name: str
    columns: tuple[str, ...]
    is_primary: bool
    is_identity: bool
    is_immediate: bool
    is_not_null: bool


class TableColumns(msgspec.Struct):
    """The columns of one table."""

    created_by: int = 0
    created_in: int = 0
    """The command within the transaction."""
    columns: list[ColumnFacts] = msgspec.field(default_factory=list)
    stored: set[int] = msgspec.field(default_factory=set)
    """The numbers of stored generated columns."""
    nullable: set[int] = msgspec.field(default_factory=set)

    def name_of(self, number: int) -> str:
        """The column's name."""
        return next(column.name for column in self.columns if column.number == number)


def read_columns(connection: Any, oids: set[int]) -> dict[int, TableColumns]:
    """The columns of tables, in order; ``sent`` unless generated."""
    version = connection.server_version
    generated = "attgenerated::text" if version >= 120_000 else "''::text"
    missing = "atthasmissing" if version >= 110_000 else "false"
    rows = ask(
        connection,
        "SELECT attrelid::bigint, attname::text, attnum::int, atttypid::bigint, atttypmod,"
        f" format_type(atttypid, atttypmod), attnotnull, {generated}, {missing},"
        " xmin::text::bigint, cmin::text::bigint FROM pg_attribute"
        " WHERE attrelid = ANY (%s::oid[]) AND (attnum > 0 OR attnum = %s) AND NOT attisdropped"
        " ORDER BY attrelid, attnum",
        sorted(oids),
        _CREATION,
    )
    inner = _read_types(connection, {row[3] for row in rows})
    found: dict[int, TableColumns] = defaultdict(TableColumns)
    for oid, name, number, kind, modifier, kind_name, not_null, made, has, by, command in rows:
        table = found[oid]
        if number == _CREATION:
            table.created_by, table.created_in = by, command
            continue
        table.stored |= {number} if made == STORED else set()
        base, base_modifier = inner.base(kind, modifier)
        table.columns.append(
            ColumnFacts(
                name,
                number,
                kind,
                modifier,
                base,
                base_modifier,
                kind_name,
                enum_labels=tuple(inner.labels.get(kind, ())),
                fields=tuple(inner.fields.get(kind, ())),
                not_null=not_null,
                generated=made != "",
                has_missing=has,
                altered_by=by,
                sent=made == "",
            )
        )
    return found


def read_indexes(connection: Any, columns: dict[int, TableColumns]) -> dict[int, list[Index]]:
    """The unique indexes of tables, the primary key first, then by age."""
    keys = "indnkeyatts" if connection.server_version >= 110_000 else "indnatts"
    rows = ask(
        connection,
        f"SELECT indrelid::bigint, c.relname::text, (indkey::int2[])[0:{keys} - 1],"
        " indisprimary, indisreplident, indimmediate"
        " FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " WHERE indrelid = ANY (%s::oid[]) AND indisunique AND indisvalid"
        " AND indpred IS NULL AND indexprs IS NULL"
        " ORDER BY indrelid, indisprimary DESC, indexrelid",
        sorted(columns),
    )
    found: dict[int, list[Index]] = defaultdict(list)
    for oid, name, numbers, primary, identity, immediate in rows:
        by_number = {column.number: column for column in columns[oid].columns}
        if not all(number in by_number for number in numbers):
            continue  # On a system column, or newer than the columns read.
        used = [by_number[number] for number in numbers]
        names = tuple(column.name for column in used)
        not_null = all(column.not_null for column in used)
        found[oid].append(Index(name, names, primary, identity, immediate, not_null))
    return found


class _Types(NamedTuple):
    """Contents of user-defined types."""

    domains: dict[int, tuple[int, int]]
    labels: dict[int, list[tuple[int, str]]]
    fields: dict[int, list[tuple[int, int, int, int]]]

    def base(self, oid: int, modifier: int) -> tuple[int, int]:
        """The type below all domains, with its modifier."""
        while oid in self.domains:
            oid, modifier = self.domains[oid]
        return oid, modifier


def _read_types(connection: Any, oids: set[int]) -> _Types:
    own = sorted(oid for oid in oids if oid >= FIRST_NORMAL_OID)
    found = _Types({}, defaultdict(list), defaultdict(list))
    if not own:
        return found
    multiranges = (
        ""
        if connection.server_version < 140_000
        else " UNION ALL SELECT rngtypid FROM pg_range WHERE rngmultitypid = t.oid"
    )
    within = ask(
        connection,
        "WITH RECURSIVE within (root, oid) AS (SELECT u, u FROM unnest(%s::oid[]) u UNION"
        " SELECT w.root, n.oid FROM within w JOIN pg_type t ON t.oid = w.oid, LATERAL ("
        "SELECT t.typbasetype AS oid WHERE t.typtype = 'd'"
        " UNION ALL SELECT t.typelem WHERE t.typelem <> 0"
        " UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE t.typtype = 'c'"
        " AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped"
        f" UNION ALL SELECT rngsubtype FROM pg_range WHERE rngtypid = t.oid{multiranges}) n)"
        " SELECT w.root::bigint, t.oid::bigint, t.typtype::text, t.typbasetype::bigint, t.typtypmod"
        " FROM within w JOIN pg_type t ON t.oid = w.oid ORDER BY 1, 2",
        own,
    )
    roots: dict[int, list[int]] = defaultdict(list)
    for root, oid, kind, base, modifier in within:
        roots[oid].append(root)
        if kind == "d":
            found.domains[oid] = (base, modifier)
    for of, oid, label in ask(
        connection,
        "SELECT enumtypid::bigint, oid::bigint, enumlabel::text FROM pg_enum"
        " WHERE enumtypid = ANY (%s::oid[]) ORDER BY oid",
        sorted(roots),
    ):
        for root in roots[of]:
            found.labels[root].append((oid, label))
    for row in ask(
        connection,
        "SELECT t.oid::bigint, a.attnum::int, a.atttypid::bigint, a.atttypmod"
        " FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid"
        " WHERE t.oid = ANY (%s::oid[]) AND t.typtype = 'c' AND a.attnum > 0"
        " AND NOT a.attisdropped ORDER BY 1, 2",
        sorted(roots),
    ):
        for root in roots[row[0]]:
            found.fields[root].append(row)
    return found
