"""Memory for a file is allocated in one piece; a file that needs more is encoded again."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.parquet import encode as parquet
from persist.parquet.encode import (
    FACTS_BYTES,
    ROOM_TIMES,
    EncodedFile,
    OutOfRoom,
    encode,
    encode_sorted,
)
from persist.partitioning import UNPARTITIONED
from persist.table import TableDefinition


def _encoded(table: pa.Table) -> list[EncodedFile]:
    definition = TableDefinition(table.schema, UNPARTITIONED)
    return list(encode_sorted(table, definition, metadata={}, target_bytes=table.nbytes // 3 + 1))


@given(st.integers(0, 400), st.integers(1, 5))
def test_a_file_has_the_same_bytes_wherever_it_is_written(rows: int, blocks: int) -> None:
    tables = [pa.table({"n": np.arange(rows) * block}) for block in range(blocks)]
    growing = encode(tables, {"a": "b"})
    assert encode(tables, {"a": "b"}, room=growing.size) == growing
    assert encode(tables, {"a": "b"}, room=growing.size + 999) == growing
    with pytest.raises(OutOfRoom, match=f"more than {growing.size - 1} bytes"):
        encode(tables, {"a": "b"}, room=growing.size - 1)


def test_a_file_with_more_metadata_than_rows_is_made() -> None:
    table = pa.table({f"a column with a name {n:0200}": [n, n + 1] for n in range(4000)})
    [first, second] = _encoded(table)
    assert first.data.size > ROOM_TIMES * table.nbytes + FACTS_BYTES
    assert (first.rows, second.rows) == (1, 1)
    for row, file in enumerate((first, second)):
        assert pq.read_table(pa.BufferReader(file.data)).equals(table.slice(row, 1))
        column = table.column_names[7]
        assert (file.stats[column].min, file.stats[column].max) == (7 + row, 7 + row)


@pytest.mark.parametrize(("times", "facts"), [(0, 2000), (1 << 40, 0)], ids=["little", "none"])
def test_files_of_a_second_attempt_equal_those_of_the_first(
    times: int, facts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One case has too little memory, the other cannot allocate the estimate."""
    draw = np.random.default_rng(5)
    table = pa.table({"n": draw.integers(0, 99, 30_000), "s": [f"{n % 7}" for n in range(30_000)]})
    expected = _encoded(table)
    refused = 0

    class Counted(OutOfRoom):
        def __init__(self, *args: object) -> None:
            nonlocal refused
            refused += 1
            super().__init__(*args)

    monkeypatch.setattr(parquet, "OutOfRoom", Counted)
    monkeypatch.setattr(parquet, "ROOM_TIMES", times)
    monkeypatch.setattr(parquet, "FACTS_BYTES", facts)
    found = _encoded(table)
    assert refused == len(expected) == 3
    for one, other in zip(found, expected, strict=True):
        assert (one.data, one.stats, one.rows) == (other.data, other.stats, other.rows)
        assert one.arrivals is not None
        assert other.arrivals is not None
        assert one.arrivals.tolist() == other.arrivals.tolist()


def test_a_second_attempt_starts_with_the_memory_of_the_first_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sorting thread, its rows and its memory are all released."""
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 2_000)
    monkeypatch.setattr(parquet, "BLOCK_BYTES", 1)
    draw = np.random.default_rng(6)
    table = pa.table({"n": draw.permutation(20_000), "s": [f"{n % 7}" for n in range(20_000)]})
    definition = TableDefinition(table.schema, UNPARTITIONED, sort_by=("n",))
    [expected] = encode_sorted(table, definition, metadata={}, target_bytes=1 << 40)
    monkeypatch.setattr(parquet, "ROOM_TIMES", 0)
    monkeypatch.setattr(parquet, "FACTS_BYTES", expected.data.size // 2)
    held: list[tuple[int, int]] = []

    def noted(*args: Any, **named: Any) -> pa.Buffer:
        held.append((threading.active_count(), pa.total_allocated_bytes()))
        return encode(*args, **named)

    monkeypatch.setattr(parquet, "encode", noted)
    [found] = encode_sorted(table, definition, metadata={}, target_bytes=1 << 40)
    assert (found.data, found.stats) == (expected.data, expected.stats)
    assert pq.ParquetFile(pa.BufferReader(found.data)).metadata.num_row_groups == 10
    first, second = held
    assert second == first
