"""The row order of a file equals a plain sort, with nulls last and ties stable."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import persist.parquet.sort_keys
from persist.parquet.sort import MAX_TAG_CARDINALITY, SAMPLE_ROWS, sort_rows, taken
from persist.partitioning import UNPARTITIONED
from persist.table import TableDefinition

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "i": pa.int64(),
        "u": pa.uint64(),
        "t": pa.int8(),
        "b": pa.bool_(),
        "s": pa.string(),
        "y": pa.binary(),
        "d": pa.date32(),
        "dec": pa.decimal128(12, 2),
        "time": pa.timestamp("us", "UTC"),
    }
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.one_of(st.integers(-2, 2), st.sampled_from([-(2**63), 2**63 - 2])),
    "u": st.one_of(st.integers(0, 2), st.sampled_from([2**63, 2**64 - 1])),
    "t": st.sampled_from([-128, 0, 1, 127]),
    "b": st.booleans(),
    "s": st.text("abü", max_size=2),
    "y": st.binary(max_size=1),
    "d": st.dates(dt.date(2026, 11, 19), dt.date(2026, 11, 22)),
    "dec": st.decimals(-1, 1, places=2),
    "time": st.sampled_from(
        [dt.datetime(2026, 11, 21, hour, tzinfo=dt.UTC) for hour in (0, 1, 23)]
        + [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 1, 1, tzinfo=dt.UTC)]
    ),
}
tables = st.lists(
    st.fixed_dictionaries({name: st.one_of(st.none(), values) for name, values in VALUES.items()}),
    max_size=30,
)
orders = st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4, unique=True)


def _table(rows: list[dict[str, Any]], pieces: int = 3) -> pa.Table:
    numbered = [{"n": n, **row} for n, row in enumerate(rows)]
    step = max(1, len(rows) // pieces)
    batches = [
        pa.RecordBatch.from_pylist(numbered[start : start + step], SCHEMA)
        for start in range(0, len(rows), step)
    ]
    return pa.Table.from_batches(batches, SCHEMA)


def _key(row: dict[str, Any], names: list[str]) -> list[Any]:
    def comparable(value: Any) -> Any:
        return value.encode() if isinstance(value, str) else value

    return [
        (row[name] is None, 0 if row[name] is None else comparable(row[name])) for name in names
    ]


def _numbers(table: pa.Table) -> list[int]:
    return table["n"].to_pylist()  # type: ignore[no-any-return]


@given(tables, orders)
def test_sort_by_is_a_stable_sort_with_nulls_last(
    rows: list[dict[str, Any]], names: list[str]
) -> None:
    table = _table(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(persist.parquet.sort_keys, "PIECE_ROWS", 3)
        found = sort_rows(table, TableDefinition(SCHEMA, UNPARTITIONED, sort_by=tuple(names)))
    assert _numbers(found.slice()) == sorted(range(len(rows)), key=lambda n: _key(rows[n], names))
    if rows:
        assert found.order == tuple(names)
    # Whole rows have moved; dictionaries only encode the same strings differently.
    assert (
        found.slice().cast(SCHEMA).combine_chunks()
        == table.take(found.slice()["n"]).combine_chunks()
    )


@given(tables, orders)
def test_a_keyed_table_keeps_the_last_row_of_each_key(
    rows: list[dict[str, Any]], key: list[str]
) -> None:
    rows = [{**row, **{name: _filled(name, row[name]) for name in key}} for row in rows]
    table = _table(rows)
    found = sort_rows(table, TableDefinition(SCHEMA, UNPARTITIONED, primary_key=tuple(key)))
    last = {tuple(row[name] for name in key): n for n, row in enumerate(rows)}
    assert sorted(_numbers(found.slice())) == sorted(last.values())
    ordered = [rows[n] for n in _numbers(found.slice())]
    names = [name for name in found.order if name != "time"] + ["time"] * ("time" in found.order)
    assert sorted(names) == sorted(key) or not rows
    assert ordered == sorted(ordered, key=lambda row: _key(row, names))


def _filled(name: str, value: Any) -> Any:
    defaults = {"i": 0, "u": 0, "t": 0, "b": False, "s": "", "y": b"", "d": dt.date(2026, 11, 20)}
    defaults |= {"dec": Decimal("0.00"), "time": dt.datetime(2026, 11, 21, tzinfo=dt.UTC)}
    return defaults[name] if value is None else value


@given(tables)
def test_without_any_order_tags_come_first_and_time_last(rows: list[dict[str, Any]]) -> None:
    found = sort_rows(_table(rows), TableDefinition(SCHEMA, UNPARTITIONED))
    if not rows:
        return
    assert found.order == ("s", "time")
    expected = sorted(range(len(rows)), key=lambda n: _key(rows[n], ["s", "time"]))
    assert _numbers(found.slice()) == expected


def test_tags_are_ordered_by_rising_cardinality() -> None:
    rows = 100
    table = pa.table(
        {
            "many": [f"m{n % 50}" for n in range(rows)],
            "few": [f"f{n % 2}" for n in range(rows)],
            "some": [f"s{n % 10}" for n in range(rows)],
            "v": list(range(rows)),
        }
    )
    found = sort_rows(table, TableDefinition(table.schema, UNPARTITIONED))
    assert found.order == ("few", "some", "many")
    keys = [(r["few"], r["some"], r["many"], r["v"]) for r in found.slice().to_pylist()]
    assert keys == sorted(keys)


def test_a_text_column_with_too_many_values_is_no_tag() -> None:
    rows = MAX_TAG_CARDINALITY + 1
    table = pa.table(
        {"text": [str(-n) for n in range(rows)], "tag": ["b", "a"] * (rows // 2) + ["c"]}
    )
    found = sort_rows(table, TableDefinition(table.schema, UNPARTITIONED))
    assert found.order == ("tag",)
    assert found.slice()["tag"].to_pylist() == sorted(table["tag"].to_pylist())


def test_a_text_column_is_judged_without_joining_its_chunks() -> None:
    """A table's only text column is most of its memory; joining the chunks would double it."""
    rows = 40 * SAMPLE_ROWS
    table = pa.table({"text": [f"{n:060}" for n in range(rows)]})
    table = pa.Table.from_batches(table.to_batches(max_chunksize=rows // 50))
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        order = sort_rows(table, TableDefinition(table.schema, UNPARTITIONED)).order
    finally:
        pa.set_memory_pool(before)
    assert order == ()
    assert 0 < pool.max_memory() < table.nbytes / 4


@given(
    st.lists(st.lists(st.one_of(st.none(), st.text(max_size=3))), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_rows_taken_by_rising_numbers_equal_arrows(
    chunks: list[list[str | None]], draw: random.Random
) -> None:
    column = pa.chunked_array([pa.array(chunk, pa.string()) for chunk in chunks])
    numbers = sorted(draw.sample(range(len(column)), draw.randint(0, len(column))))
    if numbers:
        found = taken(column, np.array(numbers, np.uint32))
        assert found.to_pylist() == column.take(pa.array(numbers)).to_pylist()


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_large_sorts_agree_with_pyarrow(seed: int, columns: int) -> None:
    import numpy as np

    draw = np.random.default_rng(seed)
    names = [f"k{c}" for c in range(columns)]
    span = int(draw.choice([3, 1000, 2**31, 2**62]))
    data = {name: draw.integers(-span, span, 3000) for name in names}
    table = pa.table({**data, "n": np.arange(3000)})
    found = sort_rows(table, TableDefinition(table.schema, UNPARTITIONED, sort_by=tuple(names)))
    order = [(name, "ascending") for name in [*names, "n"]]
    assert found.slice().equals(table.sort_by(order))


@given(tables, orders, st.integers(1, 12), st.integers(0, 30), st.integers(0, 30))
def test_a_range_of_rows_is_the_same_for_any_chunks(
    rows: list[dict[str, Any]], names: list[str], pieces: int, start: int, count: int
) -> None:
    definition = TableDefinition(SCHEMA, UNPARTITIONED, sort_by=tuple(names))
    whole = _numbers(sort_rows(_table(rows, 1), definition).slice())
    chunked = sort_rows(_table(rows, pieces), definition)
    start = min(start, chunked.rows)
    count = min(count, chunked.rows - start)
    assert _numbers(chunked.slice(start, count)) == whole[start : start + count]
    if chunked.arrivals is not None:
        assert chunked.arrivals.tolist() == whole  # n is the position in order of arrival
    else:
        assert whole == list(range(len(rows)))


def test_large_chunks_are_gathered_one_by_one() -> None:
    order = np.random.default_rng(7).permutation(10_000)
    table = pa.table({"n": order, "s": [f"text {n}" for n in order]})
    batches = table.to_batches(max_chunksize=900)
    definition = TableDefinition(table.schema, UNPARTITIONED, sort_by=("n",))
    found = sort_rows(pa.Table.from_batches(batches), definition)
    for start, stop in ((0, 10_000), (0, 1), (17, 6017), (9_990, 10_000)):
        piece = found.slice(start, stop - start)
        assert piece["n"].to_pylist() == list(range(start, stop))
        assert piece["s"].to_pylist() == [f"text {n}" for n in range(start, stop)]


def test_the_largest_integer_sorts() -> None:
    """An overflow once ended the daemon, and each later start."""
    for kind in (pa.int64(), pa.timestamp("us")):
        table = pa.table({"time": pa.array([2**63 - 1, 2**63 - 2], pa.int64()).cast(kind)})
        found = sort_rows(table, TableDefinition(table.schema, UNPARTITIONED, sort_by=("time",)))
        assert found.slice()["time"].cast(pa.int64()).to_pylist() == [2**63 - 2, 2**63 - 1]


@given(tables, orders, st.sampled_from(list(VALUES)))
def test_a_keyed_table_with_its_own_sort_order_keeps_the_last_row_too(
    rows: list[dict[str, Any]], order: list[str], key: str
) -> None:
    rows = [{**row, key: _filled(key, row[key])} for row in rows]
    definition = TableDefinition(SCHEMA, UNPARTITIONED, primary_key=(key,), sort_by=tuple(order))
    found = sort_rows(_table(rows), definition)
    last = {row[key]: n for n, row in enumerate(rows)}
    kept = _numbers(found.slice())
    assert kept == sorted(last.values(), key=lambda n: _key(rows[n], [*order, key]))
