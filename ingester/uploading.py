"""A frozen buffer's rows to files in the object store.

Law of this file: blocks, in a worker thread; the frozen buffer does not change under it. A file
goes up under a fresh name for every attempt, so an upload that arrives late can only be garbage.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from msgspec import structs

from ingester.buffer import BufferHandle, PersistedFiles, TableBuffer
from ingester.query.align import align_table
from persist.keyed import neighbour, overlapping, read_rows
from persist.manifest import Add, TableState, WriterIdentity
from persist.parquet import EncodedFile, encode_ordered, encode_sorted
from persist.partitioning import folder_of
from persist.sorting import sort_rows, without_marks
from persist.stats import column_stats
from persist.store import ObjectStore, StoreError
from persist.table import DELETED, TableDefinition, schema_with_deletes

SMALL_FILES = 4
"""A file of a keyed table is not left smaller than the target divided by this, if there are others
to write it anew with."""


class Upload(NamedTuple):
    """What one attempt has put into the store."""

    files: PersistedFiles
    replaces: tuple[str, ...]
    """Paths of files whose rows it has too: a keyed table's."""
    base: TableState
    """The version that it was made for."""


class CannotEncode(Exception):
    """Rows that no file could be made of: ours to keep, while everything else goes on.

    Among the causes is a damaged file of a keyed table, which they would replace.
    """


class Uploader:
    """Sorts, encodes and puts."""

    def __init__(
        self, store: ObjectStore, writer: WriterIdentity, *, target_file_bytes: int
    ) -> None:
        self._store = store
        self._writer = writer
        self._target_file_bytes = target_file_bytes

    def upload(
        self,
        handle: BufferHandle,
        state: TableState,
        after_seq: int = -1,
        left_out: Collection[int] = (),
    ) -> Upload:
        """Put a buffer's rows into the store, as the table is at this version.

        Args:
            after_seq: leave out operations up to this sequence.
            left_out: and those with these sequences.

        Raises:
            StoreError, OSError: the store does not take them now.
            CannotEncode: no file could be made of them.
        """
        definition = TableDefinition.of_state(state)
        table = handle.partition.table
        folder = folder_of(definition.spec_of(handle.partition.key[0]), handle.partition.key[1])
        slices = handle.rows.slices_without(after_seq, left_out)
        if not slices:
            return Upload(PersistedFiles((), ()), (), state)
        first_seq = max(handle.first_seq, after_seq + 1)
        replaced: tuple[Add, ...] = ()
        bytes_per_row: float | None = None
        try:
            rows = _aligned(handle.rows.batches(), definition)
            rows = pa.concat_tables([rows.slice(*one) for one in slices])
            if definition.keyed:
                rows, replaced, bytes_per_row = self._with_older_rows(
                    handle, rows, state, definition
                )
        except (StoreError, OSError):
            raise
        except Exception as exc:
            raise CannotEncode(str(exc)) from exc
        adds: list[Add] = []
        arrivals = []
        facts = self._facts(handle, definition, folder) | {"first_seq": str(first_seq)}
        for file in self._encoded(rows, definition, facts, bytes_per_row):
            name = f"{uuid.uuid4().hex}.parquet"
            path = "/".join(part for part in ("data", folder, name) if part)
            put = self._store.put(f"{table.namespace}/{table.name}/v1/{path}", file.data)
            if file.arrivals is not None and not definition.keyed:
                arrivals.append(file.arrivals)
            add = self._add(handle, definition, file, path, put.at.isoformat())
            adds.append(structs.replace(add, first_seq=first_seq))
        files = PersistedFiles(tuple(adds), tuple(arrivals))
        return Upload(files, tuple(add.path for add in replaced), state)

    def _facts(
        self, handle: BufferHandle, definition: TableDefinition, folder: str
    ) -> dict[str, str]:
        """What a file says about itself."""
        return {
            "ingester_id": self._writer.ingester_id,
            "incarnation": self._writer.incarnation,
            "epoch": str(handle.epoch),
            "spec_id": str(handle.partition.key[0]),
            "partition": folder,
            "last_seq": str(handle.last_seq),
            "schema_id": str(definition.schema_id),
        }

    def _add(
        self,
        handle: BufferHandle,
        definition: TableDefinition,
        file: EncodedFile,
        path: str,
        at: str,
    ) -> Add:
        spec_id, values = handle.partition.key
        return Add(
            path=path,
            kind="persist",
            rows=file.rows,
            bytes=file.data.size,
            spec_id=spec_id,
            values=values,
            stats=file.stats,
            writer=self._writer.ingester_id,
            epoch=handle.epoch,
            first_seq=handle.first_seq,
            last_seq=handle.last_seq,
            schema_id=definition.schema_id,
            at=at,
            footer_crc32c=file.footer_crc32c,
        )

    def _encoded(
        self,
        rows: pa.Table,
        definition: TableDefinition,
        metadata: dict[str, str],
        bytes_per_row: float | None,
    ) -> Iterator[EncodedFile]:
        target = self._target_file_bytes
        try:
            if bytes_per_row is None:
                yield from encode_sorted(rows, definition, metadata=metadata, target_bytes=target)
                return
            # As large as files of these rows are known to be: none far from the target.
            ordered = sort_rows(rows, definition)
            files = max(1, round(ordered.rows * bytes_per_row / target))
            plain, _ = without_marks(rows, definition)
            yield from encode_ordered(plain, ordered, metadata=metadata, files=files)
        except Exception as exc:
            raise CannotEncode(str(exc)) from exc

    def _with_older_rows(
        self,
        handle: BufferHandle,
        rows: pa.Table,
        state: TableState,
        definition: TableDefinition,
    ) -> tuple[pa.Table, tuple[Add, ...], float | None]:
        """The rows behind those of the files that may have the same keys, these files, and how
        large a row of such files is.

        Where that would be less than a quarter of the target, behind those of files next to them.
        """
        table = handle.partition.table
        there = state.partitions.get(handle.partition.key, ())
        keys = rows.select(list(definition.primary_key))
        files = overlapping(there, keys)
        merged = self._behind(table, files, rows)
        if not there:
            return merged, files, None
        bytes_per_row = sum(add.bytes for add in there) / max(1, sum(add.rows for add in there))
        touched, first = column_stats(keys), definition.primary_key[0]
        enough = self._target_file_bytes / SMALL_FILES / bytes_per_row
        # Files have each key once: of theirs at most as many are gone as rows have come. So most
        # flushes are not sorted twice.
        while (
            merged.num_rows - 2 * rows.num_rows < enough
            and (more := neighbour(there, files, touched, first)) is not None
            and 0 < sort_rows(merged, definition).rows < enough
        ):
            files = (*files, more)
            merged = self._behind(table, (more,), merged)
        return merged, files, bytes_per_row

    def _behind(self, table: TableBuffer, files: Sequence[Add], rows: pa.Table) -> pa.Table:
        """The rows behind all of these files."""
        older = read_rows(self._store, f"{table.namespace}/{table.name}/v1", files)
        batches = [batch for each in older for batch in each.to_batches()]
        return pa.concat_tables([align_table(batches, rows.schema), rows])


def _aligned(batches: Sequence[pa.RecordBatch], definition: TableDefinition) -> pa.Table:
    """The rows in the table's columns, and which of them delete, if any may."""
    schema = definition.schema
    if any(DELETED in batch.schema.names for batch in batches):
        schema = schema_with_deletes(schema)
    return align_table(batches, schema)
