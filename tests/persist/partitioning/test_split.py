"""Splitting a batch by partition, against a model that works row by row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import mmh3
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.partitioning import (
    FOLDER_VALUE_BYTES,
    InvalidPartitionSpec,
    PartitionedRows,
    PartitionSpec,
    PartitionValueTooLong,
    default_spec,
    folder_of,
    order_by_partition,
    split_batch,
)

UTC = dt.UTC
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "i": pa.int64(),
        "small": pa.uint8(),
        "b": pa.bool_(),
        "s": pa.string(),
        "d": pa.date32(),
        "dec": pa.decimal128(12, 3),
        "t": pa.timestamp("us", "UTC"),
        "sec": pa.timestamp("s"),
    }
)
times = st.datetimes(dt.datetime(1890, 1, 1), dt.datetime(2150, 1, 1), timezones=st.just(UTC))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)),
    "small": st.integers(0, 4),
    "b": st.booleans(),
    "s": st.one_of(
        st.sampled_from(["", "a", "A", "a/b", "a b", "007", "1e3", "ü", "..", "%41", "~", "null"]),
        st.sampled_from(["__HIVE_DEFAULT_PARTITION__", "None", "a=b", "\0", "\n"]),
        st.text(max_size=8),
    ),
    "d": st.dates(dt.date(1890, 1, 1), dt.date(2150, 1, 1)),
    "dec": st.decimals(-100, 100, places=3),
    "t": times,
    "sec": times.map(lambda t: t.replace(microsecond=0, tzinfo=None)),
}
SPECS = [
    f"{transform}({column})"
    for transform, columns in {
        "identity": ["i", "small", "b", "s", "d", "dec"],
        "year": ["t", "sec", "d"],
        "month": ["t", "sec", "d"],
        "day": ["t", "sec", "d"],
        "hour": ["t", "sec"],
        "bucket": [],
    }.items()
    for column in columns
] + [f"bucket({n}, {column})" for n in (1, 7) for column in ("i", "small", "s", "d", "dec", "t")]

batches = st.lists(
    st.fixed_dictionaries({name: st.one_of(st.none(), values) for name, values in VALUES.items()}),
    max_size=25,
)
specs = st.lists(st.sampled_from(SPECS), max_size=3, unique_by=lambda s: s.split("(")[0] + s[-3:])


def _hashed(value: Any) -> bytes:
    """Iceberg's bytes to hash, https://iceberg.apache.org/spec/#appendix-b-32-bit-hash-requirements"""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Decimal):
        unscaled, size = int(value * 1000), 1
        while True:
            try:
                return unscaled.to_bytes(size, "big", signed=True)
            except OverflowError:
                size += 1
    if isinstance(value, dt.datetime):
        value = (value - EPOCH) // dt.timedelta(microseconds=1)
    elif isinstance(value, dt.date):
        value = (value - EPOCH.date()).days
    return int(value % 2**64).to_bytes(8, "little")


def _value(spec: str, row: dict[str, Any]) -> Any:
    """The value of one field of a spec for one row."""
    transform, inside = spec.rstrip(")").split("(")
    column = inside.split(", ")[-1]
    value = row[column]
    if value is None:
        return None
    if transform == "bucket":
        return (mmh3.hash(_hashed(value), signed=False) & 0x7FFFFFFF) % int(inside.split(",")[0])
    if transform == "identity":
        if isinstance(value, bool | int | str):
            return value
        return str(value)
    if transform == "year":
        return value.year
    return value.strftime({"month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}[transform])


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"n": n, **row} for n, row in enumerate(rows)], SCHEMA)


def test_nulls_between_times_are_one_partition() -> None:
    hours = [None, dt.datetime(1969, 1, 1, tzinfo=dt.UTC), dt.datetime(2000, 1, 1, tzinfo=dt.UTC)]
    batch = pa.record_batch({"t": pa.array(hours * 3, pa.timestamp("us", "UTC"))})
    parts = split_batch(batch, PartitionSpec.parse(["hour(t)"]))
    assert [(values, part.num_rows) for values, part in parts] == [
        ((None,), 3),
        (("1969-01-01-00",), 3),
        (("2000-01-01-00",), 3),
    ]


@pytest.mark.parametrize("days", [["a", "b", "c"], ["c", "a", "b"]], ids=["in order", "mixed"])
def test_the_number_of_partitions_is_checked_before_any_part_is_made(days: list[str]) -> None:
    batch = pa.record_batch({"s": days * 2})
    counts: list[int] = []

    def check(count: int) -> None:
        counts.append(count)
        raise ValueError("too many")

    with pytest.raises(ValueError, match="too many"):
        order_by_partition(batch, PartitionSpec.parse(["identity(s)"]), check=check)
    assert counts == [3]


@given(batches, specs)
def test_a_split_is_what_the_model_gives(rows: list[dict[str, Any]], texts: list[str]) -> None:
    spec = PartitionSpec.parse(texts)
    spec.check_schema(SCHEMA)
    batch = _batch(rows)
    expected: dict[tuple[Any, ...], list[int]] = {}
    for n, row in enumerate(rows):
        expected.setdefault(tuple(_value(text, row) for text in texts), []).append(n)
    parts = split_batch(batch, spec)
    assert len(parts) == len({values for values, _ in parts}), "a partition stands twice"
    # The type counts: True and 1 have different folder names.
    assert {(values, repr(values)): part["n"].to_pylist() for values, part in parts} == {
        (values, repr(values)): numbers for values, numbers in expected.items()
    }
    for _, part in parts:
        assert part == batch.take(part["n"])


@given(batches, specs)
def test_folders_differ_where_values_do_and_decode_back(
    rows: list[dict[str, Any]], texts: list[str]
) -> None:
    spec = PartitionSpec.parse(texts)
    seen: dict[str, tuple[Any, ...]] = {}
    for values, _ in split_batch(_batch(rows), spec):
        folder = folder_of(spec, values)
        # Spark itself writes an empty string as null, so those two share a folder.
        plain = tuple(None if value == "" else value for value in values)
        assert seen.setdefault(folder, plain) == plain
        assert folder.isascii()
        assert not set(folder) & set(" \0\n\\:*?\"<>|'")
        names = folder.split("/") if folder else []
        assert len(names) == len(spec.fields)
        for name, field, value in zip(names, spec.fields, plain, strict=True):
            key, _, text = name.partition("=")
            assert key == field.name
            assert name not in (".", "..")
            if value is None:
                assert text == "__HIVE_DEFAULT_PARTITION__"
            else:
                assert text != "__HIVE_DEFAULT_PARTITION__"
                shown = str(value).lower() if isinstance(value, bool) else str(value)
                assert unquote(text) == shown


@given(st.lists(st.sampled_from(SPECS), max_size=3))
def test_a_spec_reads_back_from_its_texts(texts: list[str]) -> None:
    try:
        spec = PartitionSpec.parse(texts)
    except InvalidPartitionSpec:
        names = [text.rpartition("(")[0] + text.rpartition(" ")[2].split("(")[-1] for text in texts]
        assert len(set(names)) < len(names)
        return
    assert PartitionSpec.parse(spec.texts()) == spec


def test_a_batch_of_one_partition_comes_back_itself() -> None:
    batch = pa.record_batch({"s": pa.array(["a"] * 5)})
    ((values, part),) = split_batch(batch, PartitionSpec.parse(["identity(s)"]))
    assert values == ("a",)
    assert part is batch


def test_parts_of_one_batch_are_views_of_it() -> None:
    batch = pa.record_batch({"s": pa.array(["a", "b"] * 5), "v": pa.array(range(10))})
    parts = split_batch(batch, PartitionSpec.parse(["identity(s)"]))
    assert [part["v"].to_pylist() for _, part in parts] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    assert len({part["v"].buffers()[1].address for _, part in parts}) == 1


@pytest.mark.parametrize("left", ["ab", "a", "b", ""])
def test_partitions_that_are_left_keep_no_others_in_memory(left: str) -> None:
    batch = pa.record_batch({"p": ["a", "b", "b", "a"], "n": ["x" * 100_000] * 4})
    spec = PartitionSpec.parse(["identity(p)"])
    parts = [part for part in split_batch(batch, spec) if part[0] in {(one,) for one in left}]
    joined = PartitionedRows.joined(parts, batch.schema)
    assert joined.parts() == parts
    assert joined.rows.get_total_buffer_size() < 200_000 * len(left) + 1000


def test_a_value_too_long_for_a_folder_is_refused_and_the_longest_is_not() -> None:
    spec = PartitionSpec.parse(["identity(s)"])
    rows = pa.record_batch({"s": pa.array(["a", "x" * FOLDER_VALUE_BYTES])})
    assert len(split_batch(rows, spec)) == 2
    with pytest.raises(PartitionValueTooLong, match=str(FOLDER_VALUE_BYTES)):
        split_batch(pa.record_batch({"s": pa.array(["x" * (FOLDER_VALUE_BYTES + 1)])}), spec)
    with pytest.raises(PartitionValueTooLong):
        split_batch(pa.record_batch({"s": pa.array(["ü" * 31])}), spec)


# https://iceberg.apache.org/spec/#appendix-b-32-bit-hash-requirements
ICEBERG = [
    (pa.int32(), 34, 2017239379),
    (pa.int64(), 34, 2017239379),
    (pa.decimal128(9, 2), Decimal("14.20"), -500754589),
    (pa.date32(), dt.date(2017, 11, 16), -653330422),
    (pa.timestamp("us"), dt.datetime(2017, 11, 16, 22, 31, 8), -2047944441),
    (pa.string(), "iceberg", 1210000089),
    (pa.binary(), b"\x00\x01\x02\x03", -188683207),
]


@pytest.mark.parametrize(("kind", "value", "hashed"), ICEBERG, ids=str)
def test_buckets_are_icebergs(kind: pa.DataType, value: Any, hashed: int) -> None:
    spec = PartitionSpec.parse(["bucket(1000, c)"])
    batch = pa.record_batch({"c": pa.array([value], kind)})
    ((values, _),) = split_batch(batch, spec)
    assert values == ((hashed & 0x7FFFFFFF) % 1000,)


def test_tables_with_a_time_have_day_partitions_by_default() -> None:
    assert default_spec(pa.schema({"time": pa.timestamp("us")})).texts() == ("day(time)",)
    assert default_spec(pa.schema({"time": pa.int64()})).texts() == ()
    assert default_spec(pa.schema({"Time": pa.timestamp("us")})).texts() == ()
