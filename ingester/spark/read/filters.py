"""The filter option, in the language of ``ingester query``: ``host = 'h1' and v > 3``.

    text ─▶ predicate in the table's types ─┬─▶ Pruning: files by the manifest, rows by pyarrow
                                            └─▶ a condition for Spark's own reader

All readers keep the same rows: a comparison with null is never true, and NaN compares false with
everything, whereas Spark itself orders it above all numbers (``tests/spark/test_four_ways.py``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from ingester.spark.errors import RequestRefused
from ingester.spark.read.columns import Columns, is_nanoseconds, quoted
from persist.manifest import Add
from persist.predicate.files import filter_schema, may_have_matches
from persist.predicate.parse import BadFilter, parse_predicate
from persist.predicate.predicate import NOT_ORDERS, Condition, Predicate
from persist.predicate.values import Points
from persist.table import TableDefinition

_EPOCH = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"
_EARLY_DAYS = -25_565
"""1900-01-03, in days since 1970. Earlier dates and times are compared as numbers."""
_EARLY_MICROS = _EARLY_DAYS * 86_400_000_000
_AS_NUMBERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Column], Column]], ...] = (
    (pa.types.is_date32, F.unix_date),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, F.unix_micros),
)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def said(text: str | None, definition: TableDefinition) -> Predicate:
    """The predicate of a filter over the table's columns and its partition columns.

    Without a filter all rows match.

    Raises:
        ValueError: The filter is invalid; the message says where.
    """
    if text is None:
        return Predicate(())
    # Imported here, as executors load this module and need no client.
    from ingester.client.errors import InvalidRequest
    from ingester.client.filter_parser import parse_filter

    try:
        return parse_predicate(parse_filter(text), filter_schema(definition))
    except (InvalidRequest, BadFilter) as exc:
        raise RequestRefused(str(exc)) from exc


def pruning(predicate: Predicate, columns: Columns) -> Pruning:
    """Pruning by a predicate that all wanted rows match."""
    if not predicate.conjunctions:
        return Pruning(columns)
    kinds = {field.name: field.type for field in columns.fields()}
    carried = [[_carried(term, kinds) for term in terms] for terms in predicate.conjunctions]
    return Pruning(columns, (predicate,), (Predicate(carried),))


def condition(predicate: Predicate, columns: Columns) -> Column:
    """The predicate as a Spark condition, over columns in their carrier types."""
    kinds = {field.name: field.type for field in columns.fields()}
    return _any(_all(terms, kinds) for terms in predicate.conjunctions)


def _carried(term: Condition, kinds: dict[str, pa.DataType]) -> Condition:
    """The term with its values in the column's carrier type."""
    if isinstance(term, Points):
        return term.with_values(lambda column, values: _as_carried(values, kinds[column]))
    kind, values = kinds[term.column], term.values
    if isinstance(values, pa.Array):
        return replace(term, values=_as_carried(values, kind))
    return replace(term, values=tuple(_as_carried(value, kind) for value in values))


def _as_carried(values: Any, kind: pa.DataType) -> Any:
    """A value, or an array of them, in a carrier type, which holds each of them."""
    if is_nanoseconds(values.type):
        return values.cast(pa.timestamp("ns")).cast(pa.int64())
    return values if values.type == kind else values.cast(kind)


def _all(terms: Sequence[Condition], kinds: dict[str, pa.DataType]) -> Column:
    made = [_column(_carried(term, kinds)) for term in terms]
    return reduce(Column.__and__, made, F.lit(True))


def _column(term: Condition) -> Column:
    if isinstance(term, Points):
        rows = [*zip(*term.values, strict=True)]
        return _any(_at(term.columns, row) for row in rows) if rows else F.lit(False)
    column = F.col(quoted(term.column))
    match term.operator:
        case "is null":
            return column.isNull()
        case "is not null":
            return column.isNotNull()
    column, literals = _comparable(column, term.values)
    match term.operator:
        case "in":
            return column.isin(literals)
        case "not in" if term.has_null:
            return F.lit(False)
        case "not in":
            return column.isNotNull() & ~column.isin(literals)
    if term.has_null:
        return F.lit(False)
    compared: Column = _COMPARISONS[term.operator.removeprefix("not ")](column, literals[0])
    if pa.types.is_floating(term.values[0].type) and ">" in term.operator:
        compared = compared & ~F.isnan(column)
    return ~compared if term.operator in NOT_ORDERS else compared


def _at(columns: Sequence[str], values: Sequence[pa.Scalar]) -> Column:
    equal = []
    for name, value in zip(columns, values, strict=True):
        column, [literal, *_] = _comparable(F.col(quoted(name)), [value])
        equal.append(column == literal)
    return reduce(Column.__and__, equal)


def _any(conditions: Iterable[Column]) -> Column:
    """Any of the conditions, as a balanced tree: a long chain exceeds Spark's stack."""
    left = list(conditions)
    while len(left) > 1:
        left = [reduce(Column.__or__, left[at : at + 2]) for at in range(0, len(left), 2)]
    return left[0]


def _comparable(column: Column, values: Sequence[pa.Scalar]) -> tuple[Column, list[Column]]:
    """A column and the literals to compare it with; early dates and times as numbers.

    A comparison of a date or time is also made by Spark's Parquet reader, to skip row groups, with
    a java.sql.Date or Timestamp. Before 1900 these depend on the time zone, and those of ten days
    in 1582 do not exist.
    """
    kinds = {value.type for value in values if value.is_valid}
    as_number = next((make for holds, make in _AS_NUMBERS if any(map(holds, kinds))), None)
    if as_number is None or not any(value.is_valid and _is_early(value) for value in values):
        return column, _literals(values)
    return as_number(column), [F.lit(int(value.value)) for value in values if value.is_valid]


def _is_early(value: pa.Scalar) -> bool:
    return bool(value.value < (_EARLY_DAYS if pa.types.is_date32(value.type) else _EARLY_MICROS))


def _literals(values: Sequence[pa.Scalar]) -> list[Column]:
    """The values of a list. Spark looks many of them up by hash, where two zeros differ."""
    floats = [value.as_py() for value in values if pa.types.is_floating(value.type)]
    zeros = (0.0, -0.0) if 0.0 in floats else ()
    return [*map(_literal, values), *map(F.lit, zeros)]


def _literal(value: pa.Scalar) -> Column:
    if pa.types.is_date32(value.type):
        # Not as a Python date, which would become a java.sql.Date: Julian before 1582, and a moment
        # in the time zone of the machine.
        return F.date_from_unix_date(F.lit(int(value.value)))
    if not pa.types.is_timestamp(value.type):
        return F.lit(value.as_py())
    ticks = F.lit(int(value.value))
    if value.type.tz is not None:
        return F.timestamp_micros(ticks)
    return F.timestamp_add("MICROSECOND", ticks, F.expr(_EPOCH))


@dataclass(frozen=True, slots=True)
class Pruning:
    """Predicates that all wanted rows match. A file is skipped only if none of its rows can match.

    Attributes:
        files: Evaluated on bounds of files, in the table's own types.
        rows: Evaluated on bounds of row groups and on rows, in carrier types.
    """

    columns: Columns
    files: tuple[Predicate, ...] = ()
    rows: tuple[Predicate, ...] = ()

    def may_match(self, add: Add) -> bool:
        """Whether the file may have wanted rows."""
        definition = self.columns.definition
        return all(may_have_matches(predicate, definition, add) for predicate in self.files)
