"""The columns and the unique indexes of tables, and the types that are within columns' types.

    pg_attribute, pg_type, pg_enum ──▶ ColumnFacts        pg_index ──▶ Index

Law of this file: what a text of a type depends on is named: the base type of a domain, and at any
depth the labels of enum types and the fields of composite ones, in arrays and ranges too.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import msgspec

from ingester.postgres.classes import FIRST_NORMAL_OID
from ingester.postgres.connection import ask
from ingester.postgres.facts import ColumnFacts

STORED = "s"
"""``attgenerated`` of a generated column whose values are stored."""
_CREATION = -1
"""The system column ``ctid``: every table has it, and nothing ever changes its entry."""


class Index(NamedTuple):
    """A unique index that is valid and has all rows."""

    name: str
    columns: tuple[str, ...]
    is_primary: bool
    is_identity: bool
    is_immediate: bool
    is_not_null: bool


class Columns(msgspec.Struct):
    """The columns of one table."""

    created_by: int = 0
    created_in: int = 0
    """The command, within the transaction."""
    columns: list[ColumnFacts] = msgspec.field(default_factory=list)
    stored: set[int] = msgspec.field(default_factory=set)
    """The numbers of the generated ones whose values are stored."""
    nullable: set[int] = msgspec.field(default_factory=set)

    def name_of(self, number: int) -> str:
        """The column's name."""
        return next(column.name for column in self.columns if column.number == number)


def read_columns(connection: Any, oids: set[int]) -> dict[int, Columns]:
    """The columns of tables, in their order; all are ``sent`` that are not generated."""
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
    found: dict[int, Columns] = defaultdict(Columns)
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


def read_indexes(connection: Any, columns: dict[int, Columns]) -> dict[int, list[Index]]:
    """The unique indexes of tables, the primary key's first, then the older ones."""
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
            continue  # Of a system column, or of before this reading began.
        used = [by_number[number] for number in numbers]
        names = tuple(column.name for column in used)
        not_null = all(column.not_null for column in used)
        found[oid].append(Index(name, names, primary, identity, immediate, not_null))
    return found


class _Types(NamedTuple):
    """What is within types of the database's own."""

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
