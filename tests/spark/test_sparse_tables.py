"""Spark tasks write and compact a table with many columns and sparse rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ingester.spark.read.arrow_scan import FileToRead, ScanPlan, scan
from ingester.spark.read.columns import Columns
from ingester.spark.sink.data_files import FileSink
from persist.compaction import FileGroup, RewriteTask
from persist.manifest import Add
from persist.partitioning import UNPARTITIONED, PartitionSpec
from persist.store import open_store
from persist.table import TableDefinition
from tests.persist.parquet.test_sparse_rows import WIDE, allocating_at_most

ROOT = "ns/t/v1"
ROWS = 60_000
SCHEMA = pa.schema([pa.field("time", pa.timestamp("us")), *WIDE])


def _batch(name: str, seed: int, wide: bool) -> pa.RecordBatch:
    """Return a batch as Spark makes it: with all columns of the frame, or some of them."""
    draw = np.random.default_rng(seed)
    times = pa.array(draw.integers(0, 1 << 36, ROWS // 12), pa.timestamp("us"))
    there = pa.record_batch({"time": times, name: pa.array(np.arange(len(times)))})
    if not wide:
        return there
    nulls = {
        f.name: pa.nulls(len(times), f.type) for f in SCHEMA if f.name not in there.schema.names
    }
    return pa.record_batch({**dict(zip(there.schema.names, there.columns, strict=True)), **nulls})


def _written(url: str, definition: TableDefinition) -> list[Add]:
    adds: list[Add] = []
    for n in range(3):
        sink = FileSink(open_store(url), ROOT, definition, "push", "spark")
        sink.write(_batch(f"i{n}", 4 * n + each, wide=n == 2) for each in range(4))
        adds += sink.adds
    return adds


def test_tasks_never_have_what_is_absent(tmp_path: Path) -> None:
    """With its nulls the table would take half a gigabyte."""
    url = f"file://{tmp_path}"
    definition = TableDefinition(SCHEMA, UNPARTITIONED)
    with allocating_at_most(110 << 20):
        adds = _written(url, definition)
        assert [add.rows for add in adds] == [ROWS // 3] * 3
        task = RewriteTask(ROOT, definition, 128 << 20, "test")
        [made] = task.run(open_store(url), FileGroup((1, ()), tuple(adds)))
    assert pq.read_schema(tmp_path / ROOT / made.path).names == SCHEMA.names
    found = pq.read_table(tmp_path / ROOT / made.path, columns=["time", "i0", "i1", "i2", "l7"])
    assert found.num_rows == ROWS and found["l7"].null_count == ROWS
    times = found["time"].to_pylist()
    assert times == sorted(times)
    for name in ("i0", "i1", "i2"):
        assert sorted(found[name].drop_null().to_pylist()) == sorted([*range(ROWS // 12)] * 4)


def test_files_of_an_earlier_spec_move_although_rows_lack_its_columns(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    before = TableDefinition(SCHEMA, UNPARTITIONED)
    adds = _written(url, before)
    after = before.with_spec(["identity(i0)", "year(time)"])
    task = RewriteTask(ROOT, after, 128 << 20, "test")
    few = [add for add in adds if add.stats["i0"].nulls == add.rows]
    made = task.run(open_store(url), FileGroup(None, tuple(few)))
    assert {add.values for add in made} == {(None, 1970)}
    assert sum(add.rows for add in made) == 2 * ROWS // 3


def test_batches_for_spark_are_cut_by_their_nulls(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    definition = TableDefinition(SCHEMA, PartitionSpec(()))
    adds = _written(url, definition)
    plan = ScanPlan(url, {}, Columns(definition, tuple(SCHEMA.names)))
    rows = 0
    for batch in scan(plan, [FileToRead.of(add, ROOT) for add in adds]):
        assert batch.nbytes < 100 << 20
        rows += batch.num_rows
    assert rows == ROWS
