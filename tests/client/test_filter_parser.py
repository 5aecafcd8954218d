"""Filters from text have the meaning of SQL for every row, including nulls."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.client import InvalidRequest
from ingester.client.filter_parser import MAX_TERMS, Disjunction, parse_filter
from ingester.client.wire import encode, encode_filter

COLUMNS = ("a", "b", "c")
OPERATORS = {
    "=": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y,
}


def test_the_grammar_by_example() -> None:
    assert parse_filter("host = 'h1' and v > 3 or x in (1,2) and y is not null") == [
        [("host", "=", "h1"), ("v", ">", 3)],
        [("x", "in", [1, 2]), ("y", "is not null")],
    ]
    assert parse_filter("(a = 1 or b = 2) AND c <> -1.5e3") == [
        [("a", "=", 1), ("c", "!=", -1500.0)],
        [("b", "=", 2), ("c", "!=", -1500.0)],
    ]
    assert parse_filter("not (a == 1 or b is null)") == [[("a", "!=", 1), ("b", "is not null")]]
    assert parse_filter("\"it's\" = 'it''s' and `in` = true") == [
        [("it's", "=", "it's"), ("in", "=", True)]
    ]
    assert parse_filter("a not between 1 and 2 and größe not in ('x')") == [
        [("a", "not >=", 1), ("größe", "not in", ["x"])],
        [("a", "not <=", 2), ("größe", "not in", ["x"])],
    ]
    assert parse_filter("not (f < 1 and not g >= 2)") == [[("f", "not <", 1)], [("g", ">=", 2)]]


def test_a_number_keeps_its_digits() -> None:
    for text, value in (
        ("9007199254740993", 9007199254740993),
        ("0.05", 0.05),
        ("9007199254740993.0", Decimal("9007199254740993.0")),
        ("0.123456789012345678901", Decimal("0.123456789012345678901")),
        ("1e400", Decimal("1e400")),
    ):
        ((term,),) = parse_filter(f"v = {text}")
        found = term[-1]
        assert (found, isinstance(found, Decimal)) == (value, isinstance(value, Decimal))
        assert encode(encode_filter(f"v = {text}")) == encode([[["v", "=", value]]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at 0: expected a column"),
        ("a", "expected a comparison"),
        ("a =", "expected a value"),
        ("a = null", "use 'is null'"),
        ("a = 'x", "without an end"),
        ("a = 1 b = 2", "at 6: expected 'and', 'or'"),
        ("(a = 1", r"expected '\)'"),
        ("a in ()", "expected a value"),
        ("a in (1", r"expected '\)'"),
        ("a = 1x", "cannot be read"),
        ("a is 3", "expected 'null'"),
        ("a = b", "expected a value"),
        ("(" * 200 + "a = 1" + ")" * 200, "parentheses"),
        (" and ".join(["(a = 1 or b = 2)"] * 14), str(MAX_TERMS)),
        (" and ".join([f"({' or '.join(['a = 1'] * 320)})"] * 2), str(MAX_TERMS)),
        ("a = " + "1" * 5000, "a number of 5000 characters"),
        ("a = 1e999999999", "the number 1e999999999 is out of range"),
    ],
)
def test_an_invalid_filter_is_refused_with_its_position(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_filter(text)


# An expression as (text, meaning): the meaning of a row is True, False or None, as in SQL.
Row = dict[str, int | None]


def _comparison(column: str, operator: str, value: int) -> Any:
    def meaning(row: Row) -> bool | None:
        held = row[column]
        return None if held is None else OPERATORS[operator](held, value)

    return f"{column} {operator} {value}", meaning


def _is_null(column: str, negated: bool) -> Any:
    words = "is not null" if negated else "IS NULL"
    return f"{column} {words}", lambda row: (row[column] is None) != negated


def _in(column: str, values: list[int], negated: bool) -> Any:
    def meaning(row: Row) -> bool | None:
        held = row[column]
        return None if held is None else (held in values) != negated

    listed = ", ".join(map(str, values))
    return f"{column} {'not in' if negated else 'in'} ({listed})", meaning


def _not(inner: Any) -> Any:
    def meaning(row: Row) -> bool | None:
        value = inner[1](row)
        return None if value is None else not value

    return f"not ({inner[0]})", meaning


def _and(left: Any, right: Any) -> Any:
    def meaning(row: Row) -> bool | None:
        values = (left[1](row), right[1](row))
        return False if False in values else None if None in values else True

    return f"({left[0]}) and ({right[0]})", meaning


def _or(left: Any, right: Any) -> Any:
    def meaning(row: Row) -> bool | None:
        values = (left[1](row), right[1](row))
        return True if True in values else None if None in values else False

    return f"({left[0]}) or ({right[0]})", meaning


_columns = st.sampled_from(COLUMNS)
_values = st.integers(-2, 2)
_leaves = st.one_of(
    st.builds(_comparison, _columns, st.sampled_from(sorted(OPERATORS)), _values),
    st.builds(_is_null, _columns, st.booleans()),
    st.builds(_in, _columns, st.lists(_values, min_size=1, max_size=3), st.booleans()),
)
_expressions = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(_not, inner), st.builds(_and, inner, inner), st.builds(_or, inner, inner)
    ),
    max_leaves=6,
)
_rows = st.fixed_dictionaries({name: st.none() | _values for name in COLUMNS})


def _holds(filter_: Disjunction, row: Row) -> bool:
    return any(all(_term_holds(term, row) for term in conjunction) for conjunction in filter_)


def _term_holds(term: Any, row: Row) -> bool:
    column, operator = term[:2]
    held = row[column]
    if operator in ("is null", "is not null"):
        return bool((held is None) == (operator == "is null"))
    if held is None:
        return False
    if operator in ("in", "not in"):
        return bool((held in term[2]) == (operator == "in"))
    negated = operator.startswith("not ")
    return bool(OPERATORS[operator.removeprefix("not ")](held, term[2]) != negated)


@given(_expressions, st.lists(_rows, min_size=1, max_size=8))
def test_the_parsed_disjunction_equals_the_text(expression: Any, rows: list[Row]) -> None:
    text, meaning = expression
    filter_ = parse_filter(text)
    for row in rows:
        assert _holds(filter_, row) == (meaning(row) is True)


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse_filter(text)
    except InvalidRequest:
        return


@given(st.text(), st.text(min_size=1))
def test_any_text_can_be_quoted(value: str, column: str) -> None:
    quoted_column = column.replace('"', '""')
    quoted_value = value.replace("'", "''")
    text = f"\"{quoted_column}\" = '{quoted_value}'"
    assert parse_filter(text) == [[(column, "=", value)]]
