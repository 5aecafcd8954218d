"""A batch that is divided has the same rows afterwards, in pieces of the wanted size."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.schema.pieces import pieces
from tests.drivers.all_types import all_types, check_same
from tests.schema.test_plain import LEAVES, WRAPPED

OVERHEAD = 64
"""Bytes of a buffer of IPC beside its values."""


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("leaf", LEAVES)
def test_every_encoding_is_divided_into_the_same_rows(leaf: str, wrapped: str) -> None:
    column = WRAPPED[wrapped](LEAVES[leaf])
    batch = pa.record_batch({"c": column}).slice(1)
    found = list(pieces(batch, 1))
    assert [piece.num_rows for piece in found] == [1] * batch.num_rows
    for index, piece in enumerate(found):
        piece.validate(full=True)
        assert piece.schema == batch.schema
        assert piece.column(0)[0].as_py() == batch.column(0)[index].as_py()


def test_every_type_is_divided_without_a_change_of_any_value() -> None:
    table = all_types("us")
    (batch,) = table.combine_chunks().to_batches()
    found = list(pieces(batch, 4096))
    assert len(found) > 1
    check_same(pa.Table.from_batches(found), table)


@given(
    st.lists(st.one_of(st.none(), st.text(max_size=300)), min_size=1, max_size=60),
    st.sampled_from(
        [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
    ),
    st.integers(1, 4000),
    st.data(),
)
def test_pieces_are_as_small_as_wanted_and_keep_no_other_rows(
    texts: list[Any], kind: pa.DataType, most: int, data: st.DataObject
) -> None:
    array = pa.array(texts).cast(kind)
    whole = pa.record_batch({"s": array, "i": pa.array(range(len(texts)), pa.int64())})
    first = data.draw(st.integers(0, len(texts) - 1))
    batch = whole.slice(first)
    found = list(pieces(batch, most))
    assert pa.Table.from_batches(found).to_pylist() == batch.to_pylist()
    shared = array.dictionary.get_total_buffer_size() if pa.types.is_dictionary(kind) else 0
    for piece in found:
        if piece.num_rows > 1:
            kept = piece.get_total_buffer_size() - shared
            # Views of short texts have room for them; each buffer is padded.
            assert kept <= 2 * most + 24 * piece.num_rows + 5 * OVERHEAD
