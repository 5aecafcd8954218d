"""Many values of one column, looked up: by hash for rows, by binary search for bounds.

Law of this file: pure. A value that the column's type cannot hold is no row's, and is left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

TERM_BYTES = 256
"""The bytes of a comparison with one value, about."""
_COPIES = 3
"""Values are there as they came, by hash, and in order."""


class ValueSet:
    """The different values of a list, as a column's type has them.

    Args:
        values: non-null, of any types; an array where all are of one.
        kind: of the column.
    """

    def __init__(self, values: Sequence[pa.Scalar], kind: pa.DataType) -> None:
        found = pc.unique(fitted(values, kind).drop_null())
        # A list of NaN has no bounds: nothing that is known of a file says whether it has some.
        unordered = pa.types.is_floating(kind) and pc.any(pc.is_nan(found)).as_py()
        self._ordered = None if unordered else ordered(found)
        """What bounds are compared with, ascending; None where they say nothing."""
        if self._ordered is not None:
            self._ordered = self._ordered.take(pc.array_sort_indices(self._ordered))
        if pa.types.is_floating(kind) and pc.any(pc.equal(found, pa.scalar(0.0, kind))).as_py():
            # Found by hash, where the two zeros differ; as values they are equal.
            found = pa.concat_arrays([found, pa.array([0.0, -0.0]).cast(kind)])
        self._values = found

    def holds(self, array: pa.Array) -> pa.Array:
        """True where a value of the array is among these; false for nulls."""
        return pc.is_in(array, value_set=self._values)

    def may_lie_in(self, low: Any, high: Any) -> bool:
        """Whether one of these may lie within these bounds; None is an unknown one."""
        values = self._ordered
        if values is None:
            return True
        low, high = bound_among(values, low), bound_among(values, high)
        numbers = range(len(values))
        first = 0 if low is None else bisect_left(numbers, low, key=lambda n: values[n].as_py())
        return first < len(values) and (high is None or bool(values[first].as_py() <= high))


def bytes_of(values: Sequence[pa.Scalar]) -> int:
    """The bytes in memory, about, of the values of a comparison and of the sets of them."""
    if isinstance(values, pa.Array):
        return int(values.nbytes) * _COPIES
    return len(values) * TERM_BYTES


def fitted(values: Sequence[pa.Scalar], kind: pa.DataType) -> pa.Array:
    """The values in a column's type; null for each that the type cannot hold."""
    if isinstance(values, pa.Array):
        if values.type == kind:
            return values
        fitting = _cast(values, kind)
        if fitting is not None:
            return fitting
    return pa.array([_cast_one(value, kind) for value in values], kind)


def ordered(values: pa.Array) -> pa.Array | None:
    """The values as bounds of files have them; None for a type whose bounds are not compared."""
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
    """A bound in the domain of some :func:`ordered` values; None where it is unknown."""
    if bound is None:
        return None
    if pa.types.is_decimal(values.type):
        return Decimal(str(bound))
    return None if pa.types.is_string(values.type) != isinstance(bound, str) else bound


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """All values in another type; None where one does not fit, and is to be found."""
    try:
        fitting = values.cast(kind)
        # Decimals take fractions by rounding them.
        return fitting if fitting.cast(values.type).equals(values) else None
    except pa.ArrowInvalid:
        return None


def _cast_one(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar:
    try:
        fitting = value.cast(kind)
        if fitting.cast(value.type).equals(value):
            return fitting
    except pa.ArrowInvalid:
        pass
    return pa.scalar(None, kind)
