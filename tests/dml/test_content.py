"""A digest depends on values alone, and on all of them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingester.dml.content import PIECE_ROWS, ContentReader
from ingester.dml.ipc import IpcMessage, MessageTemplate
from persist.manifest.actions import Content

STRUCT = pa.struct([("a", pa.int32()), ("b", pa.bool_())])
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=False),
    pa.timestamp("us", "UTC"): st.integers(0, 2**50),
    pa.string(): st.text(max_size=12),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.decimal128(9, 2): st.decimals(-(10**6), 10**6, places=2).map(Decimal),
    pa.list_(pa.int64()): st.lists(st.none() | st.integers(0, 9), max_size=3),
    STRUCT: st.fixed_dictionaries(
        {"a": st.none() | st.integers(0, 9), "b": st.none() | st.booleans()}
    ),
    pa.map_(pa.string(), pa.bool_()): st.lists(
        st.tuples(st.text(max_size=3), st.none() | st.booleans()), max_size=3
    ),
}


def content(rows: pa.RecordBatch) -> Content:
    """The content of rows without a message."""
    return ContentReader(rows.schema).content(rows)


@st.composite
def tables(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows of some columns, with and without nulls."""
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4))
    rows = draw(st.integers(1, 12))
    columns: dict[str, pa.Array] = {}
    for number, kind in enumerate(kinds):
        value = KINDS[kind] if draw(st.booleans()) else st.none() | KINDS[kind]
        columns[f"c{number}"] = pa.array(draw(st.lists(value, min_size=rows, max_size=rows)), kind)
    return pa.record_batch(columns)


@given(tables(), st.integers(0, 9), st.integers(0, 9))
def test_the_way_rows_lie_in_memory_does_not_matter(
    rows: pa.RecordBatch, before: int, behind: int
) -> None:
    expected = content(rows)
    around = [rows.take(pa.array([0] * before, pa.int32())), rows, rows.slice(0, behind)]
    cut = pa.concat_batches(around).slice(before, rows.num_rows)
    assert content(cut) == expected
    assert ContentReader(cut.schema).content(cut, IpcMessage.serialized(cut)) == expected
    message = IpcMessage.serialized(rows)
    assert content(pa.ipc.read_record_batch(pa.ipc.read_message(message.body), rows.schema)) == (
        expected
    )
    assert ContentReader(rows.schema).content(rows, message) == expected
    assert ContentReader(rows.schema).content(rows, MessageTemplate().message(rows)) == expected


@given(tables(), st.integers(0, 9), st.integers(200, 400))
def test_a_message_as_it_was_received_has_the_digest_of_its_rows(
    rows: pa.RecordBatch, before: int, times: int
) -> None:
    """A client may send a slice, with the bytes of rows around it."""
    many = pa.concat_batches([rows] * times)
    sent = many.slice(before, many.num_rows - before - 3)
    received = pa.ipc.read_record_batch(pa.ipc.read_message(sent.serialize()), rows.schema)
    template, reader = MessageTemplate(), ContentReader(rows.schema)
    for _ in range(2):  # the first one teaches the template
        assert reader.content(received, template.message(received)) == content(sent)


@given(tables())
def test_a_column_of_nulls_does_not_matter(rows: pa.RecordBatch) -> None:
    more = rows.append_column("new", pa.nulls(rows.num_rows, pa.string()))
    assert content(more) == content(rows)
    reader = ContentReader(more.schema)
    assert reader.content(more, IpcMessage.serialized(more)) == content(rows)


@given(tables(), tables())
def test_other_values_have_another_digest(one: pa.RecordBatch, other: pa.RecordBatch) -> None:
    if one.schema != other.schema or one.num_rows != other.num_rows:
        return
    assert (content(one) == content(other)) == one.equals(other)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_single_value_counts(kind: pa.DataType) -> None:
    special: dict[pa.DataType, list[Any]] = {
        pa.bool_(): [True, False],
        pa.string(): ["a", "b"],
        pa.binary(3): [b"abc", b"abd"],
        STRUCT: [{"a": 1, "b": None}, {"a": 1, "b": False}],
        pa.map_(pa.string(), pa.bool_()): [[("a", True)], [("a", None)]],
        pa.list_(pa.int64()): [[1], [1, None]],
        pa.decimal128(9, 2): [Decimal("0.10"), Decimal("0.11")],
    }
    values = special.get(kind, [0, 1])
    many = [*values * (PIECE_ROWS * 2), None]
    for changed in (0, PIECE_ROWS, len(many) - 2, len(many) - 1):
        others = list(many)
        others[changed] = values[1] if many[changed] == values[0] else values[0]
        one, other = (pa.record_batch({"v": pa.array(each, kind)}) for each in (many, others))
        assert content(one) != content(other)
        assert content(one) == content(pa.record_batch({"v": pa.array(many, kind)}))


def test_what_lies_under_a_null_does_not_matter() -> None:
    def under(hidden: int) -> pa.RecordBatch:
        valid = pa.py_buffer(np.packbits([1, 0, 1], bitorder="little").tobytes())
        values = pa.py_buffer(np.array([1, hidden, 3]).tobytes())
        column = pa.Array.from_buffers(pa.int64(), 3, [valid, values])
        return pa.record_batch({"v": column, "w": [1, 2, 3]})

    assert content(under(7)) == content(under(8))
    for rows in (under(7), under(8)):
        reader = ContentReader(rows.schema)
        assert reader.content(rows, IpcMessage.serialized(rows)) == content(under(9))


def test_the_column_of_a_value_counts() -> None:
    left = pa.record_batch({"a": pa.array([1]), "b": pa.array([None], pa.int64())})
    right = pa.record_batch({"a": pa.array([None], pa.int64()), "b": pa.array([1])})
    assert content(left) != content(right)


def test_the_format_stays_as_it_is() -> None:
    """Manifests keep digests, so a later release has to find the same ones."""
    rows = pa.record_batch(
        {
            "n": pa.array([1, 2, 3]),
            "s": pa.array(["a", None, "c"]),
            "b": pa.array([True, False, None]),
        }
    )
    assert content(rows) == Content(3, 612060173)
    assert content(rows.select(["n"])) == Content(3, 1964970355)


FLAT = pa.record_batch({"i": [1, 2, 3], "s": ["one", "", "three"], "w": pa.array([7, 8, 9], "i1")})


@given(tables(), st.lists(st.integers(0, 5), max_size=12), st.integers(0, 3), st.booleans())
@example(FLAT, [1, 0, 2, 5], 1, True)
def test_the_contents_of_writes_that_lie_together_are_those_of_each_alone(
    rows: pa.RecordBatch, counts: list[int], before: int, absent: bool
) -> None:
    total = sum(counts)
    lying = pa.concat_batches([rows] * (1 + (before + total) // rows.num_rows))
    if absent:
        lying = lying.append_column("absent", pa.nulls(lying.num_rows, pa.string()))
    together = lying.slice(before, total)
    found = ContentReader(lying.schema).contents(together, counts)
    alone, start = [], 0
    for count in counts:
        alone.append(content(together.slice(start, count)))
        start += count
    assert found == alone


def test_a_write_of_more_rows_than_are_digested_at_once_has_its_own_content() -> None:
    rows = pa.record_batch({"n": pa.array(range(PIECE_ROWS + 3), pa.int16())})
    found = ContentReader(rows.schema).contents(rows, [2, PIECE_ROWS + 1])
    assert found == [content(rows.slice(0, 2)), content(rows.slice(2))]
