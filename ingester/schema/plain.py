"""Columns without dictionaries, views and extension types, at any depth.

Arrow's own casts know some of these and not others: a dictionary of string views has no kernel,
nor has a list of dictionaries of structs, and list views with nulls come out invalid.

Law of this file: pure; values and nulls stay what they are, and nothing becomes a Python object.
Only what a row refers to is made, but for values of dictionaries and of list views, which are made
once, whole: as `expansion` reckons before.
Columns must have been validated in full: offsets and indices are followed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Offsets = npt.NDArray[np.int64]
_VIEW_BYTES = 16


def is_plain(kind: pa.DataType) -> bool:
    """Whether :func:`plain` has nothing to do for this type."""
    t = pa.types
    if (
        isinstance(kind, pa.BaseExtensionType)
        or t.is_dictionary(kind)
        or t.is_string_view(kind)
        or t.is_binary_view(kind)
        or t.is_list_view(kind)
        or t.is_large_list_view(kind)
    ):
        return False
    return all(is_plain(kind.field(i).type) for i in range(kind.num_fields))


def plain(array: Any) -> Any:
    """The same values: a dictionary's, an extension type's storage, texts and lists in a row.

    Lists that had to be made anew are large ones.
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
        # Flattened: what lies under a null of the struct is null, too.
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
    """Texts with an empty view in the place of each null.

    Anything may stand there, and Arrow's validation passes over it; its cast follows it all the
    same, and a length below zero ended the whole process (seen with pyarrow 26).
    """
    if not views.null_count:
        return views
    valid, (_, words, *texts) = views.is_valid(), views.buffers()
    found = np.frombuffer(words, np.int64, 2 * len(views), _VIEW_BYTES * views.offset)
    kept = np.where(np.repeat(valid.to_numpy(zero_copy_only=False), 2), found, 0)
    buffers = [valid.buffers()[1], pa.py_buffer(kept), *texts]
    return pa.Array.from_buffers(views.type, len(views), buffers, views.null_count)


def _from_views(array: Any) -> Any:
    """Values in the order of their lists: views may overlap, and leave some out."""
    sizes = _integers(array.sizes) * array.is_valid().to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    before = np.repeat(_integers(array.offsets) - offsets[:-1], sizes)
    indices = pa.array(before + np.arange(offsets[-1]))
    return _lists(offsets, plain(array.values).take(indices), array)


def _lists(offsets: Offsets, values: Any, of: Any) -> Any:
    starts = pa.array(offsets, pa.int64())
    return pa.LargeListArray.from_arrays(starts, values, mask=of.is_null())


def _integers(array: pa.Array) -> Offsets:
    found: Offsets = array.to_numpy(zero_copy_only=False).astype(np.int64)
    return found
