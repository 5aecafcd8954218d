"""The files of a manifest version through pyarrow on the executors: for sessions without a
connector for the store, so that ``s3://`` needs no jar.

Law of this file: a task is a list of whole files, chosen by their sizes, and a function of the plan
alone, so that a task that runs again reads the same rows. Its store is opened inside the task:
connections do not survive the fork of Spark's Python workers. What runs there is ``persist.store``
(s3fs) and pyarrow.

Spark cannot see through a Python function: filters and column lists that follow are applied after
reading. ``read_table(columns=…)`` reads fewer columns.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ingester.spark.columns import Columns
from ingester.spark.types import spark_schema
from persist.footers import DataFile, open_checked
from persist.manifest import Add
from persist.partitioning import PartitionValues
from persist.store import ObjectStore, open_store

TASK_BYTES = 128 * 1024 * 1024
# What opening a file costs, in bytes that could be read meanwhile; Spark's own estimate.
_OPEN_COST_BYTES = 4 * 1024 * 1024
_BATCH_ROWS = 32 * 1024


class FileToRead(NamedTuple):
    """One file and its partition's values."""

    data: DataFile
    values: PartitionValues


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """All that executors need to know; it is pickled."""

    url: str
    storage_options: dict[str, Any]
    columns: Columns
    tasks: tuple[tuple[FileToRead, ...], ...]


def read_files(
    spark: SparkSession,
    store: ObjectStore,
    root: str,
    adds: Sequence[Add],
    columns: Columns,
    storage_options: Mapping[str, Any],
) -> DataFrame:
    """A DataFrame over the files, with the columns that ``columns.fields()`` lists.

    Args:
        root: Where in the store the paths of ``adds`` begin.
        adds: At least one.
    """
    tasks = tuple(
        tuple(FileToRead(DataFile.of(add, root), add.values) for add in group)
        for group in balanced(adds, _parallelism(spark))
    )
    plan = ScanPlan(store.url, dict(storage_options), columns, tasks)
    # One row and one partition per task: the row's number says which files are its.
    numbers = spark.range(0, len(tasks), 1, numPartitions=len(tasks))
    return numbers.mapInArrow(_reading(plan), spark_schema(columns.fields()))


def balanced(adds: Sequence[Add], parallelism: int) -> list[list[Add]]:
    """Groups of about equal size: one per core, more where they would exceed ``TASK_BYTES``."""
    costs = {add.path: add.bytes + _OPEN_COST_BYTES for add in adds}
    wanted = max(parallelism, -(-sum(costs.values()) // TASK_BYTES))
    groups: list[list[Add]] = [[] for _ in range(min(len(adds), wanted))]
    # The largest first, each to whoever has the least: at most a third from the best split.
    least = [(0, index) for index in range(len(groups))]
    for add in sorted(adds, key=lambda add: (-add.bytes, add.path)):
        cost, index = least[0]
        groups[index].append(add)
        heapq.heapreplace(least, (cost + costs[add.path], index))
    return groups


def read_task(plan: ScanPlan, number: int) -> Iterator[pa.RecordBatch]:
    """The rows of one task's files. Runs on an executor, and anywhere else."""
    store = open_store(plan.url, **plan.storage_options)
    for file in plan.tasks[number]:
        yield from _rows(store, file, plan.columns)


def _rows(store: ObjectStore, file: FileToRead, columns: Columns) -> Iterator[pa.RecordBatch]:
    with (
        store.open(file.data.path) as source,
        open_checked(source, file.data, pre_buffer=True) as parquet,
    ):
        there = set(parquet.schema_arrow.names)
        names = [name for name in columns.data if name in there]
        if not names:
            yield from _only_partition_columns(parquet.metadata.num_rows, file, columns)
            return
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
            yield columns.carried(batch, file.values)


def _only_partition_columns(
    rows: int, file: FileToRead, columns: Columns
) -> Iterator[pa.RecordBatch]:
    """As many rows as the file has, where it holds none of the columns."""
    for start in range(0, rows, _BATCH_ROWS):
        numbers = pa.nulls(min(_BATCH_ROWS, rows - start))
        # A name that no column has: it only counts the rows.
        yield columns.carried(pa.record_batch({"": numbers}), file.values)


def _reading(plan: ScanPlan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_task(plan, number)

    return read


def _parallelism(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # a Connect session does not know; what it shuffles into is a fair guess
        return int(str(spark.conf.get("spark.sql.shuffle.partitions", "8")))
