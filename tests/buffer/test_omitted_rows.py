"""Which rows of a buffer are flushed when some of its operations are not ours to commit."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ingester.buffer.rows import BufferedRows


@given(st.lists(st.integers(0, 3), max_size=30), st.data())
def test_omitted_operations_are_missing_and_the_others_keep_their_order(
    counts: list[int], data: st.DataObject
) -> None:
    rows = BufferedRows()
    for seq, count in enumerate(counts):
        batch = pa.record_batch({"seq": pa.array([seq] * count, pa.int64())})
        rows.append(batch, seq=seq, nbytes=8 * count, schema_number=1)
    left_out = data.draw(st.sets(st.integers(0, 29)))
    after = data.draw(st.integers(-1, 30))
    table = pa.Table.from_batches(rows.batches(), pa.schema({"seq": pa.int64()}))
    slices = rows.slices_without(after, left_out)
    found = [seq for first, n in slices for seq in table.slice(first, n)["seq"].to_pylist()]
    assert found == [
        seq
        for seq, count in enumerate(counts)
        if seq > after and seq not in left_out
        for _ in range(count)
    ]
    ends = [first + n for first, n in slices]
    assert all(end < first for end, (first, _) in zip(ends, slices[1:], strict=False))
