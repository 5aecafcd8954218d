"""A predicate: which rows match, and which partitions, files and row groups cannot match. Pure.

A disjunction of conjunctions of comparisons. Comparisons with null are never true, including ``!=``
and ``not in``; only ``is null`` and ``is not null`` look at nulls.

Pruning keeps in doubt: an unknown bound prunes nothing, and what remains is tested row by row
(tests/persist/predicate/test_predicate.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.manifest import ColumnStats
from persist.parquet.stats import stat_value
from persist.predicate.values import TERM_BYTES, Points, ValueSet, bytes_of

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
OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
"""What holds for each value but NaN if the first does not."""
NOT_ORDERS = tuple(f"not {operator}" for operator in OPPOSITE)
"""True for each value for which the comparison is false, NaN included."""


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison with its values, which are of the column's type."""

    column: str
    operator: str
    values: Sequence[pa.Scalar]
    """Non-null values: one for a comparison, an array for a list, none for a null test."""
    has_null: bool
    """Whether a null was among the values."""
    _sets: list[ValueSet] = field(default_factory=list, init=False, repr=False, compare=False)
    """The values of a list for look-ups, made when first needed."""

    @property
    def nbytes(self) -> int:
        """About the bytes in memory."""
        return TERM_BYTES + bytes_of(self.values)

    @property
    def columns(self) -> tuple[str]:
        return (self.column,)

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """True if a row matches; null counts as false."""
        array = batch.column(self.column)
        if self.operator == "is null":
            return array.is_null()
        if self.operator == "is not null":
            return array.is_valid()
        if self.operator not in LISTS:
            return self._compared(array)
        if self.operator == "not in" and self.has_null:
            return _none(array)
        found = self._set().holds(array)
        if self.operator == "in":
            return found
        return pc.and_(pc.invert(found), array.is_valid())

    def _compared(self, array: pa.Array) -> pa.Array:
        if self.has_null:
            return _none(array)
        found = COMPARISONS[self.operator.removeprefix("not ")](array, self.values[0])
        return pc.invert(found) if self.operator in NOT_ORDERS else found

    def _set(self) -> ValueSet:
        # Two threads may make the same set at once, which is harmless.
        if not self._sets:
            self._sets.append(ValueSet(self.values))
        return self._sets[0]

    def may_match(self, bounds: Bounds, rows: int) -> bool:
        """Whether rows within these bounds can match; a column without bounds can be anything."""
        if self.column not in bounds:
            return True
        stats = bounds[self.column]
        if self.operator == "is null":
            return stats.nulls != 0
        if stats.nulls is not None and stats.nulls >= rows:
            return False
        if self.operator == "is not null":
            return True
        if self.operator == "in":
            return self._set().may_lie_in(stats.min, stats.max)
        if self.has_null:
            return False
        if self.operator == "not in":
            return True
        return self._compares(stats, self.values[0])

    def _compares(self, stats: ColumnStats, scalar: pa.Scalar) -> bool:
        value = _comparable(scalar)
        low, high = _ordered(stats.min, scalar), _ordered(stats.max, scalar)
        if value is None:
            return True
        match self.operator:
            case "=":
                return (low is None or low <= value) and (high is None or value <= high)
            case "<":
                return low is None or low < value
            case "<=":
                return low is None or low <= value
            case ">":
                return high is None or high > value
            case ">=":
                return high is None or high >= value
        # Bounds may leave out NaN, which is not equal to anything and meets no comparison.
        if pa.types.is_floating(scalar.type):
            return True
        return low is None or high is None or not low == high == value


def _none(array: pa.Array) -> pa.Array:
    return pa.array([False] * len(array), pa.bool_())


Condition = Term | Points
FREED = 500
"""The number of conjunctions freed at a time."""


def _no_pause() -> None: ...


class Predicate:
    """A parsed filter over one schema; without conjunctions it matches everything."""

    def __init__(
        self, conjunctions: Sequence[Sequence[Condition]], pause: Callable[[], None] = _no_pause
    ) -> None:
        """``pause`` is called between two conjunctions; its exception ends the construction."""
        self._conjunctions: list[tuple[Condition, ...]] = []
        self.nbytes = 0
        """About the bytes in memory of its values and look-up tables."""
        columns: dict[str, None] = {}
        for terms in conjunctions:
            pause()
            self._conjunctions.append(tuple(terms))
            for term in terms:
                self.nbytes += term.nbytes
                columns.update(dict.fromkeys(term.columns))
        self.columns = tuple(columns)
        """The columns needed to decide, each once."""

    def __del__(self) -> None:
        # Freeing 50,000 of them at once would block all other threads for 20 ms.
        while self._conjunctions:
            del self._conjunctions[-FREED:]

    @property
    def conjunctions(self) -> tuple[tuple[Condition, ...], ...]:
        """A row matches if it meets all conditions of one of them."""
        return tuple(self._conjunctions)

    def mask(self, batch: pa.RecordBatch, pause: Callable[[], None] = _no_pause) -> pa.Array | None:
        """True if a row matches; None if all rows do.

        Args:
            pause: called between two comparisons; its exception ends the evaluation.
        """
        mask = None
        for terms in self._conjunctions:
            if not terms:
                return None
            both = None
            for term in terms:
                pause()
                found = term.mask(batch)
                if found.null_count:
                    found = pc.fill_null(found, False)
                both = found if both is None else pc.and_(both, found)
            mask = both if mask is None else pc.or_(mask, both)
        return None if mask is None or mask.true_count == len(mask) else mask

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that match; the batch itself if all do."""
        mask = self.mask(batch)
        return batch if mask is None else batch.filter(mask)

    def may_match(self, bounds: Bounds, rows: int, pause: Callable[[], None] = _no_pause) -> bool:
        """Whether rows within these bounds can match; a column without bounds can be anything.

        Args:
            pause: as in :meth:`mask`.
        """
        for terms in self._conjunctions:
            pause()
            if all(term.may_match(bounds, rows) for term in terms):
                return True
        return not self._conjunctions


def _comparable(scalar: pa.Scalar) -> Any:
    if pa.types.is_decimal(scalar.type):
        return scalar.as_py()
    if pa.types.is_binary(scalar.type):
        return None
    return stat_value(scalar)


def _ordered(bound: Any, value: pa.Scalar) -> Any:
    """A bound in the domain of a value; None if it is unknown or not comparable."""
    if bound is None:
        return bound
    if pa.types.is_decimal(value.type):
        return Decimal(str(bound))
    sample = _comparable(value)
    if isinstance(sample, str) != isinstance(bound, str):
        return None
    return bound
