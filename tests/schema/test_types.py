"""The types of table columns, and which of them widen into which."""

from __future__ import annotations

import itertools
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.errors import BadRequest
from ingester.schema import Normaliser
from ingester.schema.types import table_type, widens
from persist.partitioning import UNPARTITIONED
from persist.table import TableDefinition

plain = st.sampled_from(
    [
        pa.bool_(),
        *(getattr(pa, f"{u}int{bits}")() for u in ("", "u") for bits in (8, 16, 32, 64)),
        pa.float32(),
        pa.float64(),
        pa.decimal128(5, 2),
        pa.decimal128(38, 2),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.binary(3),
        pa.date32(),
        pa.timestamp("s"),
        pa.timestamp("ns", "UTC"),
    ]
)
types = st.recursive(
    plain,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.list_(kind, 2)),
        inner.map(lambda kind: pa.struct([("a", kind), ("b", pa.int8())])),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    ),
    max_leaves=4,
)
refused = st.sampled_from(
    [
        pa.float16(),
        pa.time32("s"),
        pa.time64("us"),
        pa.duration("s"),
        pa.date64(),
        pa.month_day_nano_interval(),
        pa.decimal256(40, 0),
        pa.run_end_encoded(pa.int32(), pa.int8()),
    ]
)


@given(types, st.sampled_from(["us", "ns"]))
def test_a_kept_type_is_kept_as_it_is(kind: pa.DataType, unit: str) -> None:
    kept = table_type("c", kind, unit)
    assert table_type("c", kept, unit) == kept
    assert widens(kept, kept)


@given(types, st.sampled_from(["us", "ns"]))
def test_nulls_of_every_type_pass_through_the_normaliser(kind: pa.DataType, unit: str) -> None:
    kept = table_type("c", kind, unit)
    definition = TableDefinition(pa.schema({"c": kept}), UNPARTITIONED, timestamp_unit=unit)
    batch = pa.record_batch({"c": pa.nulls(3, kind)})
    found = Normaliser(definition, batch.schema)(batch)
    assert found.schema == definition.schema
    found.validate(full=True)
    assert found["c"].null_count == 3


@given(refused, st.integers(0, 3))
def test_a_refused_type_is_named_however_deep_it_lies(kind: pa.DataType, depth: int) -> None:
    sent = kind
    for level in range(depth):
        sent = [pa.list_(sent), pa.struct([("x", sent)]), pa.map_(pa.int8(), sent)][level]
    with pytest.raises(BadRequest, match="'deep'") as error:
        table_type("deep", sent, "us")
    assert str(kind) in str(error.value)


def test_nesting_without_end_is_refused() -> None:
    kind = pa.int8()
    for _ in range(200):
        kind = pa.list_(kind)
    with pytest.raises(BadRequest, match="nested"):
        table_type("c", kind, "us")


INTEGERS = [getattr(pa, f"{u}int{bits}")() for u in ("", "u") for bits in (8, 16, 32, 64)]


def _range(kind: pa.DataType) -> tuple[int, int]:
    bits = kind.bit_width
    signed = pa.types.is_signed_integer(kind)
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)


@pytest.mark.parametrize(("sent", "kept"), list(itertools.product(INTEGERS, INTEGERS)), ids=str)
def test_integers_widen_exactly_where_every_value_fits(
    sent: pa.DataType, kept: pa.DataType
) -> None:
    low, high = _range(sent)
    fits = _range(kept)[0] <= low and high <= _range(kept)[1]
    assert widens(sent, kept) == fits
    if fits:
        definition = TableDefinition(pa.schema({"c": kept}), UNPARTITIONED)
        batch = pa.record_batch({"c": pa.array([low, None, high], sent)})
        assert Normaliser(definition, batch.schema)(batch)["c"].to_pylist() == [low, None, high]


@given(plain, plain)
def test_types_of_different_kinds_never_widen(sent: pa.DataType, kept: pa.DataType) -> None:
    families = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if not sent.equals(kept) and not any(is_a(sent) and is_a(kept) for is_a in families):
        assert not widens(sent, kept)


@given(st.integers(1, 38), st.integers(1, 38), st.integers(0, 5), st.integers(0, 5))
def test_decimals_widen_into_more_digits_of_the_same_scale(
    sent: int, kept: int, sent_scale: int, kept_scale: int
) -> None:
    expected = sent_scale == kept_scale and sent <= kept
    assert widens(pa.decimal128(sent, sent_scale), pa.decimal128(kept, kept_scale)) == expected


@given(st.lists(st.one_of(st.none(), st.integers(-(2**62), 2**62)), min_size=1, max_size=10))
def test_nanoseconds_pass_exactly_where_they_are_whole_microseconds(
    ticks: list[int | None],
) -> None:
    definition = TableDefinition(pa.schema({"t": pa.timestamp("us")}), UNPARTITIONED)
    batch = pa.record_batch({"t": pa.array(ticks, pa.timestamp("ns"))})
    lossy = sum(1 for tick in ticks if tick is not None and tick % 1000)
    normalise = Normaliser(definition, batch.schema)
    if lossy:
        with pytest.raises(BadRequest, match=f"'t': {lossy} of {len(ticks)} "):
            normalise(batch)
    else:
        expected = [None if tick is None else tick // 1000 for tick in ticks]
        assert normalise(batch)["t"].cast(pa.int64()).to_pylist() == expected


def test_decimal_values_keep_their_value_in_wider_columns() -> None:
    definition = TableDefinition(pa.schema({"c": pa.decimal128(38, 2)}), UNPARTITIONED)
    batch = pa.record_batch({"c": pa.array([Decimal("-1.25")], pa.decimal128(3, 2))})
    assert Normaliser(definition, batch.schema)(batch)["c"].to_pylist() == [Decimal("-1.25")]


def test_nulls_for_a_wide_struct_are_reckoned_with_all_that_is_in_it() -> None:
    wide = pa.struct([(f"f{n}", pa.struct([("x", pa.int64())])) for n in range(100)])
    definition = TableDefinition(pa.schema([("s", wide), ("v", pa.int64())]), UNPARTITIONED)
    sent = pa.record_batch({"s": pa.nulls(1000), "v": pa.nulls(1000)})
    reckoned = Normaliser(definition, sent.schema).plain_bytes(sent)
    kept = Normaliser(definition, sent.schema)(sent)
    assert reckoned >= 0.9 * pa.ipc.get_record_batch_size(kept) > 700_000
