"""A long filter, which is parsed in pieces, gives the same rows as a short one."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.errors import BadRequest
from ingester.query.ticket import (
    LONG_BYTES,
    FilterLimits,
    LongFilter,
    encode_ticket,
    parse_ticket,
    predicate_of,
)

PADDING = " " * LONG_BYTES
SCHEMA = pa.schema({"s": pa.string()})
TICKET: dict[str, Any] = {"namespace": "ns", "table": "t", "limit": 7}

texts = st.sampled_from(["a", "]],[[", '"', "\\", "[", "ü", "a, b"])
terms = st.one_of(
    st.tuples(st.just("s"), st.sampled_from(["=", "!="]), texts),
    st.tuples(st.just("s"), st.just("in"), st.lists(texts, max_size=3)),
    st.tuples(st.just("s"), st.just("is null")),
)


@given(st.lists(st.lists(terms.map(list), max_size=3), max_size=6))
def test_a_ticket_is_the_same_read_at_once_and_piece_by_piece(filter_: list[Any]) -> None:
    short = parse_ticket(json.dumps({**TICKET, "filter": filter_}).encode())
    long = parse_ticket(json.dumps({**TICKET, "filter": filter_}).encode() + PADDING.encode())
    assert isinstance(short.filter, list)
    assert isinstance(long.filter, LongFilter)
    assert list(long.filter) == short.filter == filter_
    assert (long.namespace, long.table, long.limit, long.columns) == ("ns", "t", 7, None)
    assert json.loads(encode_ticket(long)) == json.loads(encode_ticket(short))
    rows = pa.record_batch({"s": ["a", "]],[[", "[", None]})
    chosen = [predicate_of(each.filter, SCHEMA).select(rows) for each in (short, long)]
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize(
    ("filter_", "says"),
    [
        ("3", "Expected `array`"),
        ("[3]", "filter: Expected `array`"),
        ("[[3]]", "filter: Expected `array`"),
        (
            '[[["s","=","a"]],[["s","in",["a","b","c","d","e"]]]]',
            "6 comparisons and values; at most 5",
        ),
        ("[[],[],[],[],[],[]]", "6 comparisons and values; at most 5"),
        ("[" * LONG_BYTES, "not a JSON object"),
    ],
)
def test_what_is_no_filter_or_too_much_of_one_is_refused(filter_: str, says: str) -> None:
    body = f'{{"namespace":"ns","table":"t","filter":{filter_}{PADDING}}}'.encode()
    with pytest.raises(BadRequest, match=says):
        predicate_of(parse_ticket(body, FilterLimits(terms=5)).filter, SCHEMA)


def test_the_terms_are_counted_before_any_of_them_is_made_a_comparison() -> None:
    filter_ = [[["there is no such column", "=", "a"]]] * 6
    body = json.dumps({**TICKET, "filter": filter_}).encode() + PADDING.encode()
    pauses: list[int] = []
    with pytest.raises(BadRequest, match="6 comparisons and values; at most 5"):
        predicate_of(parse_ticket(body, FilterLimits(terms=5)).filter, SCHEMA)
    allowed = parse_ticket(body, FilterLimits(terms=6)).filter
    with pytest.raises(BadRequest, match="unknown column"):
        predicate_of(allowed, SCHEMA, lambda: pauses.append(len(pauses)))
    assert len(pauses) >= 6, "others have the interpreter while they are counted"


def test_a_long_ticket_without_a_filter_has_none() -> None:
    assert parse_ticket(json.dumps(TICKET).encode() + PADDING.encode()).filter is None
