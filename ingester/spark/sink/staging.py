"""Rows of one task for a keyed table, put aside in the store until the driver hands them over.

    data/_staging/<uuid>.parquet

Law of this file: no manifest lists these files, so no reader sees them and clean-up takes what is
left of them. Each attempt of a task has its own; which of them count is the driver's to say. Runs
on executors, but for :func:`staged_rows`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ingester.spark.errors import WriteRefused
from ingester.spark.read.merge import OPERATION
from ingester.spark.sink.columns import table_rows
from persist.parquet.decode import sparse_rows
from persist.parquet.encode import encode
from persist.parquet.sparse_rows import SparseRows
from persist.partitioning import with_columns
from persist.store import NotFound, ObjectStore
from persist.table import TableDefinition

FILE_BYTES = 64 << 20
"""Rows of one file, in memory."""
KINDS = ("upsert", "delete")


class StagedFile(NamedTuple):
    """One file of rows that wait for the commit."""

    path: str
    bytes: int
    """The size of the file in the store."""


@dataclass(frozen=True, slots=True)
class Staging:
    """The folder in which one write puts its rows until they are committed.

    Attributes:
        root: The folder in the store of the table's version.
        marked: Whether a column ``_op`` says of each row what becomes of its key.
    """

    store: ObjectStore
    root: str
    definition: TableDefinition
    marked: bool

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, and ``_op`` where rows have it."""
        marks = [pa.field(OPERATION, pa.string())] if self.marked else []
        return pa.schema([*self.definition.schema, *marks])

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[StagedFile]:
        """Write all rows of a task, in their order.

        Raises:
            WriteRefused: A value that the table does not take, or a row without its key.
            StoreError: The store does not take a file.
        """
        files: list[StagedFile] = []
        held: list[pa.RecordBatch] = []
        for batch in batches:
            rows = table_rows(batch, self.schema)
            if rows.num_rows:
                self._check(rows)
            held.append(rows)
            if sum(one.nbytes for one in held) >= FILE_BYTES:
                files.append(self._put(held))
                held = []
        if any(one.num_rows for one in held):
            files.append(self._put(held))
        return files

    def _put(self, batches: list[pa.RecordBatch]) -> StagedFile:
        path = f"{self.root}/data/_staging/{uuid.uuid4().hex}.parquet"
        content = encode([SparseRows.of(batches, self.schema).table()], {})
        self.store.put(path, content)
        return StagedFile(path, len(content))

    def _check(self, rows: pa.RecordBatch) -> None:
        for name in self.definition.primary_key:
            if name not in rows.schema.names or rows.column(name).null_count:
                raise WriteRefused(f"column {name!r} of the primary key is null in a row")
        if self.marked:
            marks = with_columns(rows, [OPERATION], self.schema).column(OPERATION)
            other = set(marks.unique().to_pylist()) - set(KINDS)
            if other:
                raise WriteRefused(f"column '_op' is {other.pop()!r}, neither upsert nor delete")


def staged_rows(staging: Staging, path: str, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in batches of about so many bytes, of the columns that have a value.

    On the driver.

    Raises:
        StoreError: It cannot be read.
    """
    with staging.store.open(path) as source, pq.ParquetFile(source) as parquet:
        rows = sparse_rows(parquet, staging.schema)
    for batch in rows.batches:
        step = max(1, batch.num_rows * most_bytes // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def forget(store: ObjectStore, paths: Iterable[str]) -> None:
    """Delete the files that were handed over."""
    for path in paths:
        try:
            store.delete(path)
        except NotFound:
            continue
