"""Names and types: what is taken, in which form it comes back, and what is refused by name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.integration.wire import Table, create, describe, numbers, persist, put, query

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
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
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


WIDENED = [
    *[(f"int{a}", f"int{b}") for a, b in [(8, 16), (8, 32), (8, 64), (16, 32), (16, 64), (32, 64)]],
    *[(f"uint{a}", f"uint{b}") for a, b in [(8, 16), (16, 32), (32, 64)]],
    *[(f"uint{a}", f"int{b}") for a, b in [(8, 16), (16, 32), (32, 64)]],
    ("float32", "float64"),
]


@pytest.mark.parametrize(("sent", "kept"), WIDENED)
def test_a_narrower_number_goes_into_a_wider_column(
    client: fl.FlightClient, table: Table, sent: str, kept: str
) -> None:
    wide, narrow = getattr(pa, kept)(), getattr(pa, sent)()
    put(client, table, pa.record_batch({"c": pa.array([1], wide)}))
    put(client, table, pa.record_batch({"c": pa.array([2, None], narrow)}))
    found = query(client, table)
    assert found.schema.field("c").type == wide
    assert found["c"].to_pylist() == [1, 2, None]


def test_decimals_take_fewer_digits_of_the_same_scale(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, pa.record_batch({"c": pa.array([Decimal("1.25")], pa.decimal128(20, 2))}))
    put(client, table, pa.record_batch({"c": pa.array([Decimal("9.99")], pa.decimal128(3, 2))}))
    assert query(client, table)["c"].to_pylist() == [Decimal("1.25"), Decimal("9.99")]


def test_a_column_of_nulls_without_a_type_goes_into_any(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1, s=pa.array(["x"])))
    put(client, table, numbers(1, 2, s=pa.nulls(2)))
    assert query(client, table)["s"].to_pylist() == ["x", None, None]


CLASHES = [
    (pa.int64(), pa.int32()),
    (pa.uint32(), pa.int32()),
    (pa.int64(), pa.uint64()),
    (pa.int64(), pa.uint32()),
    (pa.float64(), pa.float32()),
    (pa.int32(), pa.float64()),
    (pa.float32(), pa.int64()),
    (pa.decimal128(10, 3), pa.decimal128(20, 2)),
    (pa.decimal128(21, 2), pa.decimal128(20, 2)),
    (pa.string(), pa.int64()),
    (pa.string(), pa.binary()),
    (pa.binary(), pa.string()),
    (pa.bool_(), pa.int8()),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us")),
    (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC")),
    (pa.date32(), pa.timestamp("us")),
    (pa.list_(pa.int64()), pa.list_(pa.int32())),
    (pa.int64(), pa.list_(pa.int64())),
    (pa.struct([("b", pa.int64())]), pa.struct([("a", pa.int64())])),
]


@pytest.mark.parametrize(("sent", "kept"), CLASHES, ids=str)
def test_a_clash_names_the_column_the_tables_type_and_the_sent_one(
    client: fl.FlightClient, table: Table, sent: pa.DataType, kept: pa.DataType
) -> None:
    put(client, table, pa.record_batch({"c": pa.nulls(1, kept)}))
    with pytest.raises(pa.ArrowInvalid) as error:
        put(client, table, pa.record_batch({"c": pa.nulls(1, sent)}))
    for part in ("'c'", str(kept), str(sent)):
        assert part in str(error.value)
    assert query(client, table).num_rows == 1


def test_a_new_column_is_added_and_null_in_older_rows(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 2))
    persist(client, table)
    put(client, table, numbers(2, 2))
    put(client, table, numbers(4, 2, extra=pa.array(["x", "y"])))
    put(client, table, pa.record_batch({"extra": pa.array(["z"])}))
    expected = {
        "i": [0, 1, 2, 3, 4, 5, None],
        "extra": [None] * 4 + ["x", "y", "z"],
    }
    assert query(client, table).to_pydict() == expected
    persist(client, table)
    filed = query(client, table)
    pairs = zip(filed["i"].to_pylist(), filed["extra"].to_pylist(), strict=True)
    assert sorted(pairs, key=repr) == sorted(zip(*expected.values(), strict=True), key=repr)
    columns = {column["name"]: column for column in describe(client, table)["schema"]}
    assert columns["extra"] == {"name": "extra", "type": "string", "nullable": True}


def test_columns_are_matched_by_name_and_not_by_place(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, pa.record_batch({"a": pa.array([1]), "b": pa.array([2])}))
    put(client, table, pa.record_batch({"b": pa.array([4]), "a": pa.array([3])}))
    assert query(client, table).to_pydict() == {"a": [1, 3], "b": [2, 4]}


@pytest.mark.parametrize("name", ["_x", "_", "", "time_day", "TIME_DAY", "Host", "ü" * 128])
def test_a_column_name_that_cannot_be_is_refused(
    client: fl.FlightClient, table: Table, name: str
) -> None:
    columns = {
        "time": pa.nulls(1, pa.timestamp("us")),
        "host": pa.array(["h"]),
        name: pa.array([1]),
    }
    with pytest.raises(pa.ArrowInvalid, match="column"):
        put(client, table, pa.record_batch(columns))
    # In a table that exists, too.
    put(client, table, pa.record_batch({name_: columns[name_] for name_ in ("time", "host")}))
    with pytest.raises(pa.ArrowInvalid, match="column"):
        put(client, table, pa.record_batch(columns))
    assert query(client, table).num_rows == 1


def test_a_column_name_sent_twice_is_refused(client: fl.FlightClient, table: Table) -> None:
    batch = pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(pa.ArrowInvalid, match="'a'"):
        put(client, table, batch)


@pytest.mark.parametrize("name", ["ü" * 127, "with space", "a/b", "日本", "time-day", "=", "a.b"])
def test_any_other_column_name_survives_buffer_file_filter_and_projection(
    client: fl.FlightClient, table: Table, name: str
) -> None:
    put(client, table, numbers(0, 3, **{name: pa.array(["x", "y", None])}))
    for _ in range(2):
        found = query(client, table, columns=[name], filter=[[[name, "=", "y"]]])
        assert found.to_pydict() == {name: ["y"]}
        persist(client, table)


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", "_a", "a/b", "a b", "ü", "a" * 129, "..", "a\n", "a%", "a\0b"]
)
def test_a_table_or_namespace_name_that_cannot_be_is_refused(
    client: fl.FlightClient, name: str
) -> None:
    for table in ((name, "t"), ("n", name)):
        with pytest.raises(pa.ArrowInvalid, match="is not a name"):
            put(client, table, numbers(0, 1))
        with pytest.raises(pa.ArrowInvalid, match="is not a name"):
            query(client, table)
        with pytest.raises(pa.ArrowInvalid, match="is not a name"):
            create(client, table, numbers(0, 1).schema)


@pytest.mark.parametrize("name", ["a", "0", "a" * 128, "A-b_c.d", "9.."])
def test_any_other_table_name_is_taken(client: fl.FlightClient, name: str) -> None:
    table = (f"names-{name}"[:128], name)
    put(client, table, numbers(0, 1))
    persist(client, table)
    assert query(client, table)["i"].to_pylist() == [0]


def test_nanoseconds_that_are_whole_microseconds_are_taken(
    client: fl.FlightClient, table: Table
) -> None:
    kind = pa.timestamp("ns", "UTC")
    put(client, table, pa.record_batch({"t": pa.array([1000, None, -2000], kind)}))
    found = query(client, table)
    assert found.schema.field("t").type == pa.timestamp("us", "UTC")
    assert found["t"].cast(pa.int64()).to_pylist() == [1, None, -2]


def test_other_nanoseconds_are_refused_with_column_count_and_two_ways_out(
    client: fl.FlightClient, table: Table
) -> None:
    kind = pa.timestamp("ns")
    with pytest.raises(pa.ArrowInvalid) as error:
        put(client, table, pa.record_batch({"t": pa.array([1000, 1001, 1999, None], kind)}))
    message = str(error.value)
    for part in ("'t'", "2 of 4", "timestamp('us')", 'timestamp_unit = "ns"'):
        assert part in message


def test_a_table_made_for_nanoseconds_keeps_them(client: fl.FlightClient, table: Table) -> None:
    kind = pa.timestamp("ns", "UTC")
    create(client, table, pa.schema({"t": kind}), timestamp_unit="ns")
    put(client, table, pa.record_batch({"t": pa.array([1001, None], kind)}))
    put(client, table, pa.record_batch({"t": pa.array([1], pa.timestamp("us", "UTC"))}))
    for _ in range(2):
        found = query(client, table)
        assert found.schema.field("t").type == kind
        assert sorted(found["t"].drop_null().cast(pa.int64()).to_pylist()) == [1000, 1001]
        persist(client, table)


def test_seconds_too_large_for_microseconds_are_refused(
    client: fl.FlightClient, table: Table
) -> None:
    with pytest.raises(pa.ArrowInvalid, match="'t'"):
        put(client, table, pa.record_batch({"t": pa.array([2**62], pa.timestamp("s"))}))


def test_times_far_from_now_come_back_as_sent(client: fl.FlightClient, table: Table) -> None:
    ticks = [0, -1, -62_135_596_800_000_000, 253_402_300_800_000_000, 2**62]
    times = pa.array(ticks, pa.timestamp("us", "UTC"))
    put(client, table, pa.record_batch({"time": times}))
    for _ in range(2):
        found = query(client, table)["time"].cast(pa.int64()).to_pylist()
        assert sorted(found) == sorted(ticks)
        persist(client, table)
