"""Writing a frozen buffer's rows to files in the object store.

    order   the rows, and a keyed table's older ones, sorted ─▶ put   encoded and uploaded

Blocking, for worker threads; the frozen buffer does not change meanwhile. Every attempt uses a
new file name, so a late upload is garbage and nothing else (tests/flush).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from ingester.buffer import BufferedRows, PersistedFiles, RowsToFlush
from ingester.memory.heap_trim import give_back
from persist.manifest import Action, Add, Applied, Remove, TableState, WriterIdentity
from persist.parquet.copy_on_write import (
    CopyOnWrite,
    KeyedFiles,
    RewriteLimits,
    Stretch,
    stretch_of,
)
from persist.parquet.encode import EncodedFile, encode_ordered
from persist.parquet.put import FileOrigin, put_file
from persist.parquet.sparse_rows import SparseRows, concatenated
from persist.store import ObjectStore, StoreError
from persist.table import DELETED, TableDefinition, schema_with_deletes

MANY_CHUNKS = 1024
FEW_CHUNKS = 256
CHUNK_BYTES = 4 << 20
"""More chunks than the first are joined to about the second number, none smaller than the third."""
TRIM_BYTES = 128 << 20
"""Freed bytes after which memory is returned to the system."""


class Upload(NamedTuple):
    """The files that one attempt uploaded."""

    files: PersistedFiles
    replaced: tuple[Add, ...]
    """Replaced files of a keyed table, whose rows the new ones contain."""
    applied: Applied
    """The position up to which the partition's log is in files with these."""
    base: TableState
    """The version that the files were made for."""

    def actions(self, reason: str) -> tuple[Action, ...]:
        """The actions that commit the files; ``reason`` says why they replace others."""
        removes = (Remove(path=add.path, reason=reason) for add in self.replaced)
        return (*removes, *self.files.adds, self.applied)


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """Rows in the order of their files."""

    flushed: RowsToFlush
    definition: TableDefinition
    state: TableState
    """The version that the rows are ordered for."""
    first_seq: int
    replaced: tuple[Add, ...]
    """The files whose rows the stretches contain as well."""
    stretches: Iterable[Stretch]
    """One stretch; for a keyed table one per file. Each is made when the previous one is
    dropped, so they can be uploaded once."""


class CannotEncode(Exception):
    """Raised for rows that cannot be written to files: they stay buffered, and everything else
    continues.

    One possible cause is a damaged file of a keyed table, which they would replace.
    """


class FileWriter:
    """Sorts and encodes rows and uploads the files. Thread-safe."""

    def __init__(self, store: ObjectStore, writer: WriterIdentity, limits: RewriteLimits) -> None:
        self.writer = writer
        self.limits = replace(limits, give_back=give_back)
        self._store = store

    def upload(
        self,
        flushed: RowsToFlush,
        state: TableState,
        after_seq: int = -1,
        left_out: Collection[int] = (),
    ) -> Upload:
        """Upload rows for the table as of this version.

        Args:
            after_seq: leave out operations up to this sequence.
            left_out: leave out the operations with these sequences, too.

        Raises:
            StoreError, OSError: the store does not accept them now.
            CannotEncode: the rows cannot be written to files.
        """
        return self.put(self.order(flushed, state, after_seq, left_out))

    def order(
        self,
        flushed: RowsToFlush,
        state: TableState,
        after_seq: int = -1,
        left_out: Collection[int] = (),
    ) -> Ordered:
        """Sort rows into the order of their files; see :meth:`upload`.

        Raises:
            StoreError, OSError: files of a keyed table cannot be read now.
            CannotEncode: the rows cannot be sorted.
        """
        definition = TableDefinition.of_state(state)
        slices = flushed.rows.slices_without(after_seq, left_out)
        first_seq = max(flushed.first_seq, after_seq + 1)
        with _cannot_encode():
            _enlarge_chunks(flushed.rows)
            rows = _aligned(flushed.rows.batches(), definition)
            rows = concatenated([rows.slice(*one) for one in slices or [(0, 0)]])
            if not definition.keyed or not slices:
                stretch = stretch_of(rows, definition, self.limits.target_file_bytes, None)
                return Ordered(flushed, definition, state, first_seq, (), (stretch,))
            there = state.partitions.get(flushed.partition, ())
            files = KeyedFiles(flushed.folder_of(state), there)
            rewriting = CopyOnWrite(self._store, files, rows, definition, self.limits)
            stretches = self._stretches(rewriting, definition)
            first = [next(stretches)]
        return Ordered(
            flushed, definition, state, first_seq, rewriting.replaced, _chained(first, stretches)
        )

    def _stretches(self, rewriting: CopyOnWrite, definition: TableDefinition) -> Iterator[Stretch]:
        target = self.limits.target_file_bytes
        with _cannot_encode():
            for rows in rewriting.stretches():
                yield stretch_of(rows, definition, target, rewriting.bytes_per_row)
                del rows

    def put(self, ordered: Ordered) -> Upload:
        """Encode and upload sorted rows.

        Raises:
            StoreError, OSError: the store does not accept them now.
            CannotEncode: the rows cannot be encoded.
        """
        flushed, definition = ordered.flushed, ordered.definition
        epoch, partition = flushed.epoch, flushed.partition
        seqs = ordered.first_seq, flushed.last_seq
        origin = FileOrigin("persist", self.writer.ingester_id, definition, partition, epoch, *seqs)
        of_table = flushed.folder_of(ordered.state)
        adds: list[Add] = []
        arrivals = []
        for file in _encoded(ordered.stretches, definition, self._facts(origin)):
            adds.append(put_file(self._store, of_table, file, origin))
            if file.arrivals is not None and not definition.keyed:
                arrivals.append(file.arrivals)
        files = PersistedFiles(tuple(adds), tuple(arrivals), ordered.state.table_version)
        applied = Applied(self.writer.ingester_id, epoch, *partition, flushed.last_seq)
        return Upload(files, ordered.replaced, applied, ordered.state)

    def _facts(self, origin: FileOrigin) -> dict[str, str]:
        """Return the metadata for a file's footer."""
        return origin.facts() | {
            "incarnation": self.writer.incarnation,
            "epoch": str(origin.epoch),
            "first_seq": str(origin.first_seq),
            "last_seq": str(origin.last_seq),
        }


@contextmanager
def _cannot_encode() -> Iterator[None]:
    """Turn errors that the store did not cause into CannotEncode."""
    try:
        yield
    except (StoreError, OSError, CannotEncode):
        raise
    except Exception as exc:
        raise CannotEncode(str(exc)) from exc


def _chained(first: list[Stretch], others: Iterator[Stretch]) -> Iterator[Stretch]:
    """Yield the first stretch, then the others, holding none while the next is made."""
    yield first.pop()
    yield from others


def _encoded(
    stretches: Iterable[Stretch], definition: TableDefinition, metadata: dict[str, str]
) -> Iterator[EncodedFile]:
    for rows, order, files in stretches:
        try:
            yield from encode_ordered(rows, order, definition, metadata=metadata, files=files)
        except Exception as exc:
            raise CannotEncode(str(exc)) from exc
        del rows, order


def _enlarge_chunks(rows: BufferedRows) -> None:
    """Join very many chunks to few: picking rows would join them all and hold both."""
    if rows.chunk_count <= MANY_CHUNKS:
        return
    freed = 0
    for nbytes in rows.enlarge_chunks(max(CHUNK_BYTES, rows.nbytes // FEW_CHUNKS)):
        freed += nbytes
        if freed >= TRIM_BYTES:
            give_back()
            freed = 0


def _aligned(batches: Sequence[pa.RecordBatch], definition: TableDefinition) -> SparseRows:
    """Return the rows with the table's columns, and which of them delete, if any may."""
    schema = definition.schema
    if any(DELETED in batch.schema.names for batch in batches):
        schema = schema_with_deletes(schema)
    return SparseRows.of(batches, schema)
