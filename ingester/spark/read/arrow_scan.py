"""Files of a manifest version read by pyarrow on the executors, for sessions without S3A.

A task is a list of whole files, chosen by size. It is a function of the plan alone, so a task that
runs again reads the same rows. Each task opens its own store: connections do not survive the fork
of Spark's Python workers. If no column of a file is wanted the file is not opened, because the
manifest knows its number of rows. Files of an earlier partition spec are opened for the columns
that today's partition columns are made from.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from ingester.spark.errors import FilesDeleted
from ingester.spark.read.columns import Columns, spark_schema
from persist.manifest import Add, PartitionKey
from persist.parquet.reading import DataFile, damage_errors, group_bounds, open_checked
from persist.parquet.sparse_rows import null_bytes
from persist.partitioning import PartitionValues
from persist.predicate.predicate import Predicate
from persist.store import ObjectNotFound, ObjectStore, open_store
from persist.table import TableDefinition

TASK_BYTES = 128 * 1024 * 1024
# Cost of opening a file, in bytes that could be read meanwhile; Spark's own estimate.
_OPEN_COST_BYTES = 4 * 1024 * 1024
_BATCH_ROWS, _BATCH_BYTES = 32 * 1024, 64 << 20
"""Limits of a batch. Null columns count too, as Spark receives all requested columns."""
_COUNTED_ROWS = 1 << 20
"""Rows of a batch without columns of the file."""


class FileToRead(NamedTuple):
    """One file, its partition and its number of rows."""

    data: DataFile
    partition: PartitionKey
    rows: int

    @classmethod
    def of(cls, add: Add, root: str) -> FileToRead:
        """The file of a manifest entry, whose path is relative to ``root``."""
        return cls(DataFile.of(add, root), add.partition, add.rows)

    def values_in(self, definition: TableDefinition) -> PartitionValues | None:
        """Values of the partition columns, common to all rows; None if only the rows have them.

        The file's partition spec may be older or newer than the definition's.
        """
        if definition.has_current_layout(self.partition[0]):
            return self.partition[1]
        return None if definition.spec.fields else ()


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """Parameters of a scan, pickled for executors.

    Attributes:
        rows: Predicates that rows must match, over the columns in their carrier types.
    """

    url: str
    store_options: dict[str, Any]
    columns: Columns
    rows: tuple[Predicate, ...] = ()


def read_files(
    spark: SparkSession,
    store: ObjectStore,
    root: str,
    adds: Sequence[Add],
    columns: Columns,
    store_options: Mapping[str, Any],
    rows: tuple[Predicate, ...] = (),
) -> DataFrame:
    """A DataFrame over the files, with the columns that ``columns.fields()`` lists.

    Args:
        root: The folder in the store that the paths of ``adds`` are relative to.
        adds: At least one.
    """
    tasks = tuple(
        tuple(FileToRead.of(add, root) for add in group)
        for group in balanced(adds, parallelism(spark))
    )
    plan = ScanPlan(store.url, dict(store_options), columns, rows)
    # One row and one partition per task: the row is the index of its files.
    numbers = spark.range(0, len(tasks), 1, numPartitions=len(tasks))
    return numbers.mapInArrow(_reading(plan, tasks), spark_schema(columns.fields()))


def balanced(adds: Sequence[Add], parallelism: int) -> list[list[Add]]:
    """Groups of about equal size: one per core, or more if they would exceed ``TASK_BYTES``."""
    costs = {add.path: add.bytes + _OPEN_COST_BYTES for add in adds}
    wanted = max(parallelism, -(-sum(costs.values()) // TASK_BYTES))
    groups: list[list[Add]] = [[] for _ in range(min(len(adds), wanted))]
    # Largest first, each to the smallest group (LPT): at most a third above the optimum.
    least = [(0, index) for index in range(len(groups))]
    for add in sorted(adds, key=lambda add: (-add.bytes, add.path)):
        cost, index = least[0]
        groups[index].append(add)
        heapq.heapreplace(least, (cost + costs[add.path], index))
    return groups


def scan(plan: ScanPlan, files: Iterable[FileToRead]) -> Iterator[pa.RecordBatch]:
    """The rows of a task's files. Runs on executors.

    Raises:
        FilesDeleted: A file no longer exists.
        persist.parquet.reading.FileDamaged: A file is damaged.
        persist.store.StoreError: A file cannot be read.
    """
    store: ObjectStore | None = None
    for file in files:
        values = file.values_in(plan.columns.definition)
        if not plan.columns.data and values is not None:
            found = _only_partition_columns(file.rows, values, plan.columns)
        else:
            store = store or open_store(plan.url, **plan.store_options)
            found = _rows_unless_deleted(store, file, values, plan)
        for batch in found:
            for predicate in plan.rows:
                batch = predicate.select(batch)
            if batch.num_rows:
                yield batch


def _rows_unless_deleted(
    store: ObjectStore, file: FileToRead, values: PartitionValues | None, plan: ScanPlan
) -> Iterator[pa.RecordBatch]:
    try:
        yield from _rows(store, file, values, plan)
    except ObjectNotFound as exc:
        raise FilesDeleted(exc.path) from exc


def _rows(
    store: ObjectStore, file: FileToRead, values: PartitionValues | None, plan: ScanPlan
) -> Iterator[pa.RecordBatch]:
    columns = plan.columns
    made_from = () if values is not None else columns.definition.spec.columns
    with (
        store.open(file.data.path) as source,
        damage_errors(file.data.path),
        open_checked(source, file.data, pre_buffer=True) as parquet,
    ):
        there = set(parquet.schema_arrow.names)
        names = [name for name in dict.fromkeys((*columns.data, *made_from)) if name in there]
        if not names:
            there_are = values if values is not None else (None,) * len(made_from)
            yield from _only_partition_columns(file.rows, there_are, columns)
            return
        groups = _groups(parquet.metadata, plan)
        row_bytes = sum(null_bytes(field.type) for field in columns.fields())
        rows = max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / (row_bytes or 1))))
        for batch in parquet.iter_batches(
            rows, row_groups=groups, columns=names, use_threads=False
        ):
            if values is not None:
                yield columns.carried(batch, values)
            else:
                yield columns.of_any(batch)


def _groups(footer: pq.FileMetaData, plan: ScanPlan) -> list[int]:
    """Row groups that may have matching rows."""
    numbers = range(footer.num_row_groups)
    if not plan.rows:
        return list(numbers)
    return [number for number in numbers if _may_match(footer, number, plan)]


def _may_match(footer: pq.FileMetaData, number: int, plan: ScanPlan) -> bool:
    bounds = group_bounds(footer, number, plan.columns.definition.schema)
    rows = footer.row_group(number).num_rows
    return all(predicate.may_match(bounds, rows) for predicate in plan.rows)


def _only_partition_columns(
    rows: int, values: PartitionValues, columns: Columns
) -> Iterator[pa.RecordBatch]:
    """Rows of a file that has none of the requested columns: null, but for partition columns."""
    row_bytes = sum(null_bytes(field.type) for field in columns.fields())
    step = max(1, min(_COUNTED_ROWS, int(_BATCH_BYTES / (row_bytes or 1))))
    for start in range(0, rows, step):
        numbers = pa.nulls(min(step, rows - start))
        # A column under an unused name carries the number of rows.
        yield columns.carried(pa.record_batch({"": numbers}), values)


def _reading(
    plan: ScanPlan, tasks: Sequence[Sequence[FileToRead]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from scan(plan, tasks[number])

    return read


def parallelism(spark: SparkSession) -> int:
    """Number of tasks that the session runs concurrently."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # unknown to a Connect session; its shuffle partitions are a fair guess
        return int(str(spark.conf.get("spark.sql.shuffle.partitions", "8")))
