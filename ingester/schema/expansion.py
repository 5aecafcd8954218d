"""Converting columns to their plain form, at any depth, and computing its size beforehand.

The plain form has no dictionaries, views or extension types. Arrow's casts handle only some of
them: there is no kernel for dictionaries of string views or lists of dictionaries of structs,
and list views with nulls come out invalid. A few bytes can represent many: every row of a
dictionary, view or list may refer to the same large value, and a null column has rows without
bytes.

Columns must have been fully validated, except for :func:`shown_bytes`, because offsets and
indices are followed. Computing the size takes about 8 bytes per row and per inner value. The
conversion changes no value and no null, and creates no Python objects; the result has only what
rows refer to, plus the values of dictionaries and list views once (tests/schema). Pure.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.float64]
"""Bytes of each row. Floats, because the represented size may overflow any integer."""
MOST_VALUES = 1 << 24
"""Limit on values of a nested or encoded column at one level; larger batches are refused unseen."""
_ENCODED = {
    getattr(pa.lib, f"Type_{name}")
    for name in ("DICTIONARY", "STRING_VIEW", "BINARY_VIEW", "LIST_VIEW", "LARGE_LIST_VIEW")
}
"""Types whose values are referred to and may appear in several rows."""
_TEXTS = {
    getattr(pa.lib, f"Type_{size}{name}{view}")
    for name in ("STRING", "BINARY")
    for size, view in (("", ""), ("LARGE_", ""), ("", "_VIEW"))
}
"""Types whose values have a length of their own."""
_OFFSET_BYTES = 4.0
_NULL_BYTES = 8.0
_VIEW_BYTES = 16


class _TooMany(Exception):
    """More than :data:`MOST_VALUES` values."""


def plain_bytes(column: pa.Array, kept: pa.DataType) -> float:
    """Return the approximate size of ``column`` in the table's type.

    Infinite if there are more inner values than can be examined.
    """
    rows = len(column)
    while isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if not expands(column.type):
        return float(max(column.get_total_buffer_size(), rows * fixed_bytes(kept)))
    if pa.types.is_null(column.type):
        return rows * max(_NULL_BYTES, fixed_bytes(kept))
    try:
        return float(_row_bytes(column).sum()) + _whole_bytes(column)
    except _TooMany:
        return float("inf")


def shows_text(kind: pa.DataType) -> bool:
    """Return whether values of this type, or inside them, are string views."""
    if isinstance(kind, pa.BaseExtensionType):
        return shows_text(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return shows_text(kind.value_type)
    return pa.types.is_string_view(kind) or any(
        shows_text(kind.field(i).type) for i in range(kind.num_fields)
    )


def shown_bytes(array: Any) -> float:
    """Return the bytes of text behind string views, at any depth, even if no row refers to them.

    Arrow's full validation reads the text of each view, and all views may show the same text.
    The column must have been validated, but not fully.
    """
    kind, t = array.type, pa.types
    if not shows_text(kind):
        return 0.0
    if isinstance(kind, pa.BaseExtensionType):
        return shown_bytes(array.storage)
    if t.is_string_view(kind):
        return float(_lengths(array).clip(0).sum())
    if t.is_dictionary(kind):
        return shown_bytes(array.dictionary)
    if t.is_struct(kind) or t.is_union(kind):
        children = [array.field(i) for i in range(kind.num_fields)]
    else:
        children = [array.keys, array.items] if t.is_map(kind) else [array.values]
    return sum(map(shown_bytes, children))


def expands(kind: pa.DataType) -> bool:
    """Return whether values of this type may be larger in plain form."""
    t = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return expands(kind.storage_type)
    return (
        kind.id in _ENCODED
        or t.is_null(kind)
        or t.is_fixed_size_list(kind)
        or any(expands(kind.field(i).type) for i in range(kind.num_fields))
    )


def fixed_bytes(kind: pa.DataType) -> float:
    """Bytes of each row regardless of its value, nulls included."""
    if pa.types.is_struct(kind):
        return sum(fixed_bytes(kind.field(i).type) for i in range(kind.num_fields))
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return _OFFSET_BYTES


def _row_bytes(array: Any) -> Bytes:
    """Bytes of each row's value in plain form."""
    kind, t = array.type, pa.types
    if len(array) > MOST_VALUES:
        raise _TooMany
    if isinstance(kind, pa.BaseExtensionType):
        return _row_bytes(array.storage)
    if t.is_dictionary(kind):
        if not len(array.dictionary):
            return np.zeros(len(array))
        codes = _integers(pc.fill_null(array.indices, 0))
        return _row_bytes(array.dictionary).take(codes)
    if t.is_struct(kind):
        total: Bytes = np.zeros(len(array))
        for child in array.flatten():
            total += _row_bytes(child)
        return total
    if kind.id in _TEXTS:
        return _lengths(array) + _OFFSET_BYTES
    if t.is_null(kind) or not kind.num_fields:
        return np.full(len(array), _NULL_BYTES if t.is_null(kind) else fixed_bytes(kind))
    starts, stops = _ranges(array)
    children = [array.keys, array.items] if t.is_map(kind) else [array.values]
    rows: Bytes = np.full(len(array), _OFFSET_BYTES)
    for child in children:
        rows += _range_bytes(child, starts, stops)
    return rows


def _whole_bytes(array: Any) -> float:
    """Bytes of values that are converted whole, whatever rows refer to."""
    kind, t = array.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _whole_bytes(array.storage)
    if t.is_dictionary(kind) or t.is_list_view(kind) or t.is_large_list_view(kind):
        values = array.dictionary if t.is_dictionary(kind) else array.values
        if is_plain(values.type):
            return 0.0
        return float(_row_bytes(values).sum()) + _whole_bytes(values)
    if not kind.num_fields:
        return 0.0
    if t.is_struct(kind):
        children = [array.field(i) for i in range(kind.num_fields)]
    else:
        children = [array.keys, array.items] if t.is_map(kind) else [array.values]
    return sum(map(_whole_bytes, children))


def _lengths(array: Any) -> Bytes:
    """Bytes of each string; 0 for nulls."""
    if not (pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type)):
        return _integers(pc.fill_null(pc.binary_length(array), 0)).astype(np.float64)
    # Views have no such kernel: 16 bytes each, starting with the length.
    views = memoryview(array.buffers()[1] or b"")
    words = np.frombuffer(views[: len(views) // 4 * 4], "<i4")  # the buffer may be longer
    lengths = words[array.offset * 4 : (array.offset + len(array)) * 4 : 4].astype(np.float64)
    found: Bytes = lengths * array.is_valid().to_numpy(zero_copy_only=False)
    return found


def _ranges(array: Any) -> tuple[Integers, Integers]:
    """Return where the inner values of each list start and stop."""
    kind, t = array.type, pa.types
    if t.is_fixed_size_list(kind):
        starts = (np.arange(len(array), dtype=np.int64) + array.offset) * kind.list_size
        return starts, starts + kind.list_size
    offsets = _integers(array.offsets)
    if t.is_list_view(kind) or t.is_large_list_view(kind):
        return offsets, offsets + _integers(array.sizes)
    return offsets[:-1], offsets[1:]


def _range_bytes(child: Any, starts: Integers, stops: Integers) -> Bytes:
    counts = (stops - starts).astype(np.float64)
    if pa.types.is_null(child.type):
        return counts * _NULL_BYTES
    if not child.type.num_fields and child.type.id not in _TEXTS and not expands(child.type):
        return counts * fixed_bytes(child.type)
    upto = np.concatenate(([0.0], np.cumsum(_row_bytes(child))))
    last = len(child)
    found: Bytes = upto[np.clip(stops, 0, last)] - upto[np.clip(starts, 0, last)]
    return found


def _integers(array: pa.Array) -> Integers:
    found: Integers = array.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def is_plain(kind: pa.DataType) -> bool:
    """Return whether :func:`plain` would do nothing for this type."""
    if isinstance(kind, pa.BaseExtensionType) or kind.id in _ENCODED:
        return False
    return all(is_plain(kind.field(i).type) for i in range(kind.num_fields))


def plain(array: Any) -> Any:
    """Return the same values in plain form.

    Rebuilt lists are large lists.
    """
    kind, t = array.type, pa.types
    if is_plain(kind):
        return array
    if isinstance(kind, pa.Bool8Type):
        return array.storage.cast(pa.bool_())
    if isinstance(kind, pa.BaseExtensionType):
        return plain(array.storage)
    if t.is_dictionary(kind):
        return plain(array.dictionary).take(array.indices)
    if t.is_string_view(kind):
        return _with_empty_nulls(array).cast(pa.string())
    if t.is_binary_view(kind):
        return _with_empty_nulls(array).cast(pa.binary())
    if t.is_struct(kind):
        # Flattened, so that values under a null of the struct are null as well.
        fields = [plain(field) for field in array.flatten()]
        names = [kind.field(i).name for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, names, mask=array.is_null())
    if t.is_list_view(kind) or t.is_large_list_view(kind):
        return _from_views(array)
    if t.is_fixed_size_list(kind):
        offsets = (np.arange(len(array) + 1) + array.offset) * kind.list_size
    else:
        offsets = _integers(array.offsets)
    first, length = offsets[0], offsets[-1] - offsets[0]
    if t.is_map(kind):
        keys, items = (plain(each.slice(first, length)) for each in (array.keys, array.items))
        starts = pa.array(offsets - first, pa.int32())
        return pa.MapArray.from_arrays(starts, keys, items, mask=array.is_null())
    return _lists(offsets - first, plain(array.values.slice(first, length)), array)


def _with_empty_nulls(views: Any) -> Any:
    """Replace the views of null strings by empty ones.

    The view of a null may be anything; Arrow's validation ignores it but its cast follows it,
    and a negative length crashed the process (seen with pyarrow 26).
    """
    if not views.null_count:
        return views
    valid, (_, words, *texts) = views.is_valid(), views.buffers()
    found = np.frombuffer(words, np.int64, 2 * len(views), _VIEW_BYTES * views.offset)
    kept = np.where(np.repeat(valid.to_numpy(zero_copy_only=False), 2), found, 0)
    buffers = [valid.buffers()[1], pa.py_buffer(kept), *texts]
    return pa.Array.from_buffers(views.type, len(views), buffers, views.null_count)


def _from_views(array: Any) -> Any:
    """Return values in the order of their lists: views may overlap and skip some."""
    sizes = _integers(array.sizes) * array.is_valid().to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    before = np.repeat(_integers(array.offsets) - offsets[:-1], sizes)
    indices = pa.array(before + np.arange(offsets[-1]))
    return _lists(offsets, plain(array.values).take(indices), array)


def _lists(offsets: Integers, values: Any, of: Any) -> Any:
    starts = pa.array(offsets, pa.int64())
    return pa.LargeListArray.from_arrays(starts, values, mask=of.is_null())
