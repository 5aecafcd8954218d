"""Which columns of a file have a dictionary: those whose values repeat."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist.parquet.encode import SAMPLE_ROWS, encode_sorted
from persist.partitioning import UNPARTITIONED
from persist.table import TableDefinition

_ROWS = 60_000


def _columns(rows: int) -> dict[str, pa.Array]:
    random = np.random.default_rng(0)
    return {
        "id": pa.array(random.permutation(rows)),
        "kind": pa.array(random.integers(0, 50, rows)),
        "name": pa.array([f"name-{n}" for n in range(rows)]),
        "tag": pa.array([f"tag-{n % 7}" for n in range(rows)]),
        "missing": pa.nulls(rows, pa.int64()),
        "value": pa.array(random.random(rows)),
    }


def _table(rows: int) -> pa.Table:
    return pa.table(_columns(rows))


def _with_dictionaries(data: pa.Buffer) -> set[str]:
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    group = metadata.row_group(0)
    columns = [group.column(n) for n in range(group.num_columns)]
    return {c.path_in_schema for c in columns if c.has_dictionary_page}


def test_columns_with_repeated_values_have_a_dictionary_and_others_do_not() -> None:
    table = _table(_ROWS)
    definition = TableDefinition(table.schema, UNPARTITIONED, sort_by=("id",))
    [file] = encode_sorted(table, definition, metadata={}, target_bytes=1 << 30)
    assert _with_dictionaries(file.data) == {"kind", "tag", "missing"}
    read = pq.read_table(pa.BufferReader(file.data))
    assert read.equals(table.sort_by("id").cast(read.schema))


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_file_of_few_rows_is_judged_by_all_of_them(repeats: int) -> None:
    table = pa.table({"n": np.repeat(np.arange(10), repeats)})
    definition = TableDefinition(table.schema, UNPARTITIONED)
    [file] = encode_sorted(table, definition, metadata={}, target_bytes=1 << 30)
    assert _with_dictionaries(file.data) == ({"n"} if repeats > 1 else set())


def test_without_a_dictionary_a_file_of_many_different_numbers_is_smaller() -> None:
    rows = 4 * SAMPLE_ROWS
    table = pa.table({"n": np.random.default_rng(1).permutation(rows)})
    definition = TableDefinition(table.schema, UNPARTITIONED, sort_by=("n",))
    [file] = encode_sorted(table, definition, metadata={}, target_bytes=1 << 30)
    sink = pa.BufferOutputStream()
    pq.write_table(table.sort_by("n"), sink, compression="zstd", use_dictionary=True)
    assert file.data.size * 2 < sink.getvalue().size
