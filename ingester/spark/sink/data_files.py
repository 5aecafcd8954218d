"""A DataFrame's rows as Parquet files in a table's layout. Runs on executors.

    batches ─▶ the table's columns ─▶ by partition ─▶ sorted, encoded ─▶ put ─▶ ``Add`` actions

Columns are matched by name. A column that the frame lacks is null; one that the table lacks is
refused, unless the partition spec computes it. A value that the table's type cannot hold is refused
with its column's name (``tests/spark/test_refusals.py``).

A task that runs twice or dies leaves only garbage, as every file has a new name and no version
lists it before the commit. Memory is bounded, whatever the number of partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.types import StructType

from ingester.conversion import converted
from ingester.schema.types import takes
from ingester.spark.errors import WriteRefused
from ingester.spark.sink.row_digest import RowDigest
from ingester.spark.versions import arrow_schema
from persist.manifest import Add
from persist.parquet.encode import encode_sorted
from persist.parquet.put import FileKind, FileOrigin, FileStore, put_file
from persist.parquet.sparse_rows import PartitionedRows, rows_alone
from persist.partitioning import (
    PartitionValues,
    PartitionValueTooLong,
    split_batch,
    with_columns,
)
from persist.table import TableDefinition

TARGET_FILE_BYTES = 128 << 20
HELD_BYTES = 256 << 20
"""Rows that a task holds in memory before it writes the largest partition."""


def check_columns(schema: StructType, definition: TableDefinition) -> None:
    """Check that rows of this schema can be written to the table.

    Raises:
        WriteRefused: The table lacks a column, or does not accept its type.
    """
    table = definition.schema
    given = arrow_schema(schema)
    for theirs in given:
        index = table.get_field_index(theirs.name)
        if index < 0 and theirs.name in definition.spec.names:
            continue
        if index < 0:
            raise WriteRefused(
                f"the table has no column {theirs.name!r}; it has {', '.join(table.names)}"
            )
        kind = table.field(index).type
        if not takes(kind, theirs.type):
            raise WriteRefused(
                f"column {theirs.name!r} is {kind} in the table, but {theirs.type} in the frame"
            )
    for ours in table:
        if given.get_field_index(ours.name) < 0:
            if ours.name in definition.primary_key:
                raise WriteRefused(
                    f"the frame has no column {ours.name!r}, which is in the primary key"
                )
            if not ours.nullable and not definition.keyed:  # a deletion has only its key
                raise WriteRefused(
                    f"the frame has no column {ours.name!r}, which the table declares as not"
                    " nullable"
                )


def table_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in the table's types, without columns that are all null.

    Raises:
        WriteRefused: A column cannot hold a value.
    """
    arrays, fields = [], []
    for ours in schema:
        index = batch.schema.get_field_index(ours.name)
        if index < 0:
            continue
        column = batch.column(index)
        if column.null_count == len(column):
            continue
        try:
            arrays.append(converted(column, ours.type))
        except pa.ArrowException as exc:
            raise WriteRefused(f"column {ours.name!r}: {exc}") from exc
        fields.append(ours)
    if not fields:
        return rows_alone(batch.num_rows)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def check_required(rows: pa.RecordBatch, schema: pa.Schema) -> None:
    """Check that no required column is null.

    Raises:
        WriteRefused: A row has no value in one.
    """
    for ours in schema:
        if ours.nullable or not rows.num_rows:
            continue
        index = rows.schema.get_field_index(ours.name)
        nulls = rows.num_rows if index < 0 else rows.column(index).null_count
        if nulls:
            raise WriteRefused(
                f"column {ours.name!r}: {nulls} nulls in a column that the table declares as not"
                " nullable"
            )


@dataclass(slots=True)
class FileSink:
    """Files for one table. One thread.

    Attributes:
        root: The folder of the table's generation in the store; empty if the store knows it.
        kind: The kind of the files in the manifest.
        writer: The writer of the files in the manifest.
        target_bytes: Size of a file, as rows in memory.
        digest: Digests the rows, if that is wanted.
    """

    store: FileStore
    root: str
    definition: TableDefinition
    kind: FileKind
    writer: str
    target_bytes: int = TARGET_FILE_BYTES
    digest: RowDigest | None = None
    adds: list[Add] = field(default_factory=list)
    """The files written so far, for a commit to list."""
    _held: PartitionedRows = field(init=False)

    def __post_init__(self) -> None:
        self._held = PartitionedRows(self.definition.schema)

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that are not in a file yet."""
        return self._held.nbytes

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[Add]:
        """Write all rows of a task.

        Returns:
            The files, for a commit to list.

        Raises:
            WriteRefused: The table cannot hold a value.
            StoreError: A file cannot be written; Spark may retry the task.
        """
        for batch in batches:
            rows = table_rows(batch, self.definition.schema)
            check_required(rows, self.definition.schema)
            if self.digest is not None:
                self.digest.add(rows)
            self._take(rows)
            while self.held_bytes > HELD_BYTES:
                self._flush(self._held.largest())
        for values in self._held.partitions():
            self._flush(values)
        return self.adds

    def _take(self, rows: pa.RecordBatch) -> None:
        try:
            spec, schema = self.definition.spec, self.definition.schema
            split = split_batch(with_columns(rows, spec.columns, schema), spec)
        except PartitionValueTooLong as exc:
            raise WriteRefused(str(exc)) from exc
        for values, part in split:
            if part.num_rows:
                size = self._held.add(values, part, whole=len(split) == 1)
                if size >= self.target_bytes:
                    self._flush(values)

    def _flush(self, values: PartitionValues) -> None:
        origin = FileOrigin(
            self.kind, self.writer, self.definition, (self.definition.spec_id, values)
        )
        for file in encode_sorted(
            self._held.take(values),
            self.definition,
            metadata=origin.facts(),
            target_bytes=self.target_bytes,
        ):
            self.adds.append(put_file(self.store, self.root, file, origin))
