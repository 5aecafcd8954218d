"""Types: which are accepted, how they are returned, and which are refused by name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.wire import Stream, Table, create, persist, put, query, writing

UTC = dt.UTC
WHEN = dt.datetime(2026, 11, 21, 12, 30, 15, 123456, UTC)
NAIVE = WHEN.replace(tzinfo=None)


# (type as sent, values, type in the answer)
TAKEN: dict[str, tuple[pa.DataType, list[Any], pa.DataType]] = {
    "bool": (pa.bool_(), [True, None, False], pa.bool_()),
    **{
        f"{sign}int{bits}": (kind, [0, None, (1 << (bits - (not sign))) - 1], kind)
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
        for kind in [getattr(pa, f"{sign}int{bits}")()]
    },
    "float32": (pa.float32(), [0.5, None, -1.25], pa.float32()),
    "float64": (pa.float64(), [0.1, None, 1e300], pa.float64()),
    "decimal128": (pa.decimal128(20, 4), [Decimal("1.2500"), None], pa.decimal128(20, 4)),
    "string": (pa.string(), ["a", None, "ü", ""], pa.string()),
    "large_string": (pa.large_string(), ["a", None, ""], pa.string()),
    "string_view": (pa.string_view(), ["a", None, "longer than twelve bytes"], pa.string()),
    "binary": (pa.binary(), [b"\0", None, b""], pa.binary()),
    "large_binary": (pa.large_binary(), [b"\0", None], pa.binary()),
    "binary_view": (pa.binary_view(), [b"\0", None, b"longer than twelve bytes"], pa.binary()),
    "fixed_size_binary": (pa.binary(3), [b"abc", None], pa.binary()),
    "date32": (pa.date32(), [dt.date(2026, 11, 21), None, dt.date(1900, 1, 1)], pa.date32()),
    "timestamp_s": (pa.timestamp("s"), [NAIVE.replace(microsecond=0), None], pa.timestamp("us")),
    "timestamp_ms": (
        pa.timestamp("ms", "UTC"),
        [WHEN.replace(microsecond=123000), None],
        pa.timestamp("us", "UTC"),
    ),
    "timestamp_us": (pa.timestamp("us", "UTC"), [WHEN, None], pa.timestamp("us", "UTC")),
    "timestamp_naive": (pa.timestamp("us"), [NAIVE, None], pa.timestamp("us")),
    "list": (pa.list_(pa.int32()), [[1, None], None, []], pa.list_(pa.int32())),
    "large_list": (pa.large_list(pa.string()), [["x"], None, []], pa.list_(pa.string())),
    "fixed_size_list": (pa.list_(pa.int8(), 2), [[1, 2], None], pa.list_(pa.int8())),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.large_string())]),
        [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        [[("k", 1), ("l", None)], None, []],
        pa.map_(pa.string(), pa.int64()),
    ),
    "dictionary": (
        pa.dictionary(pa.int8(), pa.string()),
        ["a", None, "b", "a"],
        pa.string(),
    ),
    "dictionary_of_timestamps": (
        pa.dictionary(pa.int32(), pa.timestamp("ms", "UTC")),
        [WHEN.replace(microsecond=1000), None],
        pa.timestamp("us", "UTC"),
    ),
    "dictionary_of_string_views": (
        pa.dictionary(pa.uint32(), pa.string_view()),
        ["a", None, "longer than twelve bytes", "a"],
        pa.string(),
    ),
    "decimal32": (pa.decimal32(9, 2), [Decimal("1.25"), None], pa.decimal128(9, 2)),
    "decimal64": (pa.decimal64(18, 2), [Decimal("1.25"), None], pa.decimal128(18, 2)),
    "decimal256": (pa.decimal256(38, 2), [Decimal("1.25"), None], pa.decimal128(38, 2)),
    "json": (pa.json_(), ['{"a": 1}', None], pa.string()),
    "offset": (pa.timestamp("us", "+01:00"), [WHEN, None], pa.timestamp("us", "+01:00")),
    "list_of_dictionaries": (
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
        [["a", "b"], None, ["a"]],
        pa.list_(pa.string()),
    ),
    "nested": (
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.float32())))])),
        [[{"m": [("k", [1.5])]}], None, []],
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.float32())))])),
    ),
}


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        distinct = [value for value in dict.fromkeys(values) if value is not None]
        codes = [None if value is None else distinct.index(value) for value in values]
        found = pa.array(distinct, kind.value_type)
        return pa.DictionaryArray.from_arrays(pa.array(codes, kind.index_type), found)
    if pa.types.is_list(kind) and pa.types.is_dictionary(kind.value_type):
        lists = pa.array(values, pa.list_(pa.string()))
        encoded = lists.values.dictionary_encode().cast(kind.value_type)
        return pa.ListArray.from_arrays(lists.offsets, encoded, mask=lists.is_null())
    return pa.array(values, kind)


@pytest.mark.parametrize("name", TAKEN)
def test_a_type_comes_back_as_sent_from_buffer_and_file(
    client: fl.FlightClient, table: Table, name: str
) -> None:
    kind, values, kept = TAKEN[name]
    sent = pa.record_batch({"c": _array(kind, values)})
    put(client, table, sent)
    buffered = query(client, table)
    assert buffered.schema.field("c").type == kept
    assert buffered["c"].to_pylist() == values
    persist(client, table)
    filed = query(client, table)
    assert filed.schema.field("c").type == kept
    back = filed["c"].to_pylist()
    assert len(back) == len(values)
    assert all(value in back for value in values)


REFUSED: dict[str, pa.Array] = {
    "float16": pa.nulls(1, pa.float16()),
    "time32": pa.array([1], pa.time32("s")),
    "time64": pa.array([1], pa.time64("us")),
    "duration": pa.array([1], pa.duration("s")),
    "month_day_nano_interval": pa.nulls(1, pa.month_day_nano_interval()),
    "date64": pa.array([0], pa.date64()),
    "decimal256": pa.array([Decimal(1)], pa.decimal256(40, 0)),
    "dense_union": pa.UnionArray.from_dense(
        pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]
    ),
    "sparse_union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
    "run_end_encoded": pa.RunEndEncodedArray.from_arrays([1], [7]),
    "float16 in a list": pa.nulls(1, pa.list_(pa.float16())),
    "duration in a struct": pa.nulls(1, pa.struct([("d", pa.duration("s"))])),
    "struct without fields": pa.nulls(1, pa.struct([])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_no_table_takes_is_refused_by_name(
    client: fl.FlightClient, table: Table, name: str
) -> None:
    array = REFUSED[name]
    word = name.split()[0].split("_")[0].rstrip("0123456789")
    with pytest.raises(pa.ArrowInvalid, match=f"(?s)'bad'.*{word}"):
        put(client, table, pa.record_batch({"good": pa.array([1]), "bad": array}))
    with pytest.raises(pa.ArrowKeyError):
        query(client, table)


def test_an_extension_type_is_kept_as_its_storage(client: fl.FlightClient, table: Table) -> None:
    uuids = pa.array([b"0123456789abcdef", None], pa.uuid())
    # Arrow has no class for this type: only the field's metadata names it.
    metadata = {"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": "{}"}
    points = pa.field("point", pa.large_binary(), metadata=metadata)
    schema = pa.schema([pa.field("id", pa.uuid()), points])
    put(client, table, pa.record_batch([uuids, pa.array([b"p", None])], schema=schema))
    persist(client, table)
    put(client, table, pa.record_batch({"id": pa.array([b"x" * 16])}))
    found = query(client, table)
    assert found.schema.types == [pa.binary(), pa.binary()]
    assert sorted(found["id"].to_pylist(), key=str) == [None, b"0123456789abcdef", b"x" * 16]


@pytest.mark.parametrize("zone", ["Z", "UTC+1", "Mars/Phobos"])
def test_a_zone_that_nobody_knows_is_refused_when_it_comes(
    client: fl.FlightClient, table: Table, zone: str
) -> None:
    """Such a column was once accepted, and every reader of the table failed with a traceback."""
    times = pa.array([0], pa.int64()).cast(pa.timestamp("us", zone))
    with pytest.raises(pa.ArrowInvalid, match=r"'t'.*'UTC'.*'\+01:00'"):
        put(client, table, pa.record_batch({"t": times}))
    with pytest.raises(pa.ArrowInvalid, match=r"'t'.*'UTC'.*'\+01:00'"):
        create(client, table, pa.schema({"i": pa.int8(), "t": pa.list_(times.type)}))
    put(client, table, pa.record_batch({"i": pa.array([1])}))
    with pytest.raises(pa.ArrowInvalid, match=r"'t'.*'UTC'.*'\+01:00'"):
        put(client, table, pa.record_batch({"i": pa.array([2]), "t": times}))
    assert query(client, table).to_pydict() == {"i": [1]}


UNTYPED: dict[str, tuple[list[Any], pa.DataType]] = {
    "struct": ([{"a": 5, "b": None}, None], pa.struct([("a", pa.int64()), ("b", pa.null())])),
    "list": ([[], None], pa.list_(pa.null())),
    "list of structs": (
        [[{"a": 1, "b": None}]],
        pa.list_(pa.struct({"a": pa.int64(), "b": pa.null()})),
    ),
    "map": ([[("k", None)]], pa.map_(pa.string(), pa.null())),
}


@pytest.mark.parametrize("name", UNTYPED)
def test_values_of_a_type_that_is_not_known_are_refused_and_nulls_of_it_wait(
    client: fl.FlightClient, table: Table, name: str
) -> None:
    """Libraries infer these types from values that are all null, or lists that are all empty."""
    values, kind = UNTYPED[name]
    known = pa.array(range(len(values)))
    sent = pa.record_batch({"good": known, "bad": pa.array(values, kind)})
    with pytest.raises(pa.ArrowInvalid, match=r"'bad'.*is null.*1 values"):
        put(client, table, sent)
    with pytest.raises(pa.ArrowKeyError):
        query(client, table)
    # Nulls lose nothing; the second batch has values to lose.
    nulls = pa.record_batch({"good": known, "bad": pa.nulls(len(values), kind)})
    stream = Stream(client, writing(table), sent.schema)
    stream.write(nulls)
    with pytest.raises(pa.ArrowInvalid, match="'bad'"):
        stream.write(sent)
    assert query(client, table).schema.names == ["good"]
    # If the table has the column already, its type is used.
    typed = pa.table({"good": known, "bad": pa.array(values, TYPED[name])})
    put(client, table, typed.to_batches()[0])
    put(client, table, sent)
    expected = [None] * len(values) + values * 2
    assert query(client, table)["bad"].to_pylist() == expected


TYPED = {
    "struct": pa.struct([("a", pa.int64()), ("b", pa.string())]),
    "list": pa.list_(pa.int64()),
    "list of structs": pa.list_(pa.struct({"a": pa.int64(), "b": pa.string()})),
    "map": pa.map_(pa.string(), pa.int64()),
}
