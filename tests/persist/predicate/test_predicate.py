"""Filters against a model that works row by row; pruning never loses a row."""

from __future__ import annotations

import base64
import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.errors import BadRequest
from ingester.query.ticket import predicate_of
from persist.manifest import ColumnStats
from persist.parquet.encode import encode
from persist.parquet.reading import group_bounds
from persist.parquet.stats import column_stats
from persist.predicate.predicate import FREED

UTC = dt.UTC
DAYS = [dt.date(2026, 11, day) for day in range(18, 25)]
TIMES = [dt.datetime(2026, 11, 21, hour, 30, 0, us, UTC) for hour in (0, 12, 23) for us in (0, 1)]

# column -> (type, values a row may have, how a filter writes one)
COLUMNS: dict[str, tuple[pa.DataType, list[Any], Any]] = {
    "i": (pa.int64(), [-(2**63), -5, 0, 1, 2, 3, 2**53 + 1, 2**63 - 1], lambda v: v),
    "small": (pa.int8(), [-128, -1, 0, 1, 127], lambda v: v),
    "u": (pa.uint64(), [0, 1, 2**63, 2**64 - 1], lambda v: v),
    "f": (pa.float64(), [-1.5, 0.0, 0.1, 1e300], lambda v: v),
    "b": (pa.bool_(), [True, False], lambda v: v),
    "s": (pa.string(), ["", "a", "ab", "b", "ü", "x" * 100], lambda v: v),
    "y": (pa.binary(), [b"", b"\0", b"a", b"\xff"], lambda v: base64.b64encode(v).decode()),
    "d": (pa.date32(), DAYS, lambda v: v.isoformat()),
    "dec": (pa.decimal128(10, 2), [Decimal(n) / 4 for n in range(-2, 5)], str),
    "t": (pa.timestamp("us", "UTC"), TIMES, lambda v: v.isoformat()),
    "naive": (
        pa.timestamp("us"),
        [value.replace(tzinfo=None) for value in TIMES],
        lambda v: v.isoformat(),
    ),
}
SCHEMA = pa.schema({name: kind for name, (kind, _, _) in COLUMNS.items()})
COMPARISONS: dict[str, Any] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}

rows_of_any = st.lists(
    st.fixed_dictionaries(
        {
            name: st.one_of(st.none(), st.sampled_from(values))
            for name, (_, values, _) in COLUMNS.items()
        }
    ),
    min_size=1,
    max_size=12,
)


@st.composite
def _term(draw: st.DrawFn) -> tuple[str, str, Any]:
    """(column, operator, Python value or values)"""
    name = draw(st.sampled_from(list(COLUMNS)))
    values = st.one_of(st.none(), st.sampled_from(COLUMNS[name][1]))
    operator = draw(st.sampled_from([*COMPARISONS, "in", "not in", "is null", "is not null"]))
    if operator.startswith("is"):
        return name, operator, None
    if operator in ("in", "not in"):
        return name, operator, draw(st.lists(values, max_size=4))
    return name, operator, draw(values)


@st.composite
def _alternatives(draw: st.DrawFn) -> list[list[tuple[str, str, Any]]]:
    """Enough alternatives to use a lookup table, some with an additional inequality."""
    columns = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=3, unique=True))
    value = {
        name: st.sampled_from([*COLUMNS[name][1], *BEYOND.get(name, ())])
        if draw(st.booleans())
        else st.one_of(st.none(), st.sampled_from(COLUMNS[name][1]))
        for name in columns
    }
    rows = st.tuples(*(st.tuples(st.just(name), st.just("="), value[name]) for name in columns))
    found = draw(st.lists(rows.map(list), min_size=17, max_size=40))
    others = draw(st.lists(st.tuples(st.just(columns[0]), st.just("!="), value[columns[0]])))
    return found + [others] * bool(others)


BEYOND: dict[str, list[Any]] = {
    "i": [0.5, 2.0, 10**30],
    "small": [300, 1.5],
    "u": [-1, 2**64],
    "f": [-0.0, 3],
    "dec": [Decimal(10) ** 20],
}
"""Values that a column of the type cannot have, or has in another form."""

filters = st.one_of(st.lists(st.lists(_term(), max_size=3), max_size=3), _alternatives())


def _matches(row: dict[str, Any], term: tuple[str, str, Any]) -> bool:
    name, operator, wanted = term
    value = row[name]
    if operator == "is null":
        return value is None
    if value is None:
        return False
    if operator == "is not null":
        return True
    if operator == "in":
        return any(w is not None and value == w for w in wanted)
    if operator == "not in":
        return None not in wanted and all(value != w for w in wanted)
    return wanted is not None and bool(COMPARISONS[operator](value, wanted))


def _expected(rows: list[dict[str, Any]], filter_: list[list[Any]]) -> list[dict[str, Any]]:
    if not filter_:
        return rows
    return [
        row for row in rows if any(all(_matches(row, term) for term in terms) for terms in filter_)
    ]


def _wire(filter_: list[list[Any]]) -> list[list[Any]]:
    """The filter in its wire form."""

    def one(term: tuple[str, str, Any]) -> list[Any]:
        name, operator, value = term
        write = COLUMNS[name][2]
        if operator.startswith("is"):
            return [name, operator]
        if isinstance(value, list):
            return [name, operator, [None if v is None else write(v) for v in value]]
        return [name, operator, None if value is None else write(value)]

    return [[one(term) for term in terms] for terms in filter_]


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


@given(rows_of_any, filters)
def test_a_filter_selects_the_rows_of_the_model(
    rows: list[dict[str, Any]], filter_: list[list[Any]]
) -> None:
    predicate = predicate_of(_wire(filter_), SCHEMA)
    batch = _batch(rows)
    assert predicate.select(batch) == _batch(_expected(batch.to_pylist(), filter_))


@given(rows_of_any, filters)
def test_file_bounds_never_prune_a_matching_row(
    rows: list[dict[str, Any]], filter_: list[list[Any]]
) -> None:
    predicate = predicate_of(_wire(filter_), SCHEMA)
    batch = _batch(rows)
    if _expected(batch.to_pylist(), filter_):
        assert predicate.may_match(column_stats(pa.Table.from_batches([batch])), len(rows))


@given(rows_of_any, filters)
def test_row_group_bounds_never_prune_a_matching_row(
    rows: list[dict[str, Any]], filter_: list[list[Any]]
) -> None:
    predicate = predicate_of(_wire(filter_), SCHEMA)
    batch = _batch(rows)
    if _expected(batch.to_pylist(), filter_):
        file = pq.ParquetFile(encode([pa.Table.from_batches([batch])], {}))
        bounds = group_bounds(file.metadata, 0, SCHEMA)
        assert predicate.may_match(bounds, len(rows))


@given(st.integers(1, 100), st.integers(-10, 110))
def test_bounds_prune_files_that_cannot_match(count: int, wanted: int) -> None:
    stats = column_stats(pa.table({"i": pa.array(range(count), pa.int64())}))
    schema = pa.schema({"i": pa.int64()})
    assert predicate_of([[["i", "=", wanted]]], schema).may_match(stats, count) == (
        0 <= wanted < count
    )
    assert predicate_of([[["i", "<", wanted]]], schema).may_match(stats, count) == (wanted > 0)
    assert predicate_of([[["i", ">", wanted]]], schema).may_match(stats, count) == (
        wanted < count - 1
    )
    assert not predicate_of([[["i", "is null"]]], schema).may_match(stats, count)


def test_bounds_prune_many_alternatives_by_each_value_and_by_each_pair() -> None:
    schema = pa.schema({"i": pa.int64(), "s": pa.string()})
    values = predicate_of([[["i", "=", n * 10]] for n in range(1000)], schema)
    pairs = predicate_of([[["s", "=", f"{n}"], ["i", "=", n]] for n in range(1000)], schema)
    stats = {"i": ColumnStats(min=11, max=19, nulls=0), "s": ColumnStats(min="2", max="3", nulls=0)}
    assert not values.may_match(stats, 5)
    assert values.may_match({"i": ColumnStats(min=11, max=20, nulls=0)}, 5)
    assert not values.may_match({"i": ColumnStats(min=9991, max=None, nulls=0)}, 5)
    assert not pairs.may_match(stats, 5)
    assert pairs.may_match({**stats, "i": ColumnStats(min=19, max=20, nulls=0)}, 5)


def test_alternatives_are_looked_up_and_not_compared_one_by_one() -> None:
    schema = pa.schema({"i": pa.int64(), "s": pa.string(), "v": pa.int64()})
    numbers: list[Any] = [[["i", "=", n]] for n in range(1000)] + [[["i", "in", [7, 2000]]]]
    pairs: list[Any] = [[["s", "=", f"{n}"], ["v", "=", n]] for n in range(1000)]
    turned: list[Any] = [[["v", "=", 5000], ["s", "=", "x"]]]
    unequal: list[Any] = [[["v", "!=", -n] for n in range(1000)]]
    predicate = predicate_of([*numbers, *pairs, *turned, *unequal], schema)
    assert len(predicate.conjunctions) == 3
    assert sum(map(len, predicate.conjunctions)) == 3


def test_a_column_without_bounds_prunes_nothing() -> None:
    assert predicate_of([[["i", "=", 7]]], SCHEMA).may_match({}, 5)


def test_one_conjunction_without_terms_matches_everything() -> None:
    batch = _batch([dict.fromkeys(COLUMNS)])
    assert predicate_of([[["i", "=", 7]], []], SCHEMA).select(batch) == batch


@pytest.mark.parametrize(
    "raw",
    [["i"], ["i", "~", 1], ["nope", "=", 1], ["i", "=", "1"], ["i", "in", 1], ["t", "=", "x"], []],
)
def test_an_invalid_term_is_refused(raw: list[Any]) -> None:
    with pytest.raises(BadRequest, match="filter"):
        predicate_of([[raw]], SCHEMA)


@pytest.mark.parametrize("number", ["1e-999999999", "1e999999999", "0e-999999999", "1" * 10**6])
def test_a_decimal_with_too_many_digits_is_refused_with_a_short_message(number: str) -> None:
    for raw in (["dec", "=", number], ["dec", "in", [number] * 20], ["dec", "<", number]):
        with pytest.raises(BadRequest, match="is not a value of type decimal128") as refused:
            predicate_of([[raw]], SCHEMA)
        assert len(str(refused.value)) < 300


def test_a_zone_in_a_filter_is_an_offset_or_z_and_a_column_without_one_takes_none() -> None:
    schema = pa.schema({"t": pa.timestamp("us", "Europe/Berlin"), "n": pa.timestamp("us")})
    noon = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
    rows = pa.table({"t": [noon], "n": [noon.replace(tzinfo=None)]}, schema=schema)
    for text in ("12:00:00Z", "12:00:00z", "13:00:00+01:00", "08:30:00-0330"):
        predicate = predicate_of([[["t", "=", f"2026-11-21T{text}"]]], schema)
        assert predicate.select(rows.to_batches()[0]).num_rows == 1
    for text in ("12:00:00Z", "13:00:00+01:00"):
        with pytest.raises(BadRequest, match=r"'n'.*no time zone"):
            predicate_of([[["n", "=", f"2026-11-21T{text}"]]], schema)
    for text in ("2026-11-21T12:00:00", "2026-11-21 12:00"):  # of which zone?
        for raw in (["t", "=", text], ["t", "in", [text] * 20]):
            with pytest.raises(BadRequest, match=r"'t'.*as '2026-11-21T12:00:00Z'"):
                predicate_of([[raw]], schema)


def test_a_null_comparison_over_no_rows_selects_none() -> None:
    schema = pa.schema({"i": pa.int64()})
    empty = pa.RecordBatch.from_pylist([], schema)
    for raw in (["i", "=", None], ["i", "not in", [None]]):
        assert predicate_of([[raw]], schema).select(empty) == empty


FLOATS = pa.schema({"f": pa.float64()})


def test_minus_zero_is_in_a_list_with_zero() -> None:
    batch = pa.RecordBatch.from_pylist([{"f": -0.0}], FLOATS)  # "=" finds it, "in" does not
    assert predicate_of([[["f", "=", 0.0]]], FLOATS).select(batch).num_rows == 1
    assert predicate_of([[["f", "in", [0.0]]]], FLOATS).select(batch).num_rows == 1


def test_a_row_group_with_a_nan_is_not_pruned_by_unequal() -> None:
    table = pa.table({"f": [5.0, float("nan")]})  # Parquet's bounds leave NaN out
    footer = pq.ParquetFile(encode([table], {})).metadata
    assert predicate_of([[["f", "!=", 5.0]]], FLOATS).may_match(group_bounds(footer, 0, FLOATS), 2)


def test_a_large_predicate_is_freed_in_pieces_and_its_conjunctions_stay_usable() -> None:
    schema, wanted = pa.schema({"i": pa.int64()}), range(3 * FREED)
    predicate = predicate_of([[["i", ">", n], ["i", "<", n]] for n in wanted], schema)
    conjunctions = predicate.conjunctions
    del predicate
    values = [terms[0].values[0] for terms in conjunctions]
    assert values == [pa.scalar(n) for n in wanted]
