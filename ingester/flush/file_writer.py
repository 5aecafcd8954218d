"""A frozen buffer's rows to files in the object store.

    order   its rows, and a keyed table's older ones, sorted ─▶ put   encoded, into the store

Law of this file: blocks, in a worker thread; the frozen buffer does not change under it. A file
goes up under a fresh name for every attempt, so an upload that arrives late can only be garbage.
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
"""More chunks than the first are made into about as many as the second, none smaller than this."""
TRIM_BYTES = 128 << 20
"""The bytes let go of after which memory goes back to the system."""


class Upload(NamedTuple):
    """The files that one attempt has put into the store."""

    files: PersistedFiles
    replaced: tuple[Add, ...]
    """Files of a keyed table whose rows these have too."""
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
    """Rows in their files' order."""

    flushed: RowsToFlush
    definition: TableDefinition
    state: TableState
    """The version that the rows are ordered for."""
    first_seq: int
    replaced: tuple[Add, ...]
    """The files whose rows these stretches have, too."""
    stretches: Iterable[Stretch]
    """One stretch; in a keyed table as many as its files need. Each is made when the one before has
    gone, so they can be put once."""


class CannotEncode(Exception):
    """Rows that no file could be made of: ours to keep, while everything else goes on.

    Among the causes is a damaged file of a keyed table, which they would replace.
    """


class FileWriter:
    """Sorts rows, encodes them and puts the files into the store. Any thread."""

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
        """Put rows into the store, as the table is at this version.

        Args:
            after_seq: leave out operations up to this sequence.
            left_out: and those with these sequences.

        Raises:
            StoreError, OSError: the store does not take them now.
            CannotEncode: no file could be made of them.
        """
        return self.put(self.order(flushed, state, after_seq, left_out))

    def order(
        self,
        flushed: RowsToFlush,
        state: TableState,
        after_seq: int = -1,
        left_out: Collection[int] = (),
    ) -> Ordered:
        """Put rows into the order of their files; see :meth:`upload`.

        Raises:
            StoreError, OSError: files of a keyed table cannot be read now.
            CannotEncode: these rows have no order.
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
        """Encode rows and put them into the store.

        Raises:
            StoreError, OSError: the store does not take them now.
            CannotEncode: no file could be made of them.
        """
        flushed, definition = ordered.flushed, ordered.definition
        epoch, partition = flushed.epoch, flushed.partition
        seqs = ordered.first_seq, flushed.last_seq
        origin = FileOrigin("persist", self.writer.ingester_id, definition, partition, epoch, *seqs)
        of_table = flushed.folder_of(ordered.state)
        adds: list[Add] = []
        arrivals = []
        for file in _encoded(ordered.stretches, self._facts(origin)):
            adds.append(put_file(self._store, of_table, file, origin))
            if file.arrivals is not None and not definition.keyed:
                arrivals.append(file.arrivals)
        files = PersistedFiles(tuple(adds), tuple(arrivals), ordered.state.table_version)
        applied = Applied(self.writer.ingester_id, epoch, *partition, flushed.last_seq)
        return Upload(files, ordered.replaced, applied, ordered.state)

    def _facts(self, origin: FileOrigin) -> dict[str, str]:
        """The metadata in a file's footer."""
        return origin.facts() | {
            "incarnation": self.writer.incarnation,
            "epoch": str(origin.epoch),
            "first_seq": str(origin.first_seq),
            "last_seq": str(origin.last_seq),
        }


@contextmanager
def _cannot_encode() -> Iterator[None]:
    """Raise CannotEncode for whatever is not the store's fault: it is these rows'."""
    try:
        yield
    except (StoreError, OSError, CannotEncode):
        raise
    except Exception as exc:
        raise CannotEncode(str(exc)) from exc


def _chained(first: list[Stretch], others: Iterator[Stretch]) -> Iterator[Stretch]:
    """Yield the first stretch, then the others; none is held when the next one is made."""
    yield first.pop()
    yield from others


def _encoded(stretches: Iterable[Stretch], metadata: dict[str, str]) -> Iterator[EncodedFile]:
    for rows, order, files in stretches:
        try:
            yield from encode_ordered(rows, order, metadata=metadata, files=files)
        except Exception as exc:
            raise CannotEncode(str(exc)) from exc
        del rows, order


def _enlarge_chunks(rows: BufferedRows) -> None:
    """Join very many chunks to few: picking rows would join them all, and hold both."""
    if rows.chunk_count <= MANY_CHUNKS:
        return
    freed = 0
    for nbytes in rows.enlarge_chunks(max(CHUNK_BYTES, rows.nbytes // FEW_CHUNKS)):
        freed += nbytes
        if freed >= TRIM_BYTES:
            give_back()
            freed = 0


def _aligned(batches: Sequence[pa.RecordBatch], definition: TableDefinition) -> SparseRows:
    """The rows in the table's columns, and which of them delete, if any may."""
    schema = definition.schema
    if any(DELETED in batch.schema.names for batch in batches):
        schema = schema_with_deletes(schema)
    return SparseRows.of(batches, schema)
