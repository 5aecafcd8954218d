"""Batches with another schema: narrower types fit, columns are added, conflicts are refused."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.wire import Table, describe, numbers, persist, put, query

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
