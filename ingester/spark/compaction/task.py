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
from persist.parquet.reading import DataFile, damage_errors, open_checked, sparse_rows
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
"""Result of a group: its new files, or the reason for none."""
_encode = msgspec.msgpack.Encoder().encode
decode_adds = msgspec.msgpack.Decoder(list[Add]).decode


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """Parameters of a compaction, pickled for executors.

    Attributes:
        root: The folder of the table's generation in the store.
        definition: The table, with the order and partition spec of the new files.
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
            PartitionValueTooLong: A partition value is too long for a folder's name.
            persist.parquet.reading.FileDamaged: One of its files is damaged.
            persist.store.StoreError: The store cannot be read or written.
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
        if group.partition is not None and self.definition.has_current_layout(group.partition[0]):
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
        """A function for ``mapInArrow`` over the numbers of groups."""
        # Without statistics, which executors do not need and which make up most of the size.
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
    """Encode a group's result. Not in the closure, which is pickled: an encoder cannot be."""
    columns = [
        pa.array([number], pa.int64()),
        pa.array([_encode(adds)], pa.binary()),
        pa.array([refused], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RESULT)


def _rows(store: ObjectStore, file: DataFile, schema: pa.Schema) -> SparseRows:
    with (
        store.open(file.path) as source,
        damage_errors(file.path),
        open_checked(source, file) as parquet,
    ):
        return sparse_rows(parquet, schema)
