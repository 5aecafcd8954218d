"""How ``write`` divides data into batches."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ingester.client.inputs import batches_of, cut_table


@given(st.lists(st.lists(st.binary(max_size=300), max_size=20), max_size=4), st.integers(1, 2000))
def test_a_split_table_has_the_same_rows_in_batches_within_the_limit(
    chunks: list[list[bytes]], limit: int
) -> None:
    table = pa.table({"b": pa.chunked_array(chunks, pa.binary())})
    pieces = list(cut_table(table, limit))
    assert [v for piece in pieces for v in piece.column(0).to_pylist()] == [
        v for c in chunks for v in c
    ]
    assert all(piece.num_rows == 1 or piece.nbytes <= limit for piece in pieces)


def test_a_record_batch_is_never_split() -> None:
    batch = pa.record_batch({"v": list(range(100_000))})
    schema, batches, *_ = batches_of(batch, 1000)
    assert (schema, list(batches)) == (batch.schema, [batch])


def test_a_reader_and_an_iterable_are_consumed_batch_by_batch() -> None:
    batch = pa.record_batch({"v": [1]})
    empty = batch.slice(0, 0)
    reader = pa.RecordBatchReader.from_batches(batch.schema, [empty, batch])
    assert list(batches_of(reader, 1000)[1]) == [batch]
    assert list(batches_of(iter([empty, batch, batch]), 1000)[1]) == [batch, batch]
    assert batches_of(iter([]), 1000)[0] is None
