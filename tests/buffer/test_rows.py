"""A buffer's rows keep their order and positions, in few chunks, for any sizes of batches."""

from __future__ import annotations

import threading
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.buffer import BufferedRows, Chunk
from ingester.buffer.shared_memory import SharedMemories
from ingester.schema.align import align_table

SCHEMAS = (
    pa.schema({"i": pa.int64()}),
    pa.schema({"i": pa.int64(), "s": pa.string()}),
    pa.schema({"s": pa.string(), "i": pa.int64()}),
    pa.schema({"i": pa.int64(), "s": pa.string(), "l": pa.list_(pa.int32())}),
)
WIDEST = SCHEMAS[3]


def _batch(first: int, count: int, number: int) -> pa.RecordBatch:
    columns = {
        "i": pa.array(range(first, first + count), pa.int64()),
        "s": pa.array([f"s{i % 5}" for i in range(first, first + count)]),
        "l": pa.array([[i, None] for i in range(first, first + count)], pa.list_(pa.int32())),
    }
    schema = SCHEMAS[number]
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _append(rows: BufferedRows, seq: int, count: int, number: int) -> pa.RecordBatch:
    batch = _batch(rows.rows, count, number)
    rows.append(batch, seq=seq, nbytes=batch.nbytes, schema_number=number)
    return batch


def _numbers(chunks: list[Chunk], start: int, stop: int) -> list[int]:
    """The numbers that a reader finds from one position to another."""
    found: list[int] = []
    for chunk in chunks:
        first, last = max(start, chunk.start), min(stop, chunk.start + chunk.batch.num_rows)
        if first < last:
            found += chunk.batch.slice(first - chunk.start, last - first)["i"].to_pylist()
    return found


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 1, 1, 2, 3, 15, 16, 17, 100, 255, 256, 300, 5000]),
            st.integers(0, len(SCHEMAS) - 1),
        ),
        max_size=120,
    )
)
def test_rows_keep_their_order_and_positions(batches: list[tuple[int, int]]) -> None:
    rows = BufferedRows()
    sent = []
    for seq, (count, number) in enumerate(batches, 10):
        before = rows.chunks()
        sent.append(_append(rows, seq, count, number))
        # A reader that holds an older list of chunks still reads the same.
        assert _numbers(before, 0, rows.rows) == list(range(rows.rows - count))
        starts = [chunk.start for chunk in rows.chunks()]
        assert starts == sorted(set(starts))
        assert _rows_until(rows, seq) == rows.rows
        assert _rows_until(rows, seq - 1) == rows.rows - count
    assert _numbers(rows.chunks(), 0, rows.rows) == list(range(rows.rows))
    assert _numbers(rows.chunks(), rows.rows // 3, rows.rows) == list(
        range(rows.rows // 3, rows.rows)
    )
    # Columns that a batch lacks are null in its rows and in no other.
    if batches:
        assert align_table(rows.batches(), WIDEST) == align_table(sent, WIDEST).combine_chunks()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50))
def test_empty_batches_are_operations_too(counts: list[int]) -> None:
    rows = BufferedRows()
    for seq, count in enumerate(counts):
        _append(rows, seq, count, 0)
    assert _numbers(rows.chunks(), 0, rows.rows) == list(range(sum(counts)))
    assert [_rows_until(rows, seq) for seq in range(len(counts))] == [
        sum(counts[: seq + 1]) for seq in range(len(counts))
    ]


def test_nothing_is_before_the_first_operation() -> None:
    rows = BufferedRows()
    assert _rows_until(rows, 99) == 0
    _append(rows, 100, 3, 0)
    assert _rows_until(rows, 99) == 0


def _rows_until(rows: BufferedRows, seq: int) -> int:
    """The number of rows from operations up to and including ``seq``."""
    return rows.rows - sum(count for _, count in rows.slices_without(seq, ()))


def _wide(first: int, count: int) -> pa.RecordBatch:
    """Five columns, 40 to 50 bytes a row."""
    numbered = range(first, first + count)
    return pa.record_batch(
        {
            "time": pa.array(numbered, pa.timestamp("us")),
            "host": pa.array([f"host-{i % 50}" for i in numbered]),
            "a": pa.array([float(i) for i in numbered]),
            "b": pa.array([float(i) for i in numbered]),
            "c": pa.array(numbered, pa.int64()),
        }
    )


def _cost(sizes: list[int], total: int) -> tuple[float, int]:
    """(bytes as a multiple of one batch of the same rows, number of chunks)."""
    rows, seq = BufferedRows(), 0
    whole = _wide(0, total)
    while rows.rows < total:
        count = min(sizes[seq % len(sizes)], total - rows.rows)
        # A copy: a slice would share the memory of the whole and count only its part.
        part = pa.ipc.read_record_batch(whole.slice(rows.rows, count).serialize(), whole.schema)
        rows.append(part, seq=seq, nbytes=part.nbytes, schema_number=0)
        seq += 1
    return rows.nbytes / whole.nbytes, len(rows.chunks())


def test_a_hundred_thousand_one_row_operations_cost_at_most_twice_their_batch() -> None:
    ratio, chunks = _cost([1], 100_000)
    assert ratio <= 2
    assert chunks <= 100


@pytest.mark.parametrize("sizes", [[2], [7], [15], [16], [1, 1, 20], [100], [300, 3, 1, 1]])
def test_small_operations_of_other_sizes_cost_at_most_twice_their_batch(sizes: list[int]) -> None:
    ratio, chunks = _cost(sizes, 40_000)
    assert ratio <= 2
    assert chunks <= 150


def test_counted_bytes_equal_those_of_the_chunks() -> None:
    rows = BufferedRows()
    for seq in range(1000):
        _append(rows, seq, 1 + seq % 3, 1)
    held = sum(chunk.batch.nbytes for chunk in rows.chunks())
    assert held <= rows.nbytes <= held + 2048 * len(rows.chunks()) + 32 * 1000


@given(
    st.lists(st.tuples(st.sampled_from([1, 20, 300, 5000]), st.integers(0, 3)), max_size=60),
    st.integers(1, 1_000_000),
)
def test_merged_chunks_have_the_same_rows_at_every_step(
    batches: list[tuple[int, int]], chunk_bytes: int
) -> None:
    rows = BufferedRows()
    sent = [_append(rows, seq, count, number) for seq, (count, number) in enumerate(batches)]
    before, counted, chunks = rows.chunks(), rows.nbytes, rows.chunk_count
    copied = []
    for step in rows.enlarge_chunks(chunk_bytes):
        copied.append(step)
        assert step <= chunk_bytes
        assert rows.chunk_count < chunks
        chunks = rows.chunk_count
        assert _numbers(rows.chunks(), 0, rows.rows) == list(range(rows.rows))
    assert sum(copied) <= counted
    assert rows.nbytes == counted
    assert _numbers(before, 0, rows.rows) == list(range(rows.rows))
    # No two neighbours that fit into one chunk remain.
    left = rows.chunks()
    assert not any(
        one.schema_number == next_one.schema_number >= 0
        and one.nbytes + next_one.nbytes <= chunk_bytes // 2
        for one, next_one in pairwise(left)
    )
    if sent:
        assert align_table(rows.batches(), WIDEST) == align_table(sent, WIDEST).combine_chunks()


def test_a_column_of_the_maximal_chunk_size_is_not_merged() -> None:
    rows = BufferedRows()
    for seq in range(4):
        _append(rows, seq, 5000, 1)
    size = rows.chunks()[0].nbytes
    assert list(rows.enlarge_chunks(size)) == []
    assert len(list(rows.enlarge_chunks(2 * size + 1000))) == 2
    assert rows.chunk_count == 2


def test_small_operations_of_mixed_sizes_make_few_chunks() -> None:
    for sizes in ([1, 16], [1, 17], [1, 256], [3, 40]):
        ratio, chunks = _cost(sizes, 40_000)
        assert ratio <= 2 and chunks <= 200, (sizes, ratio, chunks)


def _memory(batches: list[pa.RecordBatch]) -> set[int]:
    """The addresses of the memory that batches keep alive."""
    found = set()
    for column in (column for batch in batches for column in batch.columns):
        for buffer in filter(None, column.buffers()):
            while buffer.parent is not None:
                buffer = buffer.parent
            found.add(buffer.address)
    return found


def _message(count: int) -> pa.RecordBatch:
    batch = _batch(0, count, 1)
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


@pytest.mark.parametrize("count", [1, 20, 300, 5000])
def test_a_slice_of_a_message_is_copied_when_asked(count: int) -> None:
    rows, whole = BufferedRows(), _message(100_000)
    (address,) = _memory([whole])
    before, memory = rows.rows, SharedMemories().new()
    for start in (0, count):
        part = whole.slice(start, count)
        rows.append(part, seq=1, nbytes=7, schema_number=1, memory=memory)
    assert address in _memory(rows.batches())
    for start in (before, before + count):
        counted = rows.nbytes
        grown = rows.compact(start)
        assert rows.nbytes == counted + grown
        assert rows.compact(start) == 0
    assert address not in _memory(rows.batches())
    assert rows.nbytes >= sum(batch.nbytes for batch in rows.batches())
    assert pa.Table.from_batches(rows.batches()).equals(
        pa.Table.from_batches([whole.slice(0, 2 * count)])
    )


def test_merged_slices_keep_nothing_else() -> None:
    rows, messages = BufferedRows(), [_message(1000) for _ in range(16)]
    memory = SharedMemories().new()
    for number, whole in enumerate(messages):
        rows.append(whole.slice(0, 20), seq=number, nbytes=99, schema_number=1, memory=memory)
    assert not _memory(messages) & _memory(rows.batches())
    assert [rows.compact(start) for start in range(0, 320, 20)] == [0] * 16


def test_a_complete_buffer_is_joined_and_copied_at_once() -> None:
    """The thread that flushes joins chunks while the loop copies them."""
    rows, parts, memory = BufferedRows(), 400, SharedMemories().new()
    whole = _message(parts * 300)
    for number in range(parts):
        part = whole.slice(number * 300, 300)
        rows.append(part, seq=number, nbytes=20_000, schema_number=1, memory=memory)

    def join() -> None:
        for _ in rows.enlarge_chunks(200_000):
            pass

    thread = threading.Thread(target=join)
    thread.start()
    for number in range(parts):
        rows.compact(number * 300)
    thread.join()
    assert pa.Table.from_batches(rows.batches()).equals(pa.Table.from_batches([whole]))
    assert [chunk.start for chunk in rows.chunks()] == [
        sum(batch.num_rows for batch in rows.batches()[:index]) for index in range(rows.chunk_count)
    ]
