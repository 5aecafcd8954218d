"""Every value of a table survives a round trip through text."""

import datetime
import decimal
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingester.cli.input.csv_rows import CsvRows
from ingester.cli.input.json_lines import JsonLines
from ingester.cli.input.source import TextSource, text_options
from ingester.cli.output.formats import open_sink
from ingester.time_texts import far_count, far_text
from tests.drivers.all_types import plain

Typed = tuple[pa.DataType, st.SearchStrategy[Any]]
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
WIDE = decimal.Context(prec=60)
LEAVES: list[Typed] = [
    (pa.bool_(), st.booleans()),
    (pa.int64(), INT64),
    (pa.uint64(), st.integers(0, (1 << 64) - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=6)),
    (pa.binary(), st.binary(max_size=5)),
    (
        pa.decimal128(30, 9),
        st.integers(1 - 10**30, 10**30 - 1).map(lambda n: Decimal(n).scaleb(-9, WIDE)),
    ),
    (pa.date32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (pa.timestamp("us"), INT64),
    (pa.timestamp("us", "America/New_York"), INT64),
    (pa.timestamp("ns"), INT64),
]
leaves = st.sampled_from(LEAVES)


def lists(inner: Typed) -> Typed:
    return pa.list_(inner[0]), st.lists(st.none() | inner[1], max_size=3)


def structs(fields: list[Typed]) -> Typed:
    kind = pa.struct([(f"k{n}", inner) for n, (inner, _) in enumerate(fields)])
    values = {f"k{n}": st.none() | value for n, (_, value) in enumerate(fields)}
    return kind, st.fixed_dictionaries(values)


def maps(sides: tuple[Typed, Typed]) -> Typed:
    (key, keys), (item, items) = sides
    return pa.map_(key, item), st.lists(st.tuples(keys, st.none() | items), max_size=3)


typed = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(lists),
        st.lists(inner, min_size=1, max_size=2).map(structs),
        st.tuples(leaves, inner).map(maps),
    ),
    max_leaves=4,
)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Draw a few rows of columns of any types; times are drawn as integers."""
    rows = draw(st.integers(1, 4))
    columns = [
        pa.array(
            draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), counted(kind)
        ).cast(kind)
        for kind, values in draw(st.lists(typed, min_size=1, max_size=3))
    ]
    return pa.record_batch(columns, names=[f"c{n}" for n in range(len(columns))])


def counted(kind: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_date32(kind):
        return pa.int32()
    if t.is_timestamp(kind):
        return pa.int64()
    if t.is_list(kind):
        return pa.list_(counted(kind.value_type))
    if t.is_map(kind):
        return pa.map_(counted(kind.key_type), counted(kind.item_type))
    if t.is_struct(kind):
        fields = [kind.field(n) for n in range(kind.num_fields)]
        return pa.struct([field.with_type(counted(field.type)) for field in fields])
    return kind


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches(), data=st.data())
def test_any_batch_survives_a_round_trip_through_text(
    kind: str, tmp_path: Path, batch: pa.RecordBatch, data: st.DataObject
) -> None:
    written = io.BytesIO()
    sink = open_sink(kind, written, batch.schema, seekable=False)
    cut = data.draw(st.integers(0, batch.num_rows))
    sink.write(batch.slice(0, cut))
    sink.write(batch.slice(cut))
    sink.finish()
    path = tmp_path / "rows"
    path.write_bytes(written.getvalue())
    options = text_options(None, "," if kind == "csv" else None, None, False, None)
    reader = CsvRows if kind == "csv" else JsonLines
    source = reader(TextSource(str(path), None), options, batch.schema)
    found = pa.Table.from_batches(list(source.batches()), schema=source.schema)
    assert found.num_rows == batch.num_rows
    for name in batch.schema.names:
        if name not in found.schema.names:  # a column of nulls only
            assert batch.column(name).null_count == batch.num_rows
            continue
        assert found.schema.field(name).type == batch.schema.field(name).type
        assert plain(found.column(name).combine_chunks()) == plain(batch.column(name))


@given(INT64, st.sampled_from(["s", "ms", "us", "ns"]), st.sampled_from([None, "UTC"]))
def test_a_time_of_any_year_reads_back_from_its_text(
    count: int, unit: str, zone: str | None
) -> None:
    if unit in ("s", "ms"):
        count //= 10**6  # otherwise years have more than seven digits
    kind = pa.timestamp(unit, zone)
    assert far_count(far_text(count, kind) + ("Z" if zone else ""), kind) == count


@given(st.datetimes())
def test_a_time_has_the_text_of_pythons_isoformat(time: datetime.datetime) -> None:
    count = (time - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    assert far_text(count, pa.timestamp("us")) == time.isoformat(" ", "microseconds")
