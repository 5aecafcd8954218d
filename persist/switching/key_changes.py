"""What changed in a keyed partition between two versions of a manifest: the net changes, by key.

    files that went, files that came ─▶ spans of the key ─▶ rows of both, side by side ─▶ changes

Law of this file: in each version a key stands once. A row that only files have that came, or that
is another there than in those that went, was written; a key that only those have that went was
deleted. Rows that were rewritten as they were are no change: neither those that a flush or a
compaction took along, nor those that somebody wrote again just so, which nobody can tell from them.
A partition may be larger than memory: of both sides no more is held at once than there is room for.
Blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from persist.manifest import Add, PartitionKey, TableState
from persist.parquet.key_overlap import marked
from persist.parquet.key_spans import KeySpans, Span, TooMuch
from persist.parquet.same_values import same_values
from persist.parquet.sort_keys import argsort, key_of
from persist.parquet.sparse_rows import SparseRows, concatenated
from persist.store import ObjectStore
from persist.table import TableDefinition

Rows = npt.NDArray[np.int64]
"""Numbers of rows."""


class FileChanges(NamedTuple):
    """The files of one partition that went between two versions, and those that came."""

    went: tuple[Add, ...]
    came: tuple[Add, ...]


def changed_partitions(before: TableState, after: TableState) -> dict[PartitionKey, FileChanges]:
    """The partitions whose files are others in the later of two versions, and which these are."""
    found = {}
    for key in {*before.partitions, *after.partitions}:
        there, now = before.partitions.get(key, ()), after.partitions.get(key, ())
        went = tuple(add for add in there if add.path not in after.files)
        came = tuple(add for add in now if add.path not in before.files)
        if went or came:
            found[key] = FileChanges(went, came)
    return found


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """The changes of one partition.

    Attributes:
        folder: Of the table version that the files are in.
        room: So many bytes of rows, about, are held at once.
    """

    store: ObjectStore
    folder: str
    files: FileChanges
    definition: TableDefinition
    room: int

    def batches(self) -> Iterator[SparseRows]:
        """Rows that were written, and keys with a mark that were deleted, a part at a time.

        No key is in two of the parts.

        Raises:
            StoreError, FileDamaged: As files are read.
        """
        held: list[SparseRows] = []
        spans = KeySpans(self.store, self.folder, self.definition)
        for span in spans.of([*self.files.went, *self.files.came], self.room):
            for changes in self._of(spans, span):
                held.append(changes)
                if sum(rows.nbytes for rows in held) >= self.room:
                    yield concatenated(held)
                    held.clear()
        if held:
            yield concatenated(held)

    def _of(self, spans: KeySpans, span: Span) -> Iterator[SparseRows]:
        try:
            went = spans.rows(self.files.went, span, self.room)
            came = spans.rows(self.files.came, span, self.room - went.nbytes)
        except TooMuch:
            for half in span.halves():
                yield from self._of(spans, half)
            return
        changes = net_changes(went, came, self.definition)
        if changes.num_rows:
            yield changes


def net_changes(went: SparseRows, came: SparseRows, definition: TableDefinition) -> SparseRows:
    """The rows of ``came`` that are new or other than in ``went``, and the keys that are gone.

    In each of both a key stands once; what is gone has a mark.
    """
    names = definition.primary_key
    old, new = _of_same_key(went, came, names)
    gone, written = np.ones(went.num_rows, np.bool_), np.ones(came.num_rows, np.bool_)
    gone[old] = False
    written[new] = ~_same_rows((went, old), (came, new), definition)
    rows = came.filter(written)
    keys_gone = _of_columns(went.filter(gone), names)
    return concatenated(
        [
            marked(rows, np.zeros(rows.num_rows, np.bool_)),
            marked(keys_gone, np.ones(keys_gone.num_rows, np.bool_)),
        ]
    )


def _of_same_key(went: SparseRows, came: SparseRows, names: Sequence[str]) -> tuple[Rows, Rows]:
    """The numbers of rows of one key, in both."""
    both = concatenated([went, came])
    if not both.num_rows:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    keys = [key_of(name, both.column(name))[1] for name in names]
    codes = [key.codes for key in keys]
    order = argsort(keys)
    equal = np.ones(len(order) - 1, np.bool_)
    for one in codes:
        equal &= one[order[1:]] == one[order[:-1]]
    # The sort is stable: of two rows of a key the one that went stands first.
    return order[:-1][equal], order[1:][equal] - went.num_rows


def _same_rows(
    left: tuple[SparseRows, Rows], right: tuple[SparseRows, Rows], definition: TableDefinition
) -> npt.NDArray[np.bool_]:
    """True where rows of these numbers have the same values in all columns but the key's."""
    same = np.ones(len(left[1]), np.bool_)
    for name in definition.schema.names:
        present = left[0].rows_with(name) + right[0].rows_with(name)
        if present and name not in definition.primary_key:
            same &= same_values(*(_picked(rows.column(name), at) for rows, at in (left, right)))
    return same


def _picked(column: pa.ChunkedArray, numbers: Rows) -> pa.Array:
    chunks = column.take(pa.array(numbers)).chunks
    return pa.concat_arrays(chunks) if chunks else pa.nulls(0, column.type)


def _of_columns(rows: SparseRows, names: Sequence[str]) -> SparseRows:
    """The same rows with nothing in any other column."""
    return SparseRows(rows.schema, tuple(batch.select(list(names)) for batch in rows.batches))
