"""Spark's pushed-down filters as predicates for pruning.

Every row that Spark would keep is kept: Spark evaluates all filters again, and a filter that is not
understood prunes nothing. Spark orders NaN above all numbers and Arrow does not order it, so
comparisons of floating-point columns prune only files, whose bounds are missing where a NaN is
(``tests/spark/test_source_filters.py``).

To Spark a nanosecond is its microsecond, rounded down: a comparison becomes one with a range.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from ingester.spark.read.columns import Columns, is_nanoseconds
from ingester.spark.read.filters import Pruning
from persist.predicate.predicate import Predicate, Term

_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_LAST_PLAIN = "\ud7ff"
"""Followed by the surrogates, which no text contains."""


class _Kind(NamedTuple):
    """How a column is compared: its carrier type, and whether it holds nanoseconds, and a zone."""

    type: pa.DataType
    nanoseconds: bool
    zone: str | None


def pushed(filters: Iterable[Filter], columns: Columns) -> Pruning:
    """Pruning by all of the filters."""
    kinds = _kinds(columns)
    terms = [term for one in filters for term in _terms(one, kinds)]
    exact = [term for term in terms if not pa.types.is_floating(kinds[term.column].type)]
    rows = (Predicate([exact]),) if exact else ()
    return Pruning(columns, (Predicate([terms]),) if terms else (), rows)


def _kinds(columns: Columns) -> dict[str, _Kind]:
    schema = columns.definition.schema
    kinds = {}
    for field in columns.fields():
        nanoseconds = field.name in columns.data and is_nanoseconds(schema.field(field.name).type)
        zone = schema.field(field.name).type.tz if nanoseconds else None
        if not pa.types.is_nested(field.type):
            kinds[field.name] = _Kind(field.type, nanoseconds, zone)
    return kinds


def _terms(filter_: Filter, kinds: dict[str, _Kind]) -> list[Term]:
    """Terms that are true wherever the filter is; none if it is not understood."""
    negated = isinstance(filter_, Not)
    inner: Any = filter_.child if isinstance(filter_, Not) else filter_
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    kind = kinds.get(path[0]) if len(path) == 1 else None
    if kind is None:
        return []
    column = path[0]
    if isinstance(inner, IsNull | IsNotNull):
        is_null = isinstance(inner, IsNull) != negated
        return [Term(column, "is null" if is_null else "is not null", (), False)]
    if isinstance(inner, EqualNullSafe) and inner.value is None:
        return [] if negated else [Term(column, "is null", (), False)]
    if isinstance(inner, In):
        return _listed(column, kind, inner, negated)
    if negated:
        return _different(column, kind, inner) if isinstance(inner, EqualTo) else []
    if isinstance(inner, StringStartsWith):
        return _beginning(column, inner.value)
    operator = "=" if isinstance(inner, EqualNullSafe) else _COMPARISONS.get(type(inner))
    return [] if operator is None else _compared(column, kind, operator, inner.value)


def _compared(column: str, kind: _Kind, operator: str, value: Any) -> list[Term]:
    if kind.nanoseconds:
        return _in_nanoseconds(column, kind, operator, value)
    scalar = _scalar(kind.type, value)
    return [] if scalar is None else [Term(column, operator, (scalar,), False)]


def _different(column: str, kind: _Kind, inner: EqualTo) -> list[Term]:
    scalar = None if kind.nanoseconds else _scalar(kind.type, inner.value)
    return [] if scalar is None else [Term(column, "!=", (scalar,), False)]


def _listed(column: str, kind: _Kind, inner: In, negated: bool) -> list[Term]:
    has_null = any(value is None for value in inner.value)
    found = [_scalar(kind.type, value) for value in inner.value if value is not None]
    scalars = [scalar for scalar in found if scalar is not None]
    if kind.nanoseconds or len(scalars) < len(found):
        return []
    values = pa.array(scalars, kind.type)
    return [Term(column, "not in" if negated else "in", values, has_null)]


def _beginning(column: str, prefix: str) -> list[Term]:
    if not prefix:
        return [Term(column, "is not null", (), False)]
    terms = [Term(column, ">=", (pa.scalar(prefix),), False)]
    if prefix[-1] < _LAST_PLAIN:
        behind = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        terms.append(Term(column, "<", (pa.scalar(behind),), False))
    return terms


def _in_nanoseconds(column: str, kind: _Kind, operator: str, value: Any) -> list[Term]:
    scalar = _scalar(pa.timestamp("us", kind.zone and "UTC"), value)
    if scalar is None:
        return []
    first, behind = int(scalar.value) * 1000, (int(scalar.value) + 1) * 1000
    bounds = {
        "=": ((">=", first), ("<", behind)),
        ">": ((">=", behind),),
        ">=": ((">=", first),),
        "<": (("<", first),),
        "<=": (("<", behind),),
    }
    if not -(2**63) <= first <= behind < 2**63:
        return []
    return [Term(column, op, (pa.scalar(at, pa.int64()),), False) for op, at in bounds[operator]]


def _scalar(kind: pa.DataType, value: Any) -> pa.Scalar | None:
    """The value in the column's type; None if the type cannot hold it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError):
        return None
