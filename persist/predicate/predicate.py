"""A predicate: which rows match, and which partitions, files and row groups cannot have any.

A disjunction of conjunctions of comparisons. Comparisons with null are never true, for ``!=`` and
``not in`` too; only ``is null`` and ``is not null`` look at nulls.

Law of this file: pure. Pruning errs towards keeping: an unknown bound prunes nothing. What survives
is always looked at row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.manifest import ColumnStats
from persist.parquet.stats import stat_value

Bounds = Mapping[str, ColumnStats]

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
LISTS = ("in", "not in")
NULL_TESTS = ("is null", "is not null")


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison with its values already of the column's type."""

    column: str
    operator: str
    values: tuple[pa.Scalar, ...]
    """Non-null values; one for a comparison, any number for a list, none for a null test."""
    has_null: bool
    """Whether a null stood among the values."""

    def mask(self, array: pa.Array) -> pa.Array:
        """True where a row matches; null counts as false."""
        if self.operator == "is null":
            return array.is_null()
        if self.operator == "is not null":
            return array.is_valid()
        if self.operator in COMPARISONS:
            if self.has_null:
                return _none(array)
            return self._compared(array)
        if self.operator == "not in" and self.has_null:
            return _none(array)
        castable = _castable(self.values, array.type)
        found = pc.is_in(array, value_set=castable)
        if self.operator == "in":
            return pc.and_(found, array.is_valid())
        return pc.and_(pc.invert(found), array.is_valid())

    def _compared(self, array: pa.Array) -> pa.Array:
        compare = COMPARISONS[self.operator]
        try:
            return compare(array, self.values[0])
        except pa.ArrowInvalid:
            # Integers beyond 2^53 beside a fraction: doubles are near enough to order them.
            return compare(array.cast(pa.float64(), safe=False), self.values[0])

    def may_match(self, stats: ColumnStats, rows: int) -> bool:
        """Whether rows within these bounds can match."""
        if self.operator == "is null":
            return stats.nulls != 0
        if stats.nulls is not None and stats.nulls >= rows:
            return False
        if self.operator == "is not null":
            return True
        if self.has_null and self.operator != "in":
            return False
        low, high = _ordered(stats.min, self.values), _ordered(stats.max, self.values)
        values = [_comparable(value) for value in self.values]
        if any(value is None for value in values):
            return True
        match self.operator:
            case "=" | "in":
                return any(
                    (low is None or low <= value) and (high is None or value <= high)
                    for value in values
                )
            case "<":
                return low is None or low < values[0]
            case "<=":
                return low is None or low <= values[0]
            case ">":
                return high is None or high > values[0]
            case ">=":
                return high is None or high >= values[0]
            case "!=":
                # Bounds leave NaN out, which is not equal to anything.
                if pa.types.is_floating(self.values[0].type):
                    return True
                return low is None or high is None or not low == high == values[0]
        return True


def _none(array: pa.Array) -> pa.Array:
    return pa.array([False] * len(array), pa.bool_())


def _castable(values: Sequence[pa.Scalar], kind: pa.DataType) -> pa.Array:
    """The values that the column's type can hold; no row has any of the others."""
    held = []
    for value in values:
        try:
            fitting = value.cast(kind)
            # Decimals take fractions by rounding them.
            if not fitting.cast(value.type).equals(value):
                continue
        except pa.ArrowInvalid:
            continue
        held.append(fitting)
        if pa.types.is_floating(kind) and held[-1].as_py() == 0:
            # Found by hash, where the two zeros differ; as values they are equal.
            held += [pa.scalar(0.0, kind), pa.scalar(-0.0, kind)]
    return pa.array(held, kind)


class Predicate:
    """A parsed filter over one schema; without conjunctions it matches everything."""

    def __init__(self, conjunctions: Sequence[Sequence[Term]]) -> None:
        self.conjunctions = tuple(tuple(terms) for terms in conjunctions)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that have to be read to decide, each once."""
        return tuple(dict.fromkeys(t.column for terms in self.conjunctions for t in terms))

    def mask(self, batch: pa.RecordBatch) -> pa.Array | None:
        """True where a row matches; None when all rows do."""
        mask = None
        for terms in self.conjunctions:
            if not terms:
                return None
            both = None
            for term in terms:
                found = term.mask(batch.column(term.column))
                if found.null_count:
                    found = pc.fill_null(found, False)
                both = found if both is None else pc.and_(both, found)
            mask = both if mask is None else pc.or_(mask, both)
        return None if mask is None or mask.true_count == len(mask) else mask

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that match; the batch itself when all do."""
        mask = self.mask(batch)
        return batch if mask is None else batch.filter(mask)

    def may_match(self, bounds: Bounds, rows: int) -> bool:
        """Whether rows within these bounds can match; a column without bounds can be anything."""
        return not self.conjunctions or any(
            all(t.column not in bounds or t.may_match(bounds[t.column], rows) for t in terms)
            for terms in self.conjunctions
        )


def _comparable(scalar: pa.Scalar) -> Any:
    if pa.types.is_decimal(scalar.type):
        return scalar.as_py()
    if pa.types.is_binary(scalar.type):
        return None
    return stat_value(scalar)


def _ordered(bound: Any, values: Sequence[pa.Scalar]) -> Any:
    """A bound in the domain of the values; None when it is unknown or not comparable."""
    if bound is None or not values:
        return bound
    if pa.types.is_decimal(values[0].type):
        return Decimal(str(bound))
    sample = _comparable(values[0])
    if isinstance(sample, str) != isinstance(bound, str):
        return None
    return bound
