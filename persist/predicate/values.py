"""Looks up many values at once: of one column, or tuples of several columns. Pure.

Rows are looked up by hash, bounds by binary search. Values are of the columns' types. Tuples are
numbered column by column::

    a ─▶ number of its value ─┐
    b ─▶ number of its value ─┴▶ number of the pair ─▶ is it in the list?      (and so on)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.manifest import ColumnStats

TERM_BYTES = 256
"""About the bytes of a comparison with one value."""
_COPIES = 3
"""Values are held as given, by hash, and in order."""


class ValueSet:
    """The distinct values of a list, which are of the column's type and not null."""

    def __init__(self, values: pa.Array) -> None:
        found, kind = pc.unique(values), values.type
        self._ordered = ordered(found)
        """The values that bounds are compared with, ascending; None if bounds do not help."""
        if self._ordered is not None:
            self._ordered = self._ordered.take(pc.array_sort_indices(self._ordered))
        if pa.types.is_floating(kind) and pc.any(pc.equal(found, pa.scalar(0.0, kind))).as_py():
            # The two zeros are equal but have different hashes.
            found = pa.concat_arrays([found, pa.array([0.0, -0.0]).cast(kind)])
        self._values = found

    def holds(self, array: pa.Array) -> pa.Array:
        """True if a value of the array is in the set; false for nulls."""
        return pc.is_in(array, value_set=self._values)

    def may_lie_in(self, low: Any, high: Any) -> bool:
        """Whether one of the values may lie within these bounds; None is unknown."""
        values = self._ordered
        if values is None:
            return True
        low, high = bound_among(values, low), bound_among(values, high)
        numbers = range(len(values))
        first = 0 if low is None else bisect_left(numbers, low, key=lambda n: values[n].as_py())
        return first < len(values) and (high is None or bool(values[first].as_py() <= high))


def bytes_of(values: Sequence[pa.Scalar]) -> int:
    """About the bytes in memory of the values of a comparison and their sets."""
    if isinstance(values, pa.Array):
        return int(values.nbytes) * _COPIES
    return len(values) * TERM_BYTES


def ordered(values: pa.Array) -> pa.Array | None:
    """The values in the form of file bounds; None for a type whose bounds are not compared."""
    kind, t = values.type, pa.types
    if t.is_timestamp(kind):
        return values.cast(pa.int64())
    if t.is_date32(kind):
        return values.cast(pa.int32())
    if t.is_boolean(kind):
        return values.cast(pa.int8())
    if t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind) or t.is_string(kind):
        return values
    return None


def bound_among(values: pa.Array, bound: Any) -> Any:
    """A bound in the domain of some :func:`ordered` values; None if it is unknown."""
    if bound is None:
        return None
    if pa.types.is_decimal(values.type):
        return Decimal(str(bound))
    return None if pa.types.is_string(values.type) != isinstance(bound, str) else bound


@dataclass(frozen=True, slots=True)
class Points:
    """Tuples of values, one of which a matching row has; each column is compared by ``=``.

    Attributes:
        values: Of each column, in its type, non-null, all of one length.
    """

    columns: tuple[str, ...]
    values: tuple[pa.Array, ...]
    _tables: list[_PointTable] = field(default_factory=list, init=False, repr=False, compare=False)
    """The points for look-ups, made when first needed."""

    @property
    def nbytes(self) -> int:
        """About the bytes in memory."""
        return TERM_BYTES + sum(map(bytes_of, self.values))

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """True if a row matches; null counts as false."""
        # Two threads may make the same table at once, which is harmless.
        if not self._tables:
            self._tables.append(_PointTable(self.values))
        return self._tables[0].holds([batch.column(name) for name in self.columns])

    def may_match(self, bounds: Mapping[str, ColumnStats], rows: int) -> bool:
        """Whether rows within these bounds can match."""
        found = None
        for name, values in zip(self.columns, self.values, strict=True):
            if name not in bounds:
                continue
            stats = bounds[name]
            if stats.nulls is not None and stats.nulls >= rows:
                return False
            within = _within(values, stats)
            if within is not None:
                found = within if found is None else pc.and_(found, within)
        return found is None or bool(pc.any(found).as_py())

    def with_values(self, change: Callable[[str, pa.Array], pa.Array]) -> Points:
        """The same points with the values of each column changed."""
        pairs = zip(self.columns, self.values, strict=True)
        return Points(self.columns, tuple(change(name, values) for name, values in pairs))


class _PointTable:
    """The numbers of the values of points."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self._columns = [pc.unique(_alike(column).drop_null()) for column in columns]
        self._prefixes: list[pa.Array] = []
        """The distinct numbers of the first two columns' values, of the first three, and so on."""
        number = pc.index_in(_alike(columns[0]), self._columns[0])
        for column, values in zip(columns[1:], self._columns[1:], strict=True):
            numbers = _joined(number, _alike(column), values)
            self._prefixes.append(pc.unique(numbers.drop_null()))
            number = pc.index_in(numbers, self._prefixes[-1])

    def holds(self, columns: Sequence[pa.Array]) -> pa.Array:
        number = pc.index_in(_alike(columns[0]), self._columns[0])
        rest = zip(columns[1:], self._columns[1:], self._prefixes, strict=True)
        for column, values, prefixes in rest:
            number = pc.index_in(_joined(number, _alike(column), values), prefixes)
        return number.is_valid()


def _joined(number: pa.Array, column: pa.Array, values: pa.Array) -> pa.Array:
    """A number for each pair of the number so far and the number of a column's value."""
    first = pc.multiply(number.cast(pa.int64()), pa.scalar(max(1, len(values)), pa.int64()))
    return pc.add(first, pc.index_in(column, values).cast(pa.int64()))


def _alike(column: pa.Array) -> pa.Array:
    """The values so that equal ones have equal hashes: one zero, and NaN equals nothing."""
    if not pa.types.is_floating(column.type):
        return column
    plain = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(plain), pa.scalar(None, column.type), plain)


def _within(values: pa.Array, stats: ColumnStats) -> pa.Array | None:
    """True for each value within bounds; None if the bounds do not help."""
    array = ordered(values)
    if array is None:
        return None
    found = None
    for bound, compare in ((stats.min, pc.greater_equal), (stats.max, pc.less_equal)):
        limit: Any = bound_among(array, bound)
        if limit is None:
            continue
        try:
            within = compare(array, pa.scalar(limit, array.type))
        except (pa.ArrowException, OverflowError):
            return None
        found = within if found is None else pc.and_(found, within)
    return found
