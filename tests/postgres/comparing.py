"""Compares source and copy without code of the product: ``COPY`` against a query of the daemon.

    source ──COPY … CSV──▶ texts ──by the copy's own types──▶ values ┐
    daemon ──DoGet────────────────────────────────────────▶ values ┴─▶ differences

Each source table is compared with the table of its name in the copy. Generated columns are
compared only if the copy has them. A column that the copy lacks counts as null.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from tests.drivers.wire import query

PINNED = (
    "SET datestyle = 'ISO, MDY'; SET intervalstyle = 'postgres'; SET extra_float_digits = 3;"
    " SET bytea_output = 'hex'; SET timezone = 'UTC'; SET row_security = off"
)
NULL = "<null of the test>"
SHOWN = 5
_TABLES = (
    "SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relispartition,"
    " c.relpersistence::text"
    " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"
    " ORDER BY 2, 3"
)
_GENERATED = "attgenerated <> ''"
_COLUMNS = (
    "SELECT attname, {generated} FROM pg_attribute"
    " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of the source, as the catalog describes it now."""

    oid: int
    schema: str
    name: str
    kind: str
    """``r`` for an ordinary table, ``p`` for a partitioned one."""
    is_partition: bool
    persistence: str
    columns: tuple[str, ...]
    generated: frozenset[str]

    @property
    def here(self) -> str:
        """The table's name in the copy."""
        if self.schema == "public":
            return _part(self.name)
        return f"{_part(self.schema)}.{_part(self.name)}"


@dataclass(slots=True)
class Difference:
    """The differences between a copy and its source."""

    table: str
    rows: tuple[int, int] = (0, 0)
    """The numbers of rows at the source and in the copy."""
    missing: list[tuple[Any, ...]] = field(default_factory=list)
    extra: list[tuple[Any, ...]] = field(default_factory=list)
    fault: str = ""

    def __str__(self) -> str:
        said = f"{self.table}: {self.rows[0]} rows at the source, {self.rows[1]} in the copy"
        said += f"; {self.fault}" if self.fault else ""
        for title, rows in (("only at the source", self.missing), ("only here", self.extra)):
            if rows:
                shown = "\n    ".join(_shown(row) for row in rows[:SHOWN])
                said += f"\n  {title} ({len(rows)}):\n    {shown}"
        return said


def _shown(row: tuple[Any, ...]) -> str:
    """Format a row with its large values shortened, so that differences are visible."""
    texts = (repr(value) for value in row)
    return ", ".join(text if len(text) <= 40 else f"{text[:40]}…" for text in texts)


def _part(name: str) -> str:
    found = re.sub(r"[^A-Za-z0-9_]", lambda match: f"-{ord(match[0]):x}-", name)
    return found if re.match(r"[A-Za-z0-9]", found) else "x-" + _under(found)


def _under(name: str) -> str:
    return f"-{ord('_'):x}-{name[1:]}" if name.startswith("_") else name


def column_here(name: str) -> str:
    """Return a column's name in the copy."""
    return f"x{name}" if name.startswith("_") else name


def source_tables(connection: Any) -> list[SourceTable]:
    """Return all tables of the source."""
    with connection.cursor() as cursor:
        cursor.execute(_TABLES)
        found = cursor.fetchall()
        generated = _GENERATED if connection.server_version >= 120_000 else "false"
        tables = []
        for oid, schema, name, kind, is_partition, persistence in found:
            cursor.execute(_COLUMNS.format(generated=generated), (oid,))
            columns = cursor.fetchall()
            tables.append(
                SourceTable(
                    oid,
                    schema,
                    name,
                    kind,
                    is_partition,
                    persistence,
                    tuple(column for column, _ in columns),
                    frozenset(column for column, is_generated in columns if is_generated),
                )
            )
    return tables


def read_source(connection: Any, table: SourceTable) -> list[list[str | None]]:
    """Return all rows, as the texts of the types' output functions."""
    from psycopg2 import sql

    names = sql.SQL(", ").join(sql.Identifier(name) for name in table.columns)
    only = sql.SQL("" if table.kind == "p" else "ONLY ")
    out = io.StringIO()
    with connection.cursor() as cursor:
        cursor.execute(PINNED)
        text = sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT (FORMAT csv, FORCE_QUOTE *, NULL {})")
        name = sql.Identifier(table.schema, table.name)
        cursor.copy_expert(text.format(names, only, name, sql.Literal(NULL)), out)
    out.seek(0)
    rows = csv.reader(out)
    return [[None if cell == NULL else cell for cell in row] for row in rows]


def compare(
    connection: Any, client: fl.FlightClient, namespace: str, table: SourceTable
) -> Difference | None:
    """Return the differences between source and copy, or None if they are equal.

    Raises:
        FlightError, ArrowException: the copy does not exist or cannot be read.
    """
    copy = query(client, (namespace, table.here))
    texts = read_source(connection, table)
    here = {column_here(name): name for name in table.columns}
    difference = Difference(table.here, (len(texts), copy.num_rows))
    if strange := [name for name in copy.schema.names if name not in here]:
        difference.fault = f"columns that the source has not: {strange}"
        return difference
    names = [
        column
        for column in table.columns
        if column not in table.generated or column_here(column) in copy.schema.names
    ]
    try:
        source_rows = list(_source_rows(table, texts, names, copy.schema))
    except (ValueError, KeyError, ArithmeticError) as exc:
        difference.fault = f"a value of the source that the copy's type cannot have: {exc}"
        return difference
    _subtract(difference, source_rows, list(_copy_rows(copy, names)))
    return difference if difference.missing or difference.extra else None


def _subtract(difference: Difference, source_rows: Sequence[Any], copy_rows: Sequence[Any]) -> None:
    left: dict[tuple[Any, ...], int] = {}
    for row in copy_rows:
        left[row] = left.get(row, 0) + 1
    for row in source_rows:
        if left.get(row, 0):
            left[row] -= 1
        else:
            difference.missing.append(row)
    difference.extra += [row for row, count in left.items() for _ in range(count)]


def _source_rows(
    table: SourceTable, texts: list[list[str | None]], names: list[str], schema: pa.Schema
) -> Iterator[tuple[Any, ...]]:
    at = [table.columns.index(name) for name in names]
    readers = [
        _reader(schema.field(column_here(name)).type) if column_here(name) in schema.names else str
        for name in names
    ]
    for row in texts:
        cells = [row[index] for index in at]
        yield tuple(
            None if cell is None else read(cell) for cell, read in zip(cells, readers, strict=True)
        )


def _copy_rows(copy: pa.Table, names: list[str]) -> Iterator[tuple[Any, ...]]:
    nulls = [None] * copy.num_rows
    columns = []
    for name in names:
        if column_here(name) in copy.schema.names:
            columns.append([_same(value) for value in copy[column_here(name)].to_pylist()])
        else:
            columns.append(nulls)
    yield from zip(*columns, strict=True)


def _same(value: Any) -> Any:
    """Make values comparable: NaN is not equal to itself, and naive timestamps are taken as UTC."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    return value


def _reader(kind: pa.DataType) -> Callable[[str], Any]:
    """Return the function that reads a source text as a value of the copy's type."""
    if pa.types.is_boolean(kind):
        return {"t": True, "f": False}.__getitem__
    if pa.types.is_integer(kind):
        return int
    if pa.types.is_float32(kind):
        return lambda text: _same(pa.scalar(float(text), pa.float32()).as_py())
    if pa.types.is_floating(kind):
        return lambda text: _same(float(text))
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_date(kind):
        return dt.date.fromisoformat
    if pa.types.is_timestamp(kind):
        return lambda text: dt.datetime.fromisoformat(text).replace(tzinfo=None)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda text: bytes.fromhex(text.removeprefix("\\x"))
    assert pa.types.is_string(kind) or pa.types.is_large_string(kind), kind
    return str
