"""Which of two columns' values are the same, value by value, whatever the columns' type.

Law of this file: pure. Two nulls are the same, and so are two NaN of the same bits; 0.0 and -0.0
are not. Nested values are the same where all in them are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]

_BITS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def same_values(left: pa.Array, right: pa.Array) -> Mask:
    """True where both have the same value; two arrays of one type and length."""
    both = _valid(left) & _valid(right)
    same: Mask = both | (~_valid(left) & ~_valid(right))
    kind = left.type
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            same &= ~both | same_values(left.field(number), right.field(number))
    elif pa.types.is_nested(kind):
        same &= ~both | _same_lists(left, right, both)
    elif not pa.types.is_null(kind):
        if kind in _BITS:
            left, right = left.view(_BITS[kind]), right.view(_BITS[kind])
        equal = pc.fill_null(pc.equal(left, right), False)
        same &= ~both | equal.to_numpy(zero_copy_only=False)
    return same


def _same_lists(left: pa.Array, right: pa.Array, both: Mask) -> Mask:
    """True where both, which are there, have the same items in the same order; maps, too."""
    counts, other = _counts(left), _counts(right)
    same: Mask = both & (counts == other)
    rows = pa.array(np.flatnonzero(same))
    items = same_values(_items(left.take(rows)), _items(right.take(rows)))
    wrong = np.append(0, np.cumsum(~items))
    ends = np.cumsum(counts[same])
    same[same] = wrong[ends] == wrong[ends - counts[same]]
    return same


def _counts(lists: pa.Array) -> Counts:
    if pa.types.is_map(lists.type):
        ends: Counts = np.diff(lists.offsets.to_numpy()).astype(np.int64)
        return ends * _valid(lists)
    counts: Counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return counts.astype(np.int64)


def _items(lists: pa.Array) -> pa.Array:
    """The items of lists none of which is null, one list behind the other."""
    if pa.types.is_map(lists.type):
        # As structs of key and value; `take` has made the offsets begin at 0.
        return pa.StructArray.from_arrays([lists.keys, lists.items], names=["key", "value"])
    return lists.flatten()


def _valid(values: pa.Array) -> Mask:
    found: Mask = pc.is_valid(values).to_numpy(zero_copy_only=False)
    return found
