"""Rows of one task as Parquet files in a table's layout, visible to nobody until a commit.

    batches ─▶ by partition ─▶ sorted, encoded ─▶ put under a fresh name ─▶ what to list

Law of this file: a file goes up under a name that nobody else has, so a task that runs twice, or
dies, leaves garbage for clean-up and nothing else. What is held is bounded, however many partitions
there are. Runs on executors.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from ingester.spark.errors import WriteRefused
from ingester.spark.sink.columns import table_rows
from persist.manifest import Add
from persist.parquet.encode import EncodedFile, encode_ordered, encode_sorted
from persist.parquet.pages import ZSTD, Compression
from persist.parquet.sort import sort_rows
from persist.parquet.sparse_rows import SparseRows
from persist.partitioning import (
    PartitionValues,
    PartitionValueTooLong,
    folder_of,
    split_batch,
    with_columns,
)
from persist.store import PutInfo
from persist.table import TableDefinition

TARGET_FILE_BYTES = 128 << 20
HELD_BYTES = 256 << 20
"""Rows that a task has in memory before it writes the largest partition's."""


class FileStore(Protocol):
    """A place that takes files: a store, or several at once."""

    def put(self, path: str, data: pa.Buffer) -> PutInfo:
        """Put a file there, and return its size and its time by the store's clock."""
        ...


@dataclass(slots=True)
class FileSink:
    """Files for one table. One thread.

    Attributes:
        root: The folder in the store of the table's version; empty where the store knows it.
        kind: The kind of the files in the manifest.
        writer: The writer of the files in the manifest.
        target_bytes: A file is cut where its rows would have more in memory.
        compression: The codec of the files, where their number is given.
    """

    store: FileStore
    root: str
    definition: TableDefinition
    kind: str
    writer: str
    target_bytes: int = TARGET_FILE_BYTES
    compression: Compression = ZSTD
    adds: list[Add] = field(default_factory=list)
    """The files that were put into the store so far, for a commit to list."""
    _held: defaultdict[PartitionValues, list[pa.RecordBatch]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _sizes: defaultdict[PartitionValues, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def held_bytes(self) -> int:
        """The bytes of rows that are in no file yet."""
        return sum(self._sizes.values())

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[Add]:
        """Write all rows of a task.

        Returns:
            The files that a commit has to list.

        Raises:
            WriteRefused: A value that the table does not take.
            StoreError: The store does not take a file; another attempt of the task may go on.
        """
        for batch in batches:
            self._take(table_rows(batch, self.definition.schema))
            while self.held_bytes > HELD_BYTES:
                self._flush(max(self._sizes, key=self._sizes.__getitem__))
        for values in list(self._held):
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
                if len(split) > 1:
                    # Parts are views of one batch: one that is held would hold all of it.
                    part = part.take(pa.array(np.arange(part.num_rows)))
                self._held[values].append(part)
                self._sizes[values] += part.nbytes
                if self._sizes[values] >= self.target_bytes:
                    self._flush(values)

    def _flush(self, values: PartitionValues) -> None:
        rows = SparseRows.of(self._held.pop(values), self.definition.schema)
        del self._sizes[values]
        self.put(rows, values)

    def put(self, rows: SparseRows, values: PartitionValues, files: int | None = None) -> None:
        """Rows of one partition, in the table's columns.

        Args:
            files: The number of files; as many as the target asks for by default.

        Raises:
            StoreError: The store does not take one of them.
        """
        folder = folder_of(self.definition.spec, values)
        facts = {
            "ingester_id": self.writer,
            "spec_id": str(self.definition.spec_id),
            "partition": folder,
            "schema_id": str(self.definition.schema_id),
        }
        for file in self._encoded(rows, facts, files):
            name = f"{uuid.uuid4().hex}.parquet"
            path = "/".join(part for part in ("data", folder, name) if part)
            whole = f"{self.root}/{path}" if self.root else path
            at = self.store.put(whole, file.data).at.isoformat()
            self.adds.append(self._add(file, path, values, at))

    def _encoded(
        self, rows: SparseRows, facts: dict[str, str], files: int | None
    ) -> Iterator[EncodedFile]:
        if files is None:
            target = self.target_bytes
            return encode_sorted(rows, self.definition, metadata=facts, target_bytes=target)
        ordered = sort_rows(rows, self.definition)
        return encode_ordered(
            rows, ordered, metadata=facts, files=files, compression=self.compression
        )

    def _add(self, file: EncodedFile, path: str, values: PartitionValues, at: str) -> Add:
        return Add(
            path=path,
            kind=self.kind,  # type: ignore[arg-type]
            rows=file.rows,
            bytes=file.data.size,
            spec_id=self.definition.spec_id,
            values=values,
            stats=file.stats,
            writer=self.writer,
            epoch=0,
            first_seq=0,
            last_seq=0,
            schema_id=self.definition.schema_id,
            at=at,
            footer_crc32c=file.footer_crc32c,
        )
