"""The number of a table's rows, as a data source's answer: option ``count``.

Spark counts a Python data source's rows by having all of them, even where they have no column. The
manifest knows how many there are; where a filter is said, a task counts those of its files.

Law of this file: the sum over all rows of the answer is what a count of the same read would give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from ingester.spark.errors import plainly_each
from ingester.spark.read.arrow_scan import scan
from ingester.spark.source.batch import FilesPartition, TableReader

SCHEMA = StructType([StructField("count", LongType(), nullable=False)])


class Counted(InputPartition):
    """Rows of files that need not be opened."""

    def __init__(self, rows: int) -> None:
        super().__init__(None)
        self.rows = rows


class CountReader(TableReader):
    """One version's rows, or those that a filter leaves, counted."""

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks: one for all that is known, or several that have to look into files."""
        if self._plan.rows:
            return super().partitions()
        return [Counted(sum(add.rows for add in self._wanted()))]

    @plainly_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The count of a task, as one row. On an executor."""
        rows = 0  # also where Spark asks once although there is nothing to read
        if isinstance(partition, Counted):
            rows = partition.rows
        elif isinstance(partition, FilesPartition):
            rows = sum(batch.num_rows for batch in scan(self._plan, partition.files))
        schema = pa.schema([pa.field("count", pa.int64(), nullable=False)])
        yield pa.record_batch([pa.array([rows], pa.int64())], schema=schema)
