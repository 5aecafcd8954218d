"""Memory for a file is asked for at once; a file that needs more than anybody thought has it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist import parquet
from persist.parquet import FACTS_BYTES, ROOM_TIMES, EncodedFile, OutOfRoom, encode, encode_sorted
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


def test_a_file_that_says_more_about_its_rows_than_they_are_is_made_all_the_same() -> None:
    table = pa.table({f"a column with a name {n:0200}": [n, n + 1] for n in range(4000)})
    [first, second] = _encoded(table)
    assert first.data.size > ROOM_TIMES * table.nbytes + FACTS_BYTES
    assert (first.rows, second.rows) == (1, 1)
    for row, file in enumerate((first, second)):
        assert pq.read_table(pa.BufferReader(file.data)).equals(table.slice(row, 1))
        column = table.column_names[7]
        assert (file.stats[column].min, file.stats[column].max) == (7 + row, 7 + row)


def test_files_made_a_second_time_are_those_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(parquet, "ROOM_TIMES", 0)
    monkeypatch.setattr(parquet, "FACTS_BYTES", 2000)
    found = _encoded(table)
    assert refused == len(expected) == 3
    for one, other in zip(found, expected, strict=True):
        assert (one.data, one.stats, one.rows) == (other.data, other.stats, other.rows)
        assert one.arrivals is not None
        assert other.arrivals is not None
        assert one.arrivals.tolist() == other.arrivals.tolist()
