"""Compares answers exactly: types, values bit by bit, and the order where it is defined.

Zeros of both signs are equal in SQL, so a group, a join or DISTINCT may show either.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa

from tests.drivers.all_types import plain
from tests.sql_logic.script import Record

_SHOWN = 4
_HASHED = re.compile(r"(\d+) values hashing to ([0-9a-f]{32})")


def differences(
    found: pa.Table, wanted: pa.Table, *, ordered: bool = False, rounded: bool = False
) -> str | None:
    """Return how an answer differs from the wanted one, or None.

    Args:
        ordered: The order of rows counts.
        rounded: Zeros have no sign, and floats differ only in the first nine digits.
    """
    if found.schema.names != wanted.schema.names:
        return f"columns {found.schema.names} instead of {wanted.schema.names}"
    for got, want in zip(found.schema, wanted.schema, strict=True):
        if got.type != want.type:
            return f"column {got.name} has type {got.type} instead of {want.type}"
    got_rows, want_rows = rows_of(found, rounded), rows_of(wanted, rounded)
    if ordered:
        if got_rows == want_rows:
            return None
        if Counter(got_rows) == Counter(want_rows):
            pairs = zip(got_rows, want_rows, strict=True)
            return "another order: {} instead of {}".format(*next(p for p in pairs if p[0] != p[1]))
    more, less = Counter(got_rows), Counter(want_rows)
    more, less = more - less, less - more
    if not more and not less:
        return None
    return (
        f"{len(got_rows)} rows instead of {len(want_rows)}; "
        f"{more.total()} unexpected: {_few(more)}; {less.total()} missing: {_few(less)}"
    )


def rows_of(table: pa.Table, rounded: bool = False) -> list[str]:
    """Return each row as text that is equal only for equal rows."""
    columns = [_column(table.column(place), rounded) for place in range(len(table.schema))]
    if not columns:
        return [""] * table.num_rows
    return [repr(row) for row in zip(*columns, strict=True)]


def _column(column: pa.ChunkedArray, rounded: bool) -> list[Any]:
    return [value for chunk in column.chunks for value in _values(chunk, rounded)]


def _values(column: Any, rounded: bool) -> list[Any]:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if rounded and pa.types.is_floating(column.type):
        return [v if v is None else f"{v + 0.0:.9g}" for v in column.to_pylist()]
    if pa.types.is_nested(column.type) and rounded:
        return [_round(v) for v in column.to_pylist()]
    if pa.types.is_null(column.type) or pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    try:
        return plain(column)
    except (pa.ArrowException, ValueError, OverflowError, AttributeError):
        return list(map(str, column))


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value + 0.0:.9g}"
    if isinstance(value, list | tuple):
        return [_round(each) for each in value]
    if isinstance(value, dict):
        return {key: _round(each) for key, each in value.items()}
    return value


def _few(rows: Counter[str]) -> str:
    shown = sorted(rows)[:_SHOWN]
    return ", ".join(text[:300] for text in shown) + (", …" if len(rows) > _SHOWN else "")


def as_expected(record: Record, found: pa.Table) -> bool:
    """Return whether an answer is the one that a file expects, in DuckDB's and SQLite's form."""
    assert record.expected is not None
    width, texts = len(found.schema), _texts(found)
    expected = list(record.expected)
    hashed = _HASHED.fullmatch(expected[0]) if len(expected) == 1 else None
    if record.sort == "rowsort":
        texts = _by_row(texts, width)
    elif record.sort == "valuesort":
        texts = sorted(texts)
    if hashed:
        digest = hashlib.md5("".join(f"{text}\n" for text in texts).encode()).hexdigest()
        return (int(hashed[1]), hashed[2]) == (len(texts), digest)
    for split in (_by_tabs, _by_lines):
        wanted = split(expected)
        if record.sort == "rowsort" and width:
            wanted = _by_row(wanted, width)
        elif record.sort == "valuesort":
            wanted = sorted(wanted)
        if len(wanted) == len(texts) and all(map(_same_text, texts, wanted)):
            return True
    return False


def _by_tabs(lines: list[str]) -> list[str]:
    return [text for line in lines for text in line.split("\t")]


def _by_lines(lines: list[str]) -> list[str]:
    return list(lines)


def _by_row(texts: list[str], width: int) -> list[str]:
    rows = sorted(texts[i : i + width] for i in range(0, len(texts), width))
    return [text for row in rows for text in row]


def _same_text(found: str, wanted: str) -> bool:
    if found == wanted:
        return True
    if wanted.startswith("<REGEX>:"):
        return re.fullmatch(wanted[8:], found, re.DOTALL) is not None
    if wanted.startswith("<!REGEX>:"):
        return re.fullmatch(wanted[9:], found, re.DOTALL) is None
    if {found, wanted} in ({"true", "1"}, {"false", "0"}):
        return True
    try:
        a, b = float(found), float(wanted)
    except ValueError:
        return False
    return a == b or abs(a - b) <= abs(b) * 0.01 + 1e-5


def _texts(table: pa.Table) -> list[str]:
    """Return the values row by row, as DuckDB casts them to text."""
    con = _casting()
    con.register("answer", table.rename_columns([f"c{i}" for i in range(len(table.schema))]))
    try:
        rows = con.execute("SELECT COLUMNS(*)::VARCHAR FROM answer").fetchall()
        con.unregister("answer")
    except duckdb.InternalException:  # for the smallest HUGEINT, for example; it ends the database
        con.close()
        _casting.cache_clear()
        return []
    values = [value for row in rows for value in row]
    return ["NULL" if v is None else v or "(empty)" for v in values]


@functools.cache
def _casting() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect(config={"threads": 1})
    con.execute("SET TimeZone = 'UTC'").fetchall()
    return con
