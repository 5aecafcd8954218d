"""A leaf has min and max in a file only without NaN: per file, per page, at any depth."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingester.cli.output.formats import open_sink
from persist.parquet.encode import encode_sorted
from persist.parquet.sparse_rows import SparseRows
from persist.parquet.stats import leaves_without_floats, leaves_without_nan
from persist.partitioning import UNPARTITIONED
from persist.table import TableDefinition

NAN = float("nan")
COLUMNS: dict[str, tuple[list[Any], pa.DataType, set[str], set[str]]] = {
    # Values, type, leaves with statistics, leaves that may hold floats.
    "numbers": ([3.0, None, -0.0], pa.float64(), {"c"}, {"c"}),
    "nan": ([3.0, NAN, 3.0], pa.float32(), set(), {"c"}),
    "text": (["a", None, ""], pa.string(), {"c"}, set()),
    "struct": (
        [{"v": 1.0, "w": NAN, "n": 1}, None, {"v": None, "w": 2.0, "n": 2}],
        pa.struct([("v", pa.float64()), ("w", pa.float64()), ("n", pa.int8())]),
        {"c.v", "c.n"},
        {"c.v", "c.w"},
    ),
    "list": ([[1.0], [], [NAN, None]], pa.list_(pa.float64()), set(), {"c.list.element"}),
    "fixed": ([[1.0, NAN], None], pa.list_(pa.float64(), 2), set(), {"c.list.element"}),
    "map": (
        [[("a", NAN)], None, [("b", 1.0)]],
        pa.map_(pa.string(), pa.float64()),
        {"c.key_value.key"},
        {"c.key_value.value"},
    ),
    "deep": (
        [[{"m": [(1, [{"x": NAN, "y": 1}])]}], None],
        pa.list_(
            pa.struct(
                {"m": pa.map_(pa.int8(), pa.list_(pa.struct({"x": pa.float32(), "y": pa.int8()})))}
            )
        ),
        {
            "c.list.element.m.key_value.key",
            "c.list.element.m.key_value.value.list.element.y",
        },
        {"c.list.element.m.key_value.value.list.element.x"},
    ),
}


def _with_statistics(data: Any) -> tuple[set[str], set[str]]:
    """Leaves that have statistics, and all leaves."""
    footer = pq.ParquetFile(pa.BufferReader(data)).metadata
    leaves = [footer.row_group(0).column(n) for n in range(footer.num_columns)]
    for leaf in leaves:
        assert not leaf.has_column_index or leaf.is_stats_set
    return {x.path_in_schema for x in leaves if x.is_stats_set}, {x.path_in_schema for x in leaves}


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_file_has_statistics_of_all_leaves_but_those_with_a_nan(kind: str) -> None:
    values, type_, with_statistics, _ = COLUMNS[kind]
    table = pa.table({"id": pa.array(range(len(values))), "c": pa.array(values, type_)})
    [file] = encode_sorted(
        table, TableDefinition(table.schema, UNPARTITIONED), metadata={}, target_bytes=1 << 30
    )
    assert _with_statistics(file.data)[0] == {"id"} | with_statistics
    assert pq.read_table(pa.BufferReader(file.data)).num_rows == len(values)


@pytest.mark.parametrize("kind", COLUMNS)
def test_streamed_output_of_the_command_line_has_no_statistics_of_floats(kind: str) -> None:
    values, type_, _, floats = COLUMNS[kind]
    batch = pa.record_batch({"id": pa.array(range(len(values))), "c": pa.array(values, type_)})
    written = io.BytesIO()
    sink = open_sink("parquet", written, batch.schema, seekable=False)
    sink.write(batch)
    sink.finish()
    found, every = _with_statistics(pa.py_buffer(written.getvalue()))
    assert found == every - floats
    footer = pq.ParquetFile(pa.py_buffer(written.getvalue())).metadata.row_group(0)
    for leaf in map(footer.column, range(footer.num_columns)):
        # Spark would look for 0.0 in a dictionary that has -0.0.
        assert leaf.has_dictionary_page == (leaf.path_in_schema in found)


def test_a_column_named_like_a_nested_path_loses_its_statistics_too() -> None:
    rows = SparseRows.of_table(pa.table({"s": [{"v": NAN}], "s.v": [1.0], "n": [1]}))
    assert leaves_without_nan(rows) == leaves_without_floats(rows.schema) == ["n"]


def test_a_nan_outside_a_slice_does_not_count() -> None:
    for whole in (pa.table({"v": [NAN, 1.0]}), pa.table({"v": [[NAN], [1.0]]})):
        assert leaves_without_nan(SparseRows.of_table(whole.slice(1))) != []
        assert leaves_without_nan(SparseRows.of_table(whole.slice(0, 1))) == []
