"""Bounds and partitions in manifests are exact, and no filter on them loses a row."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import expressions as ex
from pyiceberg.conversions import to_bytes as pyiceberg_bytes
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import PrimitiveType

from persist.parquet.stats import column_stats
from persist.partitioning import PartitionField, split_batch
from persist.publish.iceberg.schema import result_type, schema_json
from persist.publish.iceberg.values import (
    bound,
    from_bytes,
    in_partition,
    plain_partition,
    to_bytes,
)
from tests.persist.publish.iceberg.reading import LONG_S, comparable, iceberg, opened
from tests.persist.publish.mirrored import MirroredStore
from tests.persist.publish.tables import SCHEMA, TRANSFORMS, BuiltTable

UTC, NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")
_int64 = st.integers(-(2**63), 2**63 - 1)
_times = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): _int64,
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    pa.binary(): st.binary(max_size=20),
    pa.date32(): st.dates(),
    UTC: _times.map(lambda us: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(0, 0, us)),
    NAIVE: _times.map(lambda us: dt.datetime(1970, 1, 1) + dt.timedelta(0, 0, us)),
    pa.decimal128(9, 2): st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    pa.decimal128(38, 10): st.integers(-(10**38) + 1, 10**38 - 1).map(
        lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -10))
    ),
}
KINDS = st.sampled_from(list(VALUES))


def iceberg_type(kind: pa.DataType) -> PrimitiveType:
    """pyiceberg's type of a column."""
    built = BuiltTable.definition_of(pa.schema([("v", kind)]))
    found = Schema.model_validate(schema_json(built)).fields[0].field_type
    assert isinstance(found, PrimitiveType)
    return found


@given(st.data())
def test_bounds_are_the_bytes_that_pyiceberg_writes(data: st.DataObject) -> None:
    kind = data.draw(KINDS)
    value = data.draw(VALUES[kind])
    column = pa.table({"v": pa.array([value, None, value], kind)})
    stats = column_stats(column)["v"]
    lower, upper = bound(kind, stats.min, upper=False), bound(kind, stats.max, upper=True)
    if isinstance(value, float) and not np.isfinite(value):
        assert lower is upper is None
    elif value == 0 and isinstance(value, float):
        code = "<f" if kind == pa.float32() else "<d"
        assert (lower, upper) == (struct.pack(code, -0.0), struct.pack(code, 0.0))
    else:
        assert lower == upper == pyiceberg_bytes(iceberg_type(kind), value)


PARTITIONED = {
    "identity": [k for k in VALUES if not (pa.types.is_floating(k) or pa.types.is_binary(k))],
    "year": [UTC, NAIVE, pa.date32()],
    "month": [UTC, NAIVE, pa.date32()],
    "day": [UTC, NAIVE, pa.date32()],
    "hour": [UTC, NAIVE],
    "bucket": [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.binary(), pa.date32()),
        *(UTC, NAIVE, pa.decimal128(9, 2), pa.decimal128(38, 10)),
    ],
}


@given(st.data())
def test_partition_values_are_those_of_pyiceberg(data: st.DataObject) -> None:
    transform = data.draw(st.sampled_from(sorted(PARTITIONED)))
    kind = data.draw(st.sampled_from(PARTITIONED[transform]))
    value = data.draw(VALUES[kind])
    field = PartitionField(transform, "v", 7 if transform == "bucket" else None)
    batch = pa.record_batch({"v": pa.array([value], kind)})
    definition = BuiltTable.definition_of(batch.schema, [str(field)])
    [((written,), _)] = split_batch(batch, definition.spec, folders=False)
    plain = plain_partition(field, kind, written)
    theirs = parsed(transform, field.buckets).transform(iceberg_type(kind))(literal(value, kind))
    result = result_type(field, kind)
    if pa.types.is_decimal128(result):
        assert plain == int(theirs.scaleb(result.scale, Context(prec=76)))
        fixed: Any = in_partition(result, plain)
        assert int.from_bytes(fixed, "big", signed=True) == plain
    else:
        assert plain == theirs
    assert plain is not None
    assert from_bytes(result, to_bytes(result, plain)) == plain


def parsed(transform: str, buckets: int | None) -> Any:
    """pyiceberg's transform."""
    return parse_transform(transform if buckets is None else f"bucket[{buckets}]")


def literal(value: Any, kind: pa.DataType) -> Any:
    """A value as pyiceberg's transforms take it."""
    if pa.types.is_timestamp(kind):
        return pa.scalar(value, kind).value
    return pa.scalar(value, kind).value if pa.types.is_date32(kind) else value


@pytest.mark.parametrize("number", [-(2**63) + 1, 2**63 - 1, 0, -1, 10**17, -(10**17)])
@pytest.mark.parametrize("transform", ["identity", "year", "month", "day", "hour"])
def test_times_beyond_all_calendars_have_partitions(transform: str, number: int) -> None:
    field = PartitionField(transform, "v")
    batch = pa.record_batch({"v": pa.array([number]).view(UTC)})
    definition = BuiltTable.definition_of(batch.schema, [str(field)])
    [((written,), _)] = split_batch(batch, definition.spec, folders=False)
    plain = plain_partition(field, UTC, written)
    days = np.datetime64(number // 86_400_000_000, "D")
    wanted = {
        "identity": number,
        "year": int(days.astype("datetime64[Y]").astype(np.int64)),
        "month": int(days.astype("datetime64[M]").astype(np.int64)),
        "day": int(days.astype(np.int64)),
        "hour": max(-(2**31), min(number // 3_600_000_000, 2**31 - 1)),
    }[transform]
    assert plain == wanted
    assert from_bytes(result_type(field, UTC), to_bytes(result_type(field, UTC), wanted)) == wanted


COMPARISONS = (
    ex.EqualTo,
    ex.NotEqualTo,
    ex.LessThan,
    ex.LessThanOrEqual,
    ex.GreaterThan,
    ex.GreaterThanOrEqual,
)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_filter_loses_a_row(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = data.draw(st.none() | st.sampled_from(TRANSFORMS))
    if text is None:
        kind, spec = data.draw(KINDS), []
    else:
        transform = PartitionField.parse(text)
        kind = SCHEMA.field(transform.column).type
        spec = [str(PartitionField(transform.transform, "v", transform.buckets))]
    values = st.none() | VALUES[kind].filter(fits_a_folder)
    rows = data.draw(st.lists(values, min_size=1, max_size=8))
    batches = data.draw(st.lists(st.lists(values, min_size=1, max_size=8), max_size=2))
    schema = pa.schema([("n", pa.int64()), ("v", kind)])
    folder: Path = tmp_path_factory.mktemp("filtered")
    built = BuiltTable(MirroredStore(folder), schema, spec)
    for part in (rows, *batches):
        built.append(pa.table({"n": pa.array(range(len(part))), "v": pa.array(part, kind)}, schema))
    head = iceberg(built.store).publish(built.steps(), retain_s=LONG_S)
    check_filters(head.location, [v for part in (rows, *batches) for v in part], data)


def fits_a_folder(value: Any) -> bool:
    return not isinstance(value, str) or len(value) < 12


def check_filters(location: str, values: list[Any], data: st.DataObject) -> None:
    """Rows that a filter finds are those that Python's comparison finds."""
    table = opened(location)
    everything = table.scan().to_arrow()
    known = [value for value in values if value is not None and value == value]
    filters: list[tuple[Any, Any]] = [(ex.IsNull(term=ex.Reference("v")), lambda v: v is None)]
    filters.append((ex.NotNull(term=ex.Reference("v")), lambda v: v is not None))
    # pyiceberg adds a microsecond to a literal, and Python has no datetime after the last one.
    known = [value for value in known if str(value)[:26] != str(dt.datetime.max)]
    if known:
        pivot = data.draw(st.sampled_from(known))
        compare = data.draw(st.sampled_from(COMPARISONS))
        filters.append((compare("v", pivot), comparison(compare, pivot)))
    for expression, keeps in filters:
        found = table.scan(row_filter=expression).to_arrow()
        wanted = [row for row in everything.to_pylist() if keeps(row["v"])]
        assert comparable(found) == sorted(map(repr, wanted)), expression


def comparison(kind: Any, pivot: Any) -> Any:
    tests = {
        ex.EqualTo: lambda v: v == pivot,
        ex.NotEqualTo: lambda v: v != pivot,
        ex.LessThan: lambda v: v < pivot,
        ex.LessThanOrEqual: lambda v: v <= pivot,
        ex.GreaterThan: lambda v: v > pivot,
        ex.GreaterThanOrEqual: lambda v: v >= pivot,
    }
    return lambda v: v is not None and tests[kind](v)
