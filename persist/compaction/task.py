"""The task of a rewrite: the rows of one group as new files.

    files of a group ─▶ rows ─▶ by partition, if they move ─▶ sorted, encoded ─▶ put ─▶ ``Add``

A task that runs twice or dies leaves only garbage, as every file has a new name and no version
lists it before the commit (``tests/persist/compaction/test_kill.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from persist.compaction.plan import FileGroup
from persist.manifest import Action, Add, Remove, RewriteVoid, UploadExpired
from persist.parquet.encode import ZSTD, Compression, encode_ordered
from persist.parquet.put import FileOrigin, put_file
from persist.parquet.reading import DataFile, damage_errors, open_checked, sparse_rows
from persist.parquet.sort import sort_rows
from persist.parquet.sparse_rows import SparseRows, concatenated
from persist.partitioning import PartitionValues, split_batch, with_columns
from persist.store import ObjectStore
from persist.table import TableDefinition


class Rewritten(NamedTuple):
    """A group and its new files.

    Attributes:
        refused: Why it cannot be rewritten; then there are no files.
    """

    group: FileGroup
    adds: Sequence[Add]
    refused: str | None = None


def actions_of(results: Iterable[Rewritten]) -> tuple[Action, ...]:
    """The actions that commit the results."""
    actions: list[Action] = []
    for group, adds, _ in results:
        actions += [Remove(path=add.path, reason="compaction") for add in group.files]
        actions += adds
    return tuple(actions)


def still_valid(
    results: Iterable[Rewritten], refusal: RewriteVoid | UploadExpired
) -> list[Rewritten]:
    """The results that a refused commit of them leaves valid."""
    if isinstance(refusal, UploadExpired):
        late = {add.path for add in refusal.adds}
        return [one for one in results if late.isdisjoint(add.path for add in one.adds)]
    gone = set(refusal.paths)
    return [one for one in results if gone.isdisjoint(add.path for add in one.group.files)]


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Rewrites groups of one table. Pickled for Spark's executors.

    Attributes:
        root: The folder of the table's generation in the store.
        definition: The table, with the order and partition spec of the new files.
        writer: Recorded in the manifest as the writer of the new files.
    """

    root: str
    definition: TableDefinition
    target_bytes: int
    writer: str
    compression: Compression = ZSTD

    def run(self, store: ObjectStore, group: FileGroup) -> list[Add]:
        """The new files of a group. Holds all of its rows.

        Raises:
            PartitionValueTooLong: A partition value is too long for a folder's name.
            persist.parquet.reading.FileDamaged: One of its files is damaged.
            persist.store.StoreError: The store cannot be read or written.
        """
        return self.write(store, group, [self.read(store, add) for add in group.files])

    def read(self, store: ObjectStore, add: Add, most_bytes: int | None = None) -> SparseRows:
        """The rows of a file, as :func:`persist.parquet.reading.sparse_rows`."""
        file = DataFile.of(add, self.root)
        with (
            store.open(file.path) as source,
            damage_errors(file.path),
            open_checked(source, file) as parquet,
        ):
            return sparse_rows(parquet, self.definition.schema, most_bytes)

    def write(self, store: ObjectStore, group: FileGroup, tables: list[SparseRows]) -> list[Add]:
        """The new files of a group whose rows, file by file, are ``tables``; see :meth:`run`."""
        rows = concatenated(tables)
        tables.clear()
        adds: list[Add] = []
        for values, part in self._by_partition(group, rows):
            nbytes = group.bytes * part.num_rows / max(rows.num_rows, 1)
            partition = (self.definition.spec_id, values)
            origin = FileOrigin("rewrite", self.writer, self.definition, partition)
            encoded = encode_ordered(
                part,
                sort_rows(part, self.definition),
                self.definition,
                metadata=origin.facts(),
                files=max(1, round(nbytes / self.target_bytes)),
                compression=self.compression,
            )
            adds += [put_file(store, self.root, file, origin) for file in encoded]
        return adds

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
