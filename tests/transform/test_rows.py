"""Rows are converted to dicts and back without loss, or with an error."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.transform import SKIP, UNCHANGED, RowTransformer, Signal
from tests.drivers.mixed_rows import ROWS, SCHEMA

Answer = dict[str, Any] | Signal


class Calls(RowTransformer):
    """Answers with the result of a function."""

    def __init__(self, answer: Callable[[dict[str, Any]], Any], out: pa.Schema | None) -> None:
        self._answer = answer
        self._out = out

    def transform_row(self, row: dict[str, Any]) -> Answer:
        answer: Answer = self._answer(row)
        return answer

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return self._out or schema


def through(
    batch: pa.RecordBatch, answer: Callable[[dict[str, Any]], Any], out: pa.Schema | None = None
) -> Any:
    return Calls(answer, out).transform(batch)


NUMBERS = pa.record_batch({"i": pa.array([1, 2, 3, 4]), "s": ["a", None, "c", "d"]})


def test_rows_keep_their_order_whatever_becomes_of_them() -> None:
    def answer(row: dict[str, Any]) -> Answer:
        kinds: dict[int, Answer] = {1: {**row, "i": 10}, 2: UNCHANGED, 3: SKIP}
        return kinds.get(row["i"], {**row, "i": 40})

    made = through(NUMBERS, answer)
    assert made.to_pydict() == {"i": [10, 2, 40], "s": ["a", None, "d"]}


def test_a_slice_of_a_batch_is_its_rows_alone() -> None:
    kinds = {2: UNCHANGED, 3: {"i": 30, "s": "x"}}
    made = through(NUMBERS.slice(1, 2), lambda row: kinds[row["i"]])
    assert made.to_pydict() == {"i": [2, 30], "s": [None, "x"]}


def test_all_unchanged_is_unchanged_and_none_left_is_skip() -> None:
    assert through(NUMBERS, lambda row: UNCHANGED) is UNCHANGED
    assert through(NUMBERS, lambda row: SKIP) is SKIP


def test_columns_come_and_go() -> None:
    out = pa.schema({"s": pa.string(), "n": pa.int8()})
    made = through(NUMBERS, lambda row: {"n": row["i"]}, out)
    assert made.schema == out
    assert made.to_pydict() == {"s": [None] * 4, "n": [1, 2, 3, 4]}
    wider = pa.schema([*NUMBERS.schema, pa.field("n", pa.int8())])
    assert through(NUMBERS, lambda row: UNCHANGED, wider)["n"].null_count == 4


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda row: {**row, "typo": 1}, r"columns \['typo'\], which output_schema does not have"),
        (lambda row: {**row, "i": 1.5}, "'i': 1.5 does not fit int64"),
        (lambda row: {**row, "i": 2**64}, "column 'i' of int64"),
        (lambda row: {**row, "i": "1"}, "column 'i' of int64"),
        (lambda row: {**row, "s": 1}, "column 's' of string"),
        (lambda row: None, "transform_row returned NoneType"),
        (lambda row: row.update(i=7) or UNCHANGED, r"changed \['i'\] of the row and returned"),
        (lambda row: row.pop("i") and UNCHANGED, r"changed \['i'\] of the row and returned"),
    ],
)
def test_what_cannot_be_kept_is_an_error(answer: Callable[[Any], Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        through(NUMBERS, answer)


@pytest.mark.parametrize(
    "out", [pa.schema({"i": pa.int64()}), pa.schema({"i": pa.string(), "s": pa.string()})]
)
def test_an_unchanged_row_has_to_fit_the_output(out: pa.Schema) -> None:
    with pytest.raises(ValueError, match="UNCHANGED"):
        through(NUMBERS, lambda row: UNCHANGED, out)


NOON = dt.datetime(2026, 11, 21, 12, 0, 0, 5)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.timestamp("s"), NOON.replace(microsecond=0), NOON),
        (pa.timestamp("ms", "UTC"), NOON.replace(microsecond=0, tzinfo=dt.UTC), NOON),
        (pa.timestamp("us", "UTC"), NOON.replace(tzinfo=dt.UTC), NOON),
        (pa.timestamp("us"), NOON, NOON.replace(tzinfo=dt.UTC)),
        (pa.timestamp("ns", "UTC"), NOON.replace(tzinfo=dt.UTC), NOON),
        (pa.list_(pa.timestamp("us", "UTC")), [NOON.replace(tzinfo=dt.UTC)], [NOON]),
        (pa.date32(), NOON.date(), NOON),
        (pa.date32(), dt.datetime(2026, 11, 21), NOON),
        (pa.duration("s"), dt.timedelta(seconds=3), dt.timedelta(microseconds=3)),
        (pa.time32("s"), dt.time(1, 2, 3), dt.time(1, 2, 3, 4)),
        (pa.decimal128(5, 1), Decimal("1.5"), Decimal("1.55")),
        (pa.list_(pa.int8()), [1, 2], [1, 2.5]),
        (pa.struct({"x": pa.int8()}), {"x": 1}, {"x": 1, "y": 2}),
        (pa.map_(pa.string(), pa.int8()), {"x": 1}, {"x": 1.5}),
        (pa.binary(2), b"ab", b"abc"),
        (pa.uint8(), 255, -1),
        (pa.float32(), 0.1, 1e39),
        (pa.float32(), -math.inf, -1e39),
        (pa.float32(), 2**24, 2**24 + 1),
        (pa.float64(), 2**53, 2**53 + 1),
        (pa.list_(pa.float32()), [1e38], [1e39]),
        (pa.decimal128(38, 18), Decimal(1), Decimal(341 * 10**18)),
        (pa.decimal128(38, 37), Decimal(1), Decimal(35)),
        (pa.timestamp("ns"), 1_000_000_007, "noon"),
    ],
)
def test_a_value_is_kept_as_it_is_or_refused(kind: pa.DataType, good: Any, bad: Any) -> None:
    batch = pa.record_batch({"v": pa.nulls(1, kind)})
    assert through(batch, lambda row: {"v": good})["v"].null_count == 0
    with pytest.raises(ValueError, match="column 'v'"):
        through(batch, lambda row: {"v": bad})


def test_every_type_goes_through_a_dict_and_back() -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, SCHEMA)
    assert through(batch, lambda row: dict(row)).equals(batch)


@given(
    st.lists(st.none() | st.integers(-(2**62), 2**62), min_size=1, max_size=20),
    st.sampled_from(["UTC", "America/New_York", "Europe/Berlin", None]),
    st.sampled_from(["ns", "us", "ms", "s"]),
)
def test_times_of_any_zone_and_unit_stay_as_they_are(
    ticks: list[int | None], zone: str | None, unit: str
) -> None:
    # Python's years end with 9999.
    most = {"ns": 2**62, "us": 10**17, "ms": 10**14, "s": 10**11}[unit]
    kept = [None if tick is None else tick % most for tick in ticks]
    batch = pa.record_batch({"t": pa.array(kept, pa.int64()).cast(pa.timestamp(unit, zone))})
    made = through(batch, lambda row: dict(row))
    assert made.equals(batch)
