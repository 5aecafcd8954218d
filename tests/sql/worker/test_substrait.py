"""A pushed filter finds the rows that Arrow finds, or all of them and some more."""

from __future__ import annotations

import datetime as dt
import math
import os
import time
from decimal import Decimal
from functools import reduce
from itertools import product
from operator import and_, or_

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from hypothesis import given, note, settings
from hypothesis import strategies as st

from ingester.sql.worker.substrait import MAX_ALTERNATIVES, columns_of, pushed_filter
from tests.drivers.sql_filters import COLUMNS, SCHEMA, scans_of, tables

TABLES = int(os.environ.get("INGESTER_TEST_EXAMPLES", "10"))
I8, F64, NAME = ds.field("i8"), ds.field("f64"), ds.field("Name")
NAMES = [name for name, column in COLUMNS.items() if not pa.types.is_nested(column.type)]
COMPARED = [pc.equal, pc.not_equal, pc.less, pc.less_equal, pc.greater, pc.greater_equal]


@st.composite
def _leaves(draw: st.DrawFn) -> ds.Expression:
    kind = draw(st.integers(0, 9))
    name = draw(st.sampled_from([name for name in NAMES if name != "none"]))
    field, column = ds.field(name), COLUMNS[name]
    if kind < 5:
        value = draw(st.sampled_from([None, *column.values]))
        return draw(st.sampled_from(COMPARED))(field, pa.scalar(value, column.type))
    if kind < 7:
        # Arrow's is_in tells the zeros apart, DuckDB and tickets do not. DuckDB asks for 0 by "=".
        values = [value for value in column.values if value != 0 or not isinstance(value, float)]
        return field.isin(
            pa.array(draw(st.lists(st.sampled_from(values), max_size=4)), column.type)
        )
    if kind == 7:
        field = ds.field(draw(st.sampled_from(sorted(COLUMNS))))
        return field.is_null() if draw(st.booleans()) else field.is_valid()
    return draw(
        st.sampled_from(
            [
                ds.field("b"),
                ds.field("s", "x") > 1,
                ds.field("s", "y", "z").is_null(),
                I8.cast(pa.int32()) < 5,
                pc.add(I8, 0) > 1,
                F64.is_nan(),
                (I8 > 1).is_null(),
                pc.scalar(True),
                pc.scalar(False),
                pc.scalar(pa.scalar(None, pa.bool_())),
            ]
        )
    )


def expressions() -> st.SearchStrategy[ds.Expression]:
    return st.recursive(
        _leaves(),
        lambda inner: st.one_of(
            st.builds(lambda one: ~one, inner),
            st.builds(and_, inner, inner),
            st.builds(or_, inner, inner),
            st.builds(pc.if_else, inner, inner, inner),
        ),
        max_leaves=6,
    )


@given(tables(most_rows=40), st.lists(expressions(), min_size=15, max_size=15))
@settings(max_examples=TABLES)
def test_a_filter_finds_the_rows_of_its_expression(
    table: pa.Table, wanted: list[ds.Expression]
) -> None:
    scan = scans_of(table)
    for expression in wanted:
        note(str(expression))
        pushed = pushed_filter(expression, SCHEMA)
        expected = table.filter(expression)["id"].to_pylist()
        found = [row for batch in scan(["id"], pushed.terms) for row in batch["id"].to_pylist()]
        assert set(expected) <= set(found)
        assert not pushed.exact or found == expected
        looked_at = columns_of(expression, SCHEMA)
        assert table.select(["id", *looked_at]).filter(expression)["id"].to_pylist() == expected


def test_a_comparison_and_its_opposite_find_every_tempting_value() -> None:
    for name in set(NAMES) - {"none", "ns", "nsz"}:
        column = COLUMNS[name]
        values = pa.array([*column.values, None], column.type)
        table = pa.table({"id": range(len(values)), name: values})
        scan = scans_of(table)
        for value, compare in product(column.values[::3], COMPARED):
            if isinstance(value, float) and not math.isfinite(value):
                continue
            compared = compare(ds.field(name), pa.scalar(value, column.type))
            for expression in (compared, ~compared):
                pushed = pushed_filter(expression, table.schema)
                assert pushed.exact, expression
                found = [row for batch in scan(["id"], pushed.terms) for row in batch["id"]]
                assert found == list(table.filter(expression)["id"]), expression


def test_a_part_that_a_ticket_cannot_say_is_left_out_of_and_but_not_of_or() -> None:
    inside = ds.field("s", "x") == 1
    for expression, terms in [
        (inside & (I8 > 1), [[["i8", ">", 1]]]),
        (inside | (I8 > 1), None),
        (ds.field("s", "y", "z").is_null() & (I8 > 1), [[["i8", ">", 1]]]),
        (~(inside | (I8 > 1)), [[["i8", "not >", 1]]]),
        ((inside & (I8 > 1)) | (I8 == 0), [[["i8", ">", 1]], [["i8", "in", [0]]]]),
    ]:
        pushed = pushed_filter(expression, SCHEMA)
        assert (pushed.terms, pushed.exact) == (terms, False)


def test_values_without_a_form_in_a_ticket_are_left_out() -> None:
    last = pa.scalar(dt.datetime(9999, 12, 31, 23, 59, 59, 999999))
    assert pushed_filter(ds.field("t") == last, SCHEMA).exact
    for expression in (
        ds.field("t") == pa.scalar(last.value + 1, pa.timestamp("us")),
        ds.field("day") == pa.scalar(2932897, pa.date32()),
        ds.field("ns") == pa.scalar(0, pa.timestamp("ns")),
        float("nan") > F64,
        float("inf") > F64,
        I8.isin(pa.array([1, None], pa.int8())),
        pa.scalar(None, pa.int8()) == I8,
        I8 == 300,
    ):
        pushed = pushed_filter(expression, SCHEMA)
        assert (pushed.terms, pushed.exact) == (None, False), expression


def test_a_filter_that_is_never_true_is_not_taken_for_one_without_conditions() -> None:
    null = pc.scalar(pa.scalar(None, pa.bool_()))
    for expression in (
        pc.scalar(False),
        null,
        ~null,
        I8.is_null() & (I8 == 1),
        ~I8.is_null() & I8.is_null(),
    ):
        pushed = pushed_filter(expression, SCHEMA)
        assert pushed.exact
        assert pushed.terms == [[["id", "is null"], ["id", "is not null"]]]
    assert pushed_filter(I8.isin(pa.array([], pa.int8())), SCHEMA).terms == [[["i8", "in", []]]]
    always = pushed_filter(pc.scalar(True), SCHEMA)
    assert (always.terms, always.exact) == (None, True)


def test_arrow_finds_a_null_outside_of_a_list_and_sql_does_not() -> None:
    inside = I8.isin(pa.array([1], pa.int8()))
    outside = [["i8", "not in", [1]]]
    assert pushed_filter(~inside, SCHEMA).terms == [outside, [["i8", "is null"]]]
    as_in_sql = pc.if_else(I8.is_valid(), inside, pa.scalar(None, pa.bool_()))
    assert pushed_filter(~as_in_sql, SCHEMA).terms == [outside]


def test_what_follows_from_other_conditions_is_not_multiplied() -> None:
    pairs = [(n == I8) & (str(n) == NAME) for n in range(3)]
    derived = reduce(or_, [n == I8 for n in range(3)])
    pushed = pushed_filter(reduce(or_, pairs) & derived, SCHEMA)
    assert pushed.exact
    assert pushed.terms == [[["i8", "=", n], ["Name", "=", str(n)]] for n in range(3)]


def test_a_product_of_alternatives_is_bounded() -> None:
    sums = [reduce(or_, [ds.field(name) < n for n in range(8)]) for name in ("i8", "i16", "i32")]
    assert len(pushed_filter(reduce(and_, sums), SCHEMA).terms or ()) == 512
    fourth = reduce(or_, [ds.field("i64") < n for n in range(8)])
    pushed = pushed_filter(reduce(and_, [*sums, fourth]), SCHEMA)
    assert not pushed.exact
    assert 0 < len(pushed.terms or ()) <= MAX_ALTERNATIVES


def test_deeply_nested_expressions_are_not_converted() -> None:
    """Pyarrow would need 2 to the power of 10,000 steps."""
    deep = reduce(and_, [n % 100 != I8 for n in range(10_000)])
    start = time.monotonic()
    pushed = pushed_filter(deep, SCHEMA)
    assert time.monotonic() - start < 5
    assert (pushed.terms, pushed.exact) == (None, False)
    brackets = NAME == ")" * 20 + '"'
    assert not pushed_filter(reduce(and_, [brackets] + [n != I8 for n in range(30)]), SCHEMA).exact


def test_a_long_list_is_one_condition() -> None:
    numbers = list(range(50_000))
    pushed = pushed_filter(ds.field("i64").isin(pa.array(numbers)), SCHEMA)
    assert (pushed.terms, pushed.exact) == ([[["i64", "in", numbers]]], True)


def test_decimals_keep_all_digits() -> None:
    most = Decimal("-9999999999999999999999999999.9999999999")
    pushed = pushed_filter(ds.field("d38") >= pa.scalar(most, COLUMNS["d38"].type), SCHEMA)
    assert pushed.terms == [[["d38", ">=", str(most)]]]
