"""The text in string views is counted without reading it, as all views may show the same text."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from ingester.schema.expansion import shown_bytes

TEXT = b"x" * 100_000


def _views(times: int, nulls: Any = None) -> pa.Array:
    view = struct.pack("<i4sii", len(TEXT), TEXT[:4], 0, 0)
    buffers = [nulls, pa.py_buffer(view * times), pa.py_buffer(TEXT)]
    return pa.Array.from_buffers(pa.string_view(), times, buffers)


NESTED = {
    "itself": lambda views: views,
    "struct": lambda views: pa.StructArray.from_arrays([views], ["a"]),
    "list": lambda views: pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), views),
    "list view": lambda views: pa.ListViewArray.from_arrays(
        pa.array([0], pa.int32()), pa.array([0], pa.int32()), views
    ),
    "map": lambda views: pa.MapArray.from_arrays(
        pa.array([0, 1], pa.int32()), pa.nulls(len(views), pa.int8()).fill_null(1), views
    ),
    "dictionary": lambda views: pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), views),
    "union": lambda views: pa.UnionArray.from_sparse(
        pa.array([0] * len(views), pa.int8()), [views]
    ),
}


@pytest.mark.parametrize("nest", NESTED.values(), ids=NESTED)
def test_what_is_shown_is_counted_at_any_depth(nest: Any) -> None:
    assert shown_bytes(nest(_views(30))) == 30 * len(TEXT)


def test_a_null_shows_nothing_and_other_types_do_not() -> None:
    assert shown_bytes(_views(8, pa.py_buffer(b"\x0f"))) == 4 * len(TEXT)
    assert shown_bytes(pa.array(["abc"] * 9)) == 0
