"""Every Arrow encoding of a column is converted to plain values, at any depth."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from ingester.errors import BadRequest
from ingester.schema import Normaliser, table_type
from ingester.schema.expansion import is_plain, plain, plain_bytes
from persist.partitioning import UNPARTITIONED
from persist.table import TableDefinition

LONG = "longer than twelve bytes"
UUIDS = [b"0123456789abcdef", b"x" * 16]


def _dictionary(values: list[Any], kind: pa.DataType, indices: pa.DataType | None = None) -> Any:
    codes = pa.array([0, None, 1, 0], indices or pa.int8())
    return pa.DictionaryArray.from_arrays(codes, pa.array(values, kind))


def _stored(kind: pa.BaseExtensionType, values: list[Any]) -> Any:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


def _hiding(kind: pa.DataType, length: int) -> Any:
    """The null's view has this length, and points into a buffer that does not exist."""
    valid, views, *texts = pa.array(["a", None, LONG, "b"], pa.string_view()).buffers()
    words = bytearray(views)
    struct.pack_into("<iiii", words, 16, length, 0, 7, 1 << 30)
    array = pa.Array.from_buffers(kind, 4, [valid, pa.py_buffer(words), *texts], 1)
    array.validate(full=True)  # sent batches are validated, too
    return array


# Arrays of four values each, with a null where that is possible.
LEAVES: dict[str, Any] = {
    "string_view": pa.array(["a", None, LONG, "b"], pa.string_view()),
    "binary_view": pa.array([b"a", None, LONG.encode(), b"b"], pa.binary_view()),
    "string view under a null": _hiding(pa.string_view(), -50_331_648),
    "binary view under a null": _hiding(pa.binary_view(), 50_331_648),
    "list_view": pa.array([[1], None, [], [2, 3]], pa.list_view(pa.int64())),
    "large_list_view": pa.array([["x"], None, [], [LONG]], pa.large_list_view(pa.string_view())),
    "Polars' Categorical": _dictionary(["a", LONG], pa.string_view(), pa.uint32()),
    "dictionary of strings": _dictionary(["a", LONG], pa.string()),
    "dictionary with a null": _dictionary(["a", None], pa.string()),
    "dictionary of large strings": _dictionary(["a", LONG], pa.large_string(), pa.uint64()),
    "dictionary of binary views": _dictionary([b"a", LONG.encode()], pa.binary_view()),
    "dictionary of lists": _dictionary([[1], [2, 3]], pa.list_(pa.int64())),
    "dictionary of list views": _dictionary([[1], [2, 3]], pa.list_view(pa.int64())),
    "dictionary of structs": _dictionary(
        [{"a": "x"}, {"a": LONG}], pa.struct({"a": pa.string_view()})
    ),
    "dictionary of maps": _dictionary([[("a", 1)], [("b", 2)]], pa.map_(pa.string(), pa.int64())),
    "dictionary of decimals": _dictionary([Decimal("1.50"), Decimal(2)], pa.decimal64(10, 2)),
    "uuid": _stored(pa.uuid(), [UUIDS[0], None, UUIDS[1], UUIDS[0]]),
    "json": _stored(pa.json_(pa.string_view()), ['{"a":1}', None, "[]", LONG]),
    "bool8": _stored(pa.bool8(), [1, 0, None, -3]),
    "opaque": _stored(pa.opaque(pa.binary(), "geometry", "postgis"), [b"a", None, b"b", b""]),
    "tensor": _stored(pa.fixed_shape_tensor(pa.int32(), [2]), [[1, 2], [3, 4], [5, 6], [7, 8]]),
    "decimal32": pa.array(
        [Decimal("1.50"), None, Decimal("-9999999.99"), Decimal(0)], pa.decimal32(9, 2)
    ),
    "decimal256": pa.array(
        [Decimal(10**37), None, Decimal(-(10**37)), Decimal(1)], pa.decimal256(38, 0)
    ),
}


def _in_struct(array: Any) -> Any:
    mask = pa.array([False, True, False, False])
    return pa.StructArray.from_arrays([array, array], ["f", "g"], mask=mask)


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "alone": lambda array: array,
    "in a list": lambda array: pa.ListArray.from_arrays(
        [0, 2, 2, 4], array, mask=pa.array([False, True, False])
    ),
    "in a large list": lambda array: pa.LargeListArray.from_arrays([1, 1, 4], array),
    "in a fixed-size list": lambda array: pa.FixedSizeListArray.from_arrays(
        array, 2, mask=pa.array([True, False])
    ),
    # Views overlap, are out of order, and the null has a length.
    "in a list view": lambda array: pa.ListViewArray.from_arrays(
        pa.array([2, 0, 1, 0], pa.int32()),
        pa.array([2, 3, 1, 0], pa.int32()),
        array,
        mask=pa.array([False, False, True, False]),
    ),
    "in a large list view": lambda array: pa.LargeListViewArray.from_arrays(
        pa.array([3, 0], pa.int64()), pa.array([1, 4], pa.int64()), array
    ),
    "in a struct": _in_struct,
    "in a map": lambda array: pa.MapArray.from_arrays(
        [0, 3, 4], pa.array(["p", "q", "r", "s"]), array
    ),
    "in a struct in a list": lambda array: pa.ListArray.from_arrays([0, 1, 4], _in_struct(array)),
}


def _values(array: Any) -> list[Any]:
    """The values as Python objects; extension types give their storage."""
    if isinstance(array.type, pa.BaseExtensionType) and array.type != pa.bool8():
        return _values(array.storage)
    values: list[Any] = array.to_pylist()
    return values


def _without_uuids(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_uuids(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_uuids(each) for each in value)
    return getattr(value, "bytes", value)


@pytest.mark.parametrize("around", WRAPPED)
@pytest.mark.parametrize("name", LEAVES)
def test_a_column_keeps_its_values_in_the_type_of_the_table(name: str, around: str) -> None:
    sent = WRAPPED[around](LEAVES[name])
    batch = pa.record_batch({"c": sent})
    batch.validate(full=True)
    kept = table_type("c", sent.type, "us")
    assert is_plain(kept)
    definition = TableDefinition(pa.schema({"c": kept}), UNPARTITIONED)
    normalise = Normaliser(definition, batch.schema)
    expected = _without_uuids(_values(sent))
    for start in (0, 1):
        found = normalise(batch.slice(start))
        found.validate(full=True)
        assert found.schema.field("c").type == kept
        assert found["c"].to_pylist() == expected[start:]
    # The size is known before the conversion.
    assert 0 < plain_bytes(sent, kept) < 1000


HUGE = pa.array(["x" * (1 << 20)] * 3, pa.string_view())


def _codes(codes: Any) -> Any:
    """A dictionary of three texts of a megabyte each."""
    return pa.DictionaryArray.from_arrays(codes, HUGE)


FIFTY = _codes(pa.array([0] * 50))
UNREFERRED: dict[str, Any] = {
    "null structs": pa.StructArray.from_arrays([FIFTY], ["f"], mask=pa.array([True] * 50)),
    "empty lists": pa.ListArray.from_arrays([5, 5], FIFTY),
    "empty maps": pa.MapArray.from_arrays([7, 7], pa.array([""] * 50), FIFTY),
    "empty views": pa.ListViewArray.from_arrays(
        pa.array([0, 9], pa.int32()), pa.array([0, 0], pa.int32()), FIFTY
    ),
    "null views": pa.ListViewArray.from_arrays(
        pa.array([0], pa.int32()), pa.array([50], pa.int32()), FIFTY, mask=pa.array([True])
    ),
    "a dictionary": _codes(pa.nulls(5, pa.int8())),
    "a list of a dictionary": pa.ListArray.from_arrays([0, 5], _codes(pa.nulls(5, pa.int8()))),
}


@pytest.mark.parametrize("name", UNREFERRED)
def test_no_more_is_made_of_a_column_than_was_reckoned(name: str) -> None:
    """Values that no row refers to may be many times as large as the batch."""
    column = UNREFERRED[name]
    reckoned = plain_bytes(column, table_type("c", column.type, "us"))
    counted = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(counted)
    try:
        assert len(plain(column)) == len(column)
    finally:
        pa.set_memory_pool(before)
    assert counted.max_memory() <= 2 * reckoned + (64 << 10)


def test_a_dictionary_of_dictionaries_is_refused_by_name() -> None:
    inner = pa.dictionary(pa.int8(), pa.string())
    with pytest.raises(BadRequest, match=r"'c': type dictionary<values=dictionary.*inner one"):
        table_type("c", pa.dictionary(pa.int8(), inner), "us")


REMEDIES = {
    "float32": pa.float16(),
    "date32": pa.date64(),
    "timestamp": pa.time64("us"),
    "int64": pa.duration("s"),
    "integers": pa.month_day_nano_interval(),
    "a column for each": pa.dense_union([pa.field("a", pa.int8())]),
    "run_end_decode": pa.run_end_encoded(pa.int32(), pa.string()),
    "decimal128": pa.decimal256(39, 2),
    "scale 0": pa.decimal128(10, -2),
}


@pytest.mark.parametrize("remedy", REMEDIES)
def test_a_type_that_no_table_takes_is_refused_with_what_helps(remedy: str) -> None:
    kind = REMEDIES[remedy]
    with pytest.raises(BadRequest, match=f"'c'.*not supported; .*{remedy}") as error:
        table_type("c", pa.list_(kind), "us")
    assert f"type {kind} (inside list<item: {kind}>)" in str(error.value)
