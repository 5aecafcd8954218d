"""Filters of the tests in the language of each engine, and what they must return.

A filter is a tuple of terms that must all hold, each (column, operator, value). The operators are
``= != < <= > >=``, ``in``, ``null`` and ``not null``. Comparisons with NaN differ between engines,
so rows with NaN in a filtered column are left out of the comparison.
"""

from __future__ import annotations

import datetime as dt
import functools
import operator
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

Dialect = Literal["duckdb", "spark", "trino", "datafusion"]
_COMPARED = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Term(NamedTuple):
    """One condition: a column, an operator and a value."""

    column: str
    op: str
    value: Any = None


Terms = tuple[Term, ...]


def passing(rows: pa.Table, terms: Terms) -> pa.Table:
    """The rows for which all terms hold."""
    for column, op, value in terms:
        there = rows[column]
        if op in ("null", "not null"):
            mask = pc.is_null(there) if op == "null" else pc.is_valid(there)
        elif op == "in":
            mask = pc.is_in(there, pa.array(value, there.type))
        else:
            names = {"=": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal",
                     ">": "greater", ">=": "greater_equal"}  # fmt: skip
            mask = pc.call_function(names[op], [there, pa.scalar(value, there.type)])
        rows = rows.filter(pc.fill_null(mask, False))
    return rows


def without_nan(rows: pa.Table, terms: Terms) -> pa.Table:
    """The rows without NaN in a filtered column."""
    for column, op, _ in terms:
        if pa.types.is_floating(rows[column].type) and op in _COMPARED:
            rows = rows.filter(pc.invert(pc.fill_null(pc.is_nan(rows[column]), False)))
    return rows


def sql(terms: Terms, dialect: Dialect) -> str:
    """The terms as a condition in SQL; ``true`` if there are none."""
    return " AND ".join(_condition(term, dialect) for term in terms) or "true"


def _condition(term: Term, dialect: Dialect) -> str:
    column, op, value = term
    mark = "`" if dialect == "spark" else '"'
    quoted = mark + column.replace(mark, 2 * mark) + mark
    if op == "null":
        return f"{quoted} IS NULL"
    if op == "not null":
        return f"{quoted} IS NOT NULL"
    if op == "in":
        return f"{quoted} IN ({', '.join(_literal(each, dialect) for each in value)})"
    return f"{quoted} {op} {_literal(value, dialect)}"


def _literal(value: Any, dialect: Dialect) -> str:
    if isinstance(value, float):
        return f"CAST('{value}' AS DOUBLE)"
    if isinstance(value, bytes):
        duck = "".join(rf"\x{one:02x}" for one in value)
        return f"'{duck}'::BLOB" if dialect == "duckdb" else f"X'{value.hex()}'"
    if isinstance(value, dt.datetime):
        return _moment(value, dialect)
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, str):
        # Spark knows escapes in texts, and no doubled quotes.
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'" if dialect == "spark" else "'" + value.replace("'", "''") + "'"
    assert isinstance(value, bool | int | Decimal)
    return str(value)


def _moment(value: dt.datetime, dialect: Dialect) -> str:
    text = value.replace(tzinfo=None).isoformat(" ", "microseconds")
    if value.tzinfo is None and dialect == "datafusion":
        # Its plain literals have nanoseconds, and so fewer years.
        return f"arrow_cast('{text}', 'Timestamp(Microsecond, None)')"
    if value.tzinfo is None:
        return f"TIMESTAMP{'_NTZ' if dialect == 'spark' else ''} '{text}'"
    assert value.tzinfo is dt.UTC
    return {
        "duckdb": f"TIMESTAMPTZ '{text}+00'",
        "spark": f"TIMESTAMP_LTZ '{text}Z'",
        "trino": f"TIMESTAMP '{text} UTC'",
        "datafusion": f"arrow_cast('{text}Z', 'Timestamp(Microsecond, Some(\"UTC\"))')",
    }[dialect]


def polars_expression(terms: Terms) -> Any:
    """The terms as an expression of Polars."""
    import polars as pl

    def one(term: Term) -> pl.Expr:
        column = pl.col(term.column)
        if term.op == "null":
            return column.is_null()
        if term.op == "not null":
            return column.is_not_null()
        if term.op == "in":
            return column.is_in(term.value)
        found: pl.Expr = _COMPARED[term.op](column, term.value)
        return found

    return functools.reduce(operator.and_, map(one, terms)) if terms else pl.lit(True)


def pyiceberg_expression(terms: Terms) -> Any:
    """The terms as an expression of pyiceberg."""
    from pyiceberg import expressions
    from pyiceberg.expressions.literals import literal

    e: Any = expressions  # its type information has an initialiser that is not there
    kinds = {"=": e.EqualTo, "!=": e.NotEqualTo, "<": e.LessThan, "<=": e.LessThanOrEqual,
             ">": e.GreaterThan, ">=": e.GreaterThanOrEqual}  # fmt: skip

    def one(term: Term) -> Any:
        if term.op == "null":
            return e.IsNull(term.column)
        if term.op == "not null":
            return e.NotNull(term.column)
        if term.op == "in":
            return e.In(term.column, term.value)
        return kinds[term.op](term.column, literal(term.value))

    return functools.reduce(e.And, map(one, terms)) if terms else e.AlwaysTrue()
