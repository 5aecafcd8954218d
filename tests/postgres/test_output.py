"""Messages of pgoutput become values, or are refused."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.postgres.pgoutput import (
    BeginMessage,
    Change,
    CommitMessage,
    Relation,
    RelationColumn,
    Truncate,
    UnknownMessage,
    parse,
)
from tests.postgres.messages import (
    UNCHANGED,
    cells_of,
    deleted,
    described,
    inserted,
    kind_of,
    tuple_data,
    updated,
)

OID = 4_000_000_007  # OIDs are unsigned.
COLUMNS = (RelationColumn("id", 23, -1), RelationColumn("name", 1043, 24))
RELATION = Relation(OID, "public", "t", COLUMNS, ("id",), "f")
PACKED = struct.pack(">I", OID)
MESSAGES: list[tuple[bytes, Any]] = [
    (described(RELATION), RELATION),
    (
        b"B" + struct.pack(">QqI", 2**63, 1_500_000, 2**31),
        BeginMessage(2**63, 2**31, 946_684_801.5),
    ),
    (b"C\0" + struct.pack(">QQq", 1, 99, 0), CommitMessage(99)),
    (b"T" + struct.pack(">IB", 2, 3) + PACKED + PACKED, Truncate((OID, OID), True, True)),
    (b"T" + struct.pack(">IB", 1, 0) + PACKED, Truncate((OID,))),
]
PASSED_OVER = [
    b"Y" + PACKED + b"public\0mood\0",
    b"O" + bytes(8) + b"elsewhere\0",
    b"M\0" + bytes(8) + b"prefix\0" + struct.pack(">I", 2) + b"hi",
]
CHANGES: list[tuple[Change, Any]] = [
    (inserted(OID, ["1", None]), (None, (b"1", None))),
    (updated(OID, ["2", UNCHANGED], ["1", None]), ((b"1", None), (b"2", UNCHANGED))),
    (updated(OID, ["2", b"\xff"]), (None, (b"2", b"\xff"))),
    (deleted(OID, ["2", "x"], b"O"), ((b"2", b"x"), None)),
]


@pytest.mark.parametrize(("data", "message"), MESSAGES)
def test_a_message_is_what_it_says(data: bytes, message: object) -> None:
    assert parse(data) == message


@pytest.mark.parametrize("data", PASSED_OVER)
def test_a_message_that_says_nothing_of_rows_is_passed_over(data: bytes) -> None:
    assert parse(data) is None


@pytest.mark.parametrize(("change", "rows"), CHANGES)
def test_a_change_has_the_rows_that_it_says(change: Change, rows: object) -> None:
    assert parse(change.data) == change
    assert (change.relation, kind_of(change), cells_of(change)) == (OID, chr(change.data[0]), rows)


def whole(data: bytes) -> object:
    """Parse the whole message, with the cells of its rows."""
    message = parse(data)
    return cells_of(message) if isinstance(message, Change) else message


@pytest.mark.parametrize("data", [data for data, _ in MESSAGES] + [c.data for c, _ in CHANGES])
def test_a_message_that_ends_early_or_late_is_refused(data: bytes) -> None:
    for end in range(len(data)):
        with pytest.raises(UnknownMessage):
            whole(data[:end])
    with pytest.raises(UnknownMessage):
        whole(data + b"n")


@pytest.mark.parametrize(
    "data",
    [
        b"S" + bytes(5),  # a transaction in progress, from protocol version 2
        b"b" + bytes(30),  # a prepared one, from version 3
        b"I" + PACKED + b"K" + tuple_data(["1"]),
        b"D" + PACKED + b"N" + tuple_data(["1"]),
        b"U" + PACKED + b"K" + tuple_data(["1"]) + b"K" + tuple_data(["1"]),
        b"I" + PACKED + b"N\0\1b" + struct.pack(">I", 1) + b"x",  # a binary cell
        b"T" + struct.pack(">IB", 1, 4) + PACKED,
        described(RELATION._replace(identity="x")),
    ],
)
def test_what_is_not_known_is_refused(data: bytes) -> None:
    with pytest.raises(UnknownMessage):
        whole(data)


@given(st.binary(max_size=60))
def test_no_bytes_do_harm(data: bytes) -> None:
    with contextlib.suppress(UnknownMessage):
        whole(data)


def test_a_name_that_is_no_utf8_is_escaped() -> None:
    data = described(RELATION).replace(b"name", b"n\xe4me")
    relation = parse(data)
    assert isinstance(relation, Relation)
    assert relation.columns[1].name == "n\\xe4me"
