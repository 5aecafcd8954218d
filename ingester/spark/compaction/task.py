"""Rewriting one group of files, on an executor.

All rows of the group are in memory at once. The new files have fresh names and belong to no version
until the driver commits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import structs

from ingester.spark.compaction.plan import FileGroup
from ingester.spark.sink.data_files import FileSink
from persist.manifest import Add
from persist.parquet.encode import ZSTD, Compression
from persist.parquet.reading import DataFile, open_checked, sparse_rows, told
from persist.parquet.sparse_rows import SparseRows, concatenated
from persist.partitioning import (
    PartitionValues,
    PartitionValueTooLong,
    split_batch,
    with_columns,
)
from persist.store import ObjectStore, open_store
from persist.table import TableDefinition

RESULT = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("adds", pa.binary()),
        pa.field("refused", pa.string()),
    ]
)
"""A group's answer: its new files, or why there are none."""
_encode = msgspec.msgpack.Encoder().encode
decode_adds = msgspec.msgpack.Decoder(list[Add]).decode


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """The job of a compaction, which executors need beside a group; it is pickled.

    Attributes:
        root: The folder in the store of the table's version.
        definition: The table, by whose order and spec the new files are made.
    """

    url: str
    storage_options: dict[str, Any]
    root: str
    definition: TableDefinition
    target_bytes: int
    compression: Compression = ZSTD

    def run(self, group: FileGroup) -> list[Add]:
        """The new files of a group.

        Raises:
            PartitionValueTooLong: Some of its rows have no folder that they could go into.
            persist.parquet.reading.FileDamaged: One of its files is not what was written.
            persist.store.StoreError: The store does not answer.
        """
        store = open_store(self.url, **self.storage_options)
        schema = self.definition.schema
        tables = [_rows(store, DataFile.of(add, self.root), schema) for add in group.files]
        rows = concatenated(tables)
        sink = FileSink(store, self.root, self.definition, "rewrite", "spark")
        sink.compression = self.compression
        for values, part in self._by_partition(group, rows):
            nbytes = group.bytes * part.num_rows / max(rows.num_rows, 1)
            sink.put(part, values, files=max(1, round(nbytes / self.target_bytes)))
        return sink.adds

    def _by_partition(
        self, group: FileGroup, rows: SparseRows
    ) -> Iterable[tuple[PartitionValues, SparseRows]]:
        if group.partition is not None and self.definition.lies_as_now(group.partition[0]):
            return [(group.partition[1], rows)]
        found: dict[PartitionValues, list[pa.RecordBatch]] = {}
        spec, schema = self.definition.spec, self.definition.schema
        for batch in rows.batches:
            for values, part in split_batch(with_columns(batch, spec.columns, schema), spec):
                found.setdefault(values, []).append(part)
        return [(values, SparseRows.of(parts, schema)) for values, parts in found.items()]

    def task(
        self, groups: Sequence[FileGroup]
    ) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """A function for ``mapInArrow`` over the groups' numbers."""

        # Bounds are the driver's: thousands of files have many.
        light = [
            FileGroup(group.partition, tuple(structs.replace(add, stats={}) for add in group.files))
            for group in groups
        ]

        def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    try:
                        yield _result(number, self.run(light[number]))
                    except PartitionValueTooLong as exc:
                        yield _result(number, [], str(exc))

        return run


def _result(number: int, adds: list[Add], refused: str | None = None) -> pa.RecordBatch:
    """Encode a group's answer, apart from the closure: that is pickled, and no encoder can be."""
    columns = [
        pa.array([number], pa.int64()),
        pa.array([_encode(adds)], pa.binary()),
        pa.array([refused], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RESULT)


def _rows(store: ObjectStore, file: DataFile, schema: pa.Schema) -> SparseRows:
    with store.open(file.path) as source, told(file.path), open_checked(source, file) as parquet:
        return sparse_rows(parquet, schema)
