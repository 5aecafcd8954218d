"""A digest of rows depends on the rows, and not on their order or division."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.spark.sink.row_digest import RowDigest
from tests.dml.test_content import tables

LONG = "é" * 200


def digest(*batches: pa.RecordBatch) -> tuple[int, int]:
    found = RowDigest()
    for batch in batches:
        found.add(batch)
    return found.rows, found.digest


@given(tables(), st.randoms(use_true_random=False))
def test_order_and_division_do_not_matter(rows: pa.RecordBatch, rng: random.Random) -> None:
    order = list(range(rows.num_rows))
    rng.shuffle(order)
    mixed = rows.take(pa.array(order, pa.int32()))
    at = rng.randrange(rows.num_rows + 1)
    assert digest(mixed.slice(at), mixed.slice(0, at)) == digest(rows)


@given(tables(), tables())
def test_other_rows_have_another_digest(one: pa.RecordBatch, other: pa.RecordBatch) -> None:
    if one.schema != other.schema or one.num_rows != other.num_rows:
        return

    def told(rows: pa.RecordBatch) -> list[str]:
        return sorted(repr(sorted(row.items())) for row in rows.to_pylist())

    assert (digest(one) == digest(other)) == (told(one) == told(other))


def test_which_row_a_value_is_in_counts() -> None:
    one = pa.record_batch({"a": [1, 2], "b": ["x", "y"]})
    other = pa.record_batch({"a": [1, 2], "b": ["y", "x"]})
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    "values",
    [
        [[1, None], [1], [None, 1], [], None, [0, 1]],
        ["", "a", "a\0", "ab", "abcdefgh", "abcdefghi", LONG, LONG + "a", None],
        [b"\0", b"\0\0", b""],
        [{"a": 1, "b": None}, {"a": None, "b": 1}, {"a": None, "b": None}, None],
        [0.0, -0.0, 1.0, None],
        [True, False, None],
    ],
    ids=["lists", "texts", "bytes", "structs", "floats", "bools"],
)
def test_similar_values_differ(values: list[Any]) -> None:
    kind = pa.array(values).type
    found = {digest(pa.record_batch({"v": pa.array([value], kind)})) for value in values}
    assert len(found) == len(values)


def test_a_column_without_values_does_not_matter() -> None:
    rows = pa.record_batch({"a": [1, 2]})
    assert digest(rows.append_column("b", pa.nulls(2, pa.string()))) == digest(rows)


def test_the_hashes_stay_as_they_are() -> None:
    """Manifests keep digests, so a later release has to find the same ones."""
    columns: dict[str, Any] = {"i": [1, 2], "s": ["a", LONG], "f": [1.5, None], "b": [True, False]}
    columns["l"] = [[1, None], []]
    assert digest(pa.record_batch(columns)) == (2, 4828623353475153652)
