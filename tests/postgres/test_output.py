"""Messages of pgoutput and texts of PostgreSQL become values, or are refused."""

from __future__ import annotations

import contextlib
import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.client.sync_stream import SyncColumn
from ingester.postgres.collector import Collector, NoKey
from ingester.postgres.pgoutput import (
    UNCHANGED,
    Change,
    Column,
    Commit,
    Relation,
    Truncate,
    UnknownMessage,
    parse,
)
from ingester.postgres.types import ValueNotKept, arrow_type, arrow_values

INT, TEXT = Column("id", 23, -1), Column("name", 25, -1)
RELATION = Relation(7, "public", "t", (INT, TEXT), ("id", "name"))


def cells(*texts: str | object | None) -> bytes:
    found = struct.pack(">h", len(texts))
    for text in texts:
        if text is None or text is UNCHANGED:
            found += b"n" if text is None else b"u"
        else:
            data = str(text).encode()
            found += b"t" + struct.pack(">i", len(data)) + data
    return found


def described() -> bytes:
    columns = b"".join(
        b"\1" + column.name.encode() + b"\0" + struct.pack(">ii", column.type_oid, -1)
        for column in RELATION.columns
    )
    return b"R" + struct.pack(">i", 7) + b"public\0t\0d" + struct.pack(">h", 2) + columns


SEVEN = struct.pack(">i", 7)
MESSAGES: list[tuple[bytes, Any]] = [
    (described(), RELATION),
    (b"B" + bytes(20), None),
    (b"C\0" + struct.pack(">qqq", 1, 99, 0), Commit(99)),
    (b"I" + SEVEN + b"N" + cells("1", None), Change(7, None, ("1", None))),
    (
        b"U" + SEVEN + b"K" + cells("1", None) + b"N" + cells("2", UNCHANGED),
        Change(7, ("1", None), ("2", UNCHANGED), True),
    ),
    (b"U" + SEVEN + b"N" + cells("2", "é"), Change(7, None, ("2", "é"), True)),
    (b"D" + SEVEN + b"O" + cells("2", "x"), Change(7, ("2", "x"), None)),
    (b"T" + struct.pack(">ib", 2, 0) + SEVEN + SEVEN, Truncate((7, 7))),
]


@pytest.mark.parametrize(("data", "message"), MESSAGES)
def test_a_message_is_what_it_says(data: bytes, message: object) -> None:
    assert parse(data) == message


@given(st.sampled_from([data for data, message in MESSAGES if message is not None]), st.data())
def test_a_message_that_ends_early_is_refused(data: bytes, draw: st.DataObject) -> None:
    short = data[: draw.draw(st.integers(0, len(data) - 1))]
    try:
        found = parse(short)
    except UnknownMessage:
        return
    # The longer one may end where another whole one would.
    assert found is not None


@given(st.binary(max_size=60))
def test_no_bytes_do_harm(data: bytes) -> None:
    with contextlib.suppress(UnknownMessage):
        parse(data)


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "value"),
    [
        (16, -1, "t", True),
        (16, -1, "f", False),
        (17, -1, "\\x00ff", b"\x00\xff"),
        (20, -1, "-9223372036854775808", -(2**63)),
        (700, -1, "1.5", 1.5),
        (701, -1, "-Infinity", float("-inf")),
        (1700, ((12 << 16) | 3) + 4, "-7.125", Decimal("-7.125")),
        (1700, -1, "1e400", "1e400"),
        (1082, -1, "2026-11-22", dt.date(2026, 11, 22)),
        (1114, -1, "2026-11-22 01:02:03.5", dt.datetime(2026, 11, 22, 1, 2, 3, 500_000)),
        (
            1184,
            -1,
            "2026-11-22 01:02:03+00",
            dt.datetime(2026, 11, 22, 1, 2, 3, tzinfo=dt.UTC),
        ),
        (2950, -1, "6ecd8c99-4036-403d-bf84-cf8400f67836", "6ecd8c99-4036-403d-bf84-cf8400f67836"),
    ],
)
def test_a_text_becomes_its_value(oid: int, modifier: int, text: str, value: object) -> None:
    column = Column("c", oid, modifier)
    found = arrow_values(column, [text, None])
    assert found.type == arrow_type(column)
    assert found.to_pylist() == [value, None]


@pytest.mark.parametrize(("oid", "text"), [(1082, "infinity"), (1184, "44-03-15 BC"), (23, "x")])
def test_a_text_without_a_value_is_refused_by_column(oid: int, text: str) -> None:
    with pytest.raises(ValueNotKept, match="column 'when'"):
        arrow_values(Column("when", oid, -1), [text])


def test_transactions_are_collected_by_table() -> None:
    collector = Collector({("public", "t"): ("id",)})
    collector.relation(RELATION)
    for change in (
        Change(7, None, ("1", "a")),
        Change(7, ("1", None), ("2", UNCHANGED), True),
        Change(7, None, ("2", "b"), True),
        Change(7, ("2", None), None),
    ):
        collector.add(change)
    collector.commit(5)
    # Another column from here on: another message, behind the first.
    wider = Relation(7, "public", "t", (INT, TEXT, Column("more", 16, -1)))
    collector.relation(wider)
    collector.add(Change(7, None, ("3", "c", "t")))
    collector.commit(6)
    assert (collector.upto, collector.changes) == (6, 5)
    first, second = collector.take()
    roles = [("old_pk", "id"), ("new_pk", "id"), ("value", "name"), ("changed", "name")]
    assert first.columns == tuple(SyncColumn(*role) for role in roles)
    assert first.batch.to_pydict() == {
        "0": [None, 1, 2, 2],
        "1": [1, 2, 2, None],
        "2": ["a", None, "b", None],
        "3": [True, False, True, True],
    }
    assert second.batch.schema.types == [pa.int32(), pa.int32(), pa.string(), pa.bool_()]
    assert (collector.upto, collector.changes, list(collector.take())) == (None, 0, [])
    collector.relation(Relation(8, "more", "x", (INT,)))
    with pytest.raises(NoKey, match=r"more\.x has no primary key"):
        collector.add(Change(8, None, ("1",)))
