"""How many rows a table has, as a data source's answer: option ``count``.

Spark counts a Python data source's rows by having all of them, even where they have no column. The
manifest knows how many there are; where a filter is said, a task counts those of its files.

Law of this file: the sum over all rows of the answer is what a count of the same read would give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from ingester.spark.arrow_scan import ScanPlan, scan
from ingester.spark.source_reader import FilesPartition, partitions_of, wanted_files
from ingester.spark.source_rows import SourceRows
from persist.manifest import Manifest, TableState

SCHEMA = StructType([StructField("count", LongType(), nullable=False)])


class Counted(InputPartition):
    """Rows of files that need not be opened."""

    def __init__(self, rows: int) -> None:
        super().__init__(None)
        self.rows = rows


class CountReader(DataSourceReader):
    """One version's rows, or those that a filter leaves, counted."""

    def __init__(
        self,
        manifest: Manifest,
        state: TableState,
        rows: SourceRows,
        storage: dict[str, Any],
        parallelism: int,
    ) -> None:
        files = wanted_files(state, rows.pruning)
        self._partitions: Sequence[InputPartition] = [Counted(sum(add.rows for add in files))]
        if files and rows.pruning.rows:
            self._partitions = partitions_of(files, manifest, parallelism)
        self._plan = ScanPlan(manifest.store.url, storage, rows.columns, rows.pruning.rows)

    def partitions(self) -> Sequence[InputPartition]:
        """One for all, or tasks that have to look into files."""
        return self._partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One row. On an executor."""
        if isinstance(partition, Counted):
            rows = partition.rows
        else:
            assert isinstance(partition, FilesPartition)
            rows = sum(batch.num_rows for batch in scan(self._plan, partition.files))
        schema = pa.schema([pa.field("count", pa.int64(), nullable=False)])
        yield pa.record_batch([pa.array([rows], pa.int64())], schema=schema)
