"""A table's rows as the data source gives them to Spark: requested columns in Spark's Arrow types.

A schema that the user gives selects columns. It must agree with the table's types: nothing is cast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from ingester.spark.errors import ReaderUnsuitable, RequestRefused
from ingester.spark.read.arrow_scan import FileToRead, ScanPlan, balanced, scan
from ingester.spark.read.columns import Columns, asked_columns
from ingester.spark.read.filters import Pruning, pruning, said
from ingester.spark.read.types import (
    floored,
    holds_nanoseconds,
    is_nanoseconds,
    seen_type,
    spark_schema,
)
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
