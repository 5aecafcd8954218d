"""The data source's batch read: files of one version, pruned by the manifest, balanced by size.

Planning reads the manifest, executors read files. A task receives its files and nothing else of the
table's state. A schema that the user gives selects columns. It must agree with the table's types:
nothing is cast.

Filters that Spark pushes down are not used. Spark 4.3 keeps a query's pushed filters with the
relation and applies them to its other uses: both sides of ``df.where(a).union(df.where(b))`` would
read the files of ``b``. The option ``filter`` belongs to the relation and does not have this
problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from ingester.spark.errors import ReaderUnsuitable, RequestRefused, plainly_each
from ingester.spark.read.arrow_scan import FileToRead, ScanPlan, balanced, scan
from ingester.spark.read.columns import (
    Columns,
    asked_columns,
    floored,
    holds_nanoseconds,
    is_nanoseconds,
    seen_type,
    spark_schema,
)
from ingester.spark.read.filters import Pruning, pruning, said
from ingester.spark.versions import arrow_schema
from persist.manifest import Add, Manifest, TableState
from persist.table import TableDefinition


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Requested rows of a table. Pickled for executors.

    Attributes:
        columns: Columns to read.
        names: Columns of the answer, in order.
        pruning: Predicates of the wanted rows.
    """

    columns: Columns
    names: tuple[str, ...]
    pruning: Pruning

    @classmethod
    def all(
        cls, state: TableState, names: Sequence[str] | None, filter_: str | None = None
    ) -> SourceRows:
        """Rows with these columns; by default the table's, then its partition columns.

        Raises:
            ValueError: An unknown or repeated column, or an invalid filter.
            ReaderUnsuitable: A column has a type that a data source cannot give.
        """
        definition = TableDefinition.of_state(state)
        asked = () if names == () else asked_columns(definition, names)
        schema, wanted = definition.schema, said(filter_, definition)
        needed = {*asked, *wanted.columns}
        data = tuple(name for name in schema.names if name in needed)
        for name in (name for name in data if name in asked):
            kind = schema.field(name).type
            if holds_nanoseconds(kind) and not is_nanoseconds(kind):
                raise ReaderUnsuitable(
                    f"column {name!r} has nanoseconds inside {kind}: use read_table, or leave the"
                    " column out with the option columns"
                )
        columns = Columns(definition, data)
        return cls(columns, asked, pruning(wanted, columns))

    @classmethod
    def of_schema(
        cls, state: TableState, schema: StructType, filter_: str | None = None
    ) -> SourceRows:
        """Rows with the columns of a user's schema.

        Raises:
            ValueError: The table lacks a column, or has another type for it.
        """
        rows = cls.all(state, tuple(schema.fieldNames()), filter_)
        for theirs, ours in zip(schema.fields, rows.schema().fields, strict=True):
            if theirs.dataType != ours.dataType:
                raise RequestRefused(
                    f"column {theirs.name!r} is {ours.dataType.simpleString()} in the table, but"
                    f" {theirs.dataType.simpleString()} in the given schema"
                )
        return rows

    def schema(self) -> StructType:
        """The answer's schema in Spark's types."""
        table = self.columns.definition.schema
        fields = {field.name: field for field in self.columns.partition_fields()}
        for name in self.columns.data:
            fields[name] = pa.field(name, seen_type(table.field(name).type))
        return spark_schema([fields[name] for name in self.names])

    def read(
        self, plan: ScanPlan, files: Iterable[FileToRead], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the files in Spark's own Arrow types. On an executor."""
        for batch in scan(plan, files):
            yield self._answer(batch, schema)

    def _answer(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        if not self.names:
            rows = pa.StructArray.from_buffers(pa.struct([]), batch.num_rows, [None])
            return pa.RecordBatch.from_struct_array(rows)
        table, arrays = self.columns.definition.schema, []
        for field in schema:
            column = batch.column(field.name)
            if field.name in self.columns.data and is_nanoseconds(table.field(field.name).type):
                column = floored(column, table.field(field.name).type)
            arrays.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


class FilesPartition(InputPartition):
    """The files of one task."""

    def __init__(self, files: tuple[FileToRead, ...]) -> None:
        super().__init__(None)
        self.files = files


def partitions_of(
    adds: Sequence[Add], manifest: Manifest, parallelism: int
) -> list[FilesPartition]:
    """Tasks of about equal size, determined by the files alone."""
    return [
        FilesPartition(tuple(FileToRead.of(add, manifest.root) for add in group))
        for group in balanced(adds, parallelism)
    ]


class TableReader(DataSourceReader):
    """One version of a table, read by files."""

    def __init__(
        self,
        manifest: Manifest,
        state: TableState,
        rows: SourceRows,
        store_options: dict[str, Any],
        parallelism: int,
    ) -> None:
        self._planning: tuple[Manifest, TableState] | None = (manifest, state)
        self._rows = rows
        self._parallelism = parallelism
        self._plan = ScanPlan(manifest.store.url, store_options, rows.columns, rows.pruning.rows)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planning": None}

    def partitions(self) -> Sequence[InputPartition]:
        """The files that may have wanted rows, as tasks."""
        manifest, _ = self._planned()
        return partitions_of(self._wanted(), manifest, self._parallelism)

    def _wanted(self) -> list[Add]:
        files = sorted(self._planned()[1].files.items())  # deterministic order
        return [add for _, add in files if self._rows.pruning.may_match(add)]

    def _planned(self) -> tuple[Manifest, TableState]:
        assert self._planning is not None, "only the driver plans"
        return self._planning

    @plainly_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task. On an executor."""
        if not isinstance(partition, FilesPartition):
            return  # Spark calls this once if there are no partitions; 4.0 with None
        files = partition.files
        schema = arrow_schema(self._rows.schema())
        yield from self._rows.read(self._plan, files, schema)


SCHEMA = StructType([StructField("count", LongType(), nullable=False)])


class Counted(InputPartition):
    """The number of rows of files that need not be opened."""

    def __init__(self, rows: int) -> None:
        super().__init__(None)
        self.rows = rows


class CountReader(TableReader):
    """The option ``count``: rows whose sum is the number of rows of the same read.

    Spark counts a Python data source's rows by reading all of them, even without columns. The
    manifest knows the number; with a filter, tasks count the matching rows of their files.
    """

    def partitions(self) -> Sequence[InputPartition]:
        """One task without a filter; with a filter, tasks that read files."""
        if self._plan.rows:
            return super().partitions()
        return [Counted(sum(add.rows for add in self._wanted()))]

    @plainly_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The count of one task, as one row. On an executor."""
        rows = 0  # Spark calls this once even if there are no partitions
        if isinstance(partition, Counted):
            rows = partition.rows
        elif isinstance(partition, FilesPartition):
            rows = sum(batch.num_rows for batch in scan(self._plan, partition.files))
        schema = pa.schema([pa.field("count", pa.int64(), nullable=False)])
        yield pa.record_batch([pa.array([rows], pa.int64())], schema=schema)
