"""Many alternatives that each name one value of the same few columns: ``(a, b)`` among these pairs.

    a ─▶ number of its value ─┐
    b ─▶ number of its value ─┴▶ number of the pair ─▶ is it one of these?      (and so on)

Law of this file: pure. A row is looked up once, however many alternatives there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.manifest import ColumnStats
from persist.predicate.values import TERM_BYTES, bound_among, bytes_of, fitted, ordered


@dataclass(frozen=True, slots=True)
class Points:
    """Rows of values, one of which a matching row has; each column is compared by ``=``.

    Attributes:
        values: Of each column, non-null, as many for each.
    """

    columns: tuple[str, ...]
    values: tuple[Sequence[pa.Scalar], ...]
    _tables: dict[tuple[pa.DataType, ...], _Table] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def nbytes(self) -> int:
        """The bytes in memory, about."""
        return TERM_BYTES + sum(map(bytes_of, self.values))

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """True where a row matches; null counts as false."""
        arrays = [batch.column(name) for name in self.columns]
        return self._table(tuple(array.type for array in arrays)).holds(arrays)

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

    def with_values(self, change: Callable[[str, pa.Scalar], pa.Scalar]) -> Points:
        """The same points with each value of a column changed."""
        changed = []
        for name, values in zip(self.columns, self.values, strict=True):
            made = [change(name, value) for value in values]
            changed.append(pa.array(made, made[0].type) if made else values)
        return Points(self.columns, tuple(changed))

    def _table(self, kinds: tuple[pa.DataType, ...]) -> _Table:
        if kinds not in self._tables:
            pairs = zip(self.values, kinds, strict=True)
            self._tables[kinds] = _Table([fitted(values, kind) for values, kind in pairs])
        return self._tables[kinds]


class _Table:
    """Points as the columns' types have them."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self._columns = [pc.unique(_alike(column).drop_null()) for column in columns]
        self._prefixes: list[pa.Array] = []
        """The different numbers of the first two columns' values, of the first three, and so on."""
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
    """The values as equal ones are found by hash: there is one zero, and NaN equals nothing."""
    if not pa.types.is_floating(column.type):
        return column
    plain = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(plain), pa.scalar(None, column.type), plain)


def _within(values: Sequence[pa.Scalar], stats: ColumnStats) -> pa.Array | None:
    """True for each of the values that lies within bounds; None where they say nothing."""
    array = ordered(values) if isinstance(values, pa.Array) else None
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
