"""Parsing a batch of changes equals parsing them one by one."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.postgres.pgoutput import Change, UnknownMessage
from ingester.postgres.sync_messages import ChangedRows, filled
from tests.postgres.messages import UNCHANGED, Cell, Cells, cells_of, deleted, inserted, updated

COLUMNS = 3
CELLS = st.none() | st.just(UNCHANGED) | st.binary(max_size=12)
ROWS = st.tuples(*[CELLS] * COLUMNS)
PARTS = st.sampled_from([b"K", b"O"])
CHANGES = st.one_of(
    st.builds(inserted, st.just(7), ROWS),
    st.builds(updated, st.just(7), ROWS, st.none() | ROWS, PARTS),
    st.builds(deleted, st.just(7), ROWS, PARTS),
)


def read(messages: list[bytes], columns: int = COLUMNS) -> list[tuple[Cells | None, Cells | None]]:
    """Return the old and new rows, parsed as a batch."""
    rows = ChangedRows(messages, columns)
    sides: tuple[list[list[Cell]], list[list[Cell]]] = ([], [])
    for both in rows.columns():
        for cells, found in zip(both, sides, strict=True):
            texts = rows.texts(cells)
            texts.validate(full=True)
            unchanged = cells.unchanged()
            found.append(
                [UNCHANGED if unchanged[at] else text for at, text in enumerate(texts.to_pylist())]
            )
    old, new = (list(zip(*side, strict=True)) for side in sides)
    return [
        (old[at] if rows.has_old[at] else None, new[at] if rows.has_new[at] else None)
        for at in range(rows.rows)
    ]


@given(st.lists(CHANGES, min_size=1, max_size=8))
def test_rows_at_once_are_those_one_by_one(changes: list[Change]) -> None:
    assert read([change.data for change in changes]) == [cells_of(change) for change in changes]


@given(CHANGES, CHANGES, st.data())
def test_a_change_that_is_too_short_or_too_long_is_refused(
    change: Change, other: Change, data: st.DataObject
) -> None:
    # Bytes of the next message must not be read as part of this one.
    end = data.draw(st.integers(0, len(change.data) - 1))
    for odd in (change.data[:end], change.data + b"n", change.data + other.data):
        for messages in ([odd], [odd, other.data], [other.data, odd]):
            with pytest.raises(UnknownMessage):
                read(messages)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=3), st.integers(1, 3))
def test_no_bytes_do_harm(messages: list[bytes], columns: int) -> None:
    with contextlib.suppress(UnknownMessage):
        found = read(messages, columns)
        assert found == [cells_of(Change(0, message)) for message in messages]


@given(CHANGES, st.data())
def test_a_byte_that_is_another_is_refused_or_read_alike(
    change: Change, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(change.data) - 1))
    byte = data.draw(st.binary(min_size=1, max_size=1))
    other = change.data[:at] + byte + change.data[at + 1 :]
    with contextlib.suppress(UnknownMessage):
        found = read([change.data, other])
        assert found == [cells_of(change), cells_of(Change(7, other))]


def test_a_row_of_another_width_is_refused_by_number() -> None:
    with pytest.raises(UnknownMessage, match="a row of 2 cells in a table of 3 columns"):
        read([inserted(7, ["1", "2"]).data])
    with pytest.raises(UnknownMessage, match="ends too early"):
        read([inserted(7, ["1", "2", "3"]).data.replace(b"\0\0\0\1", b"\xff\xff\xff\xff")])


def test_a_value_that_the_log_has_left_is_taken_from_the_old_row() -> None:
    change = updated(7, [UNCHANGED, UNCHANGED, "new"], ["old", None, "was"], b"O")
    rows = ChangedRows([change.data], COLUMNS)
    found = [rows.texts(filled(new, old)).to_pylist()[0] for old, new in rows.columns()]
    assert found == [b"old", None, b"new"]


def test_a_lone_large_value_is_not_copied() -> None:
    change = inserted(7, [b"x" * 1_000_000])
    rows = ChangedRows([change.data], 1)
    [(_, new)] = rows.columns()
    texts = rows.texts(new)
    assert texts.to_pylist() == [b"x" * 1_000_000]
    assert texts.buffers()[2].address == pa.py_buffer(change.data).address
