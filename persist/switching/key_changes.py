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

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.manifest import Add, PartitionKey, TableState
from persist.parquet.decode import columns_with_values
from persist.parquet.footer import DataFile, open_checked, told
from persist.parquet.key_overlap import comparable, marked
from persist.parquet.row_group_stats import group_bounds
from persist.parquet.same_values import same_values
from persist.parquet.sort_keys import argsort, key_of
from persist.parquet.sparse_rows import SparseRows, concatenated
from persist.store import ObjectStore
from persist.table import TableDefinition

ENCODED_TO = 4
"""The factor by which a file's rows are taken to be larger in memory, before it is read."""
MOST_PARTS = 1 << 12
"""A span of the key is not cut into more parts by hashes: its rows are as many as they are."""

_PRIME, _MIX = np.uint64(0x100000001B3), np.uint64(0x9E3779B97F4A7C15)

Hashes = npt.NDArray[np.uint64]
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


class _Span(NamedTuple):
    """Rows from a value of the key's first column up to another, of one part by their hashes."""

    low: Any
    high: Any
    parts: int = 1
    part: int = 0

    def halves(self) -> tuple[_Span, _Span]:
        parts = 2 * self.parts
        other = self.part + self.parts
        return self._replace(parts=parts), self._replace(parts=parts, part=other)


class _TooMuch(Exception):
    """The rows of a span are more than there is room for."""


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
        for span in self._spans():
            for changes in self._of(span):
                held.append(changes)
                if sum(rows.nbytes for rows in held) >= self.room:
                    yield concatenated(held)
                    held.clear()
        if held:
            yield concatenated(held)

    def _of(self, span: _Span) -> Iterator[SparseRows]:
        try:
            went = self._rows(self.files.went, span, self.room)
            came = self._rows(self.files.came, span, self.room - went.nbytes)
        except _TooMuch:
            for half in span.halves():
                yield from self._of(half)
            return
        changes = net_changes(went, came, self.definition)
        if changes.num_rows:
            yield changes

    def _spans(self) -> list[_Span]:
        """Spans of the key, from one lower bound of files to another, each of about the room."""
        first, files = self.definition.primary_key[0], [*self.files.went, *self.files.came]
        bounds = [add.stats.get(first) for add in files]
        known = comparable(pa.chunked_array([], self._kind)) is not None
        lows = {one.min for one in bounds if known and one is not None and one.min is not None}
        cuts = sorted(lows)[1:]
        rows = np.zeros(len(cuts) + 1)
        for add, one in zip(files, bounds, strict=True):
            low = 0 if one is None or one.min is None or not known else _place(cuts, one.min)
            high = len(cuts) if one is None or one.max is None else _place(cuts, one.max)
            rows[low : high + 1] += add.rows / (high + 1 - low)
        size = sum(add.bytes for add in files) / max(1, sum(add.rows for add in files))
        most = self.room / max(1.0, ENCODED_TO * size)
        chosen, count = [], 0.0
        for cut, before in zip(cuts, rows.tolist(), strict=False):
            count += before
            if count >= most:
                chosen.append(cut)
                count = 0.0
        return [_Span(low, high) for low, high in pairwise([None, *chosen, None])]

    @property
    def _kind(self) -> pa.DataType:
        return self.definition.schema.field(self.definition.primary_key[0]).type

    def _rows(self, files: Sequence[Add], span: _Span, room: int) -> SparseRows:
        found: list[SparseRows] = [SparseRows(self.definition.schema, ())]
        nbytes = 0
        for add in files:
            if not _may_overlap(add.stats.get(self.definition.primary_key[0]), span):
                continue
            for rows in self._groups(add, span):
                nbytes += rows.nbytes
                if nbytes > room and span.parts < MOST_PARTS:
                    raise _TooMuch
                found.append(rows)
        return concatenated(found)

    def _groups(self, add: Add, span: _Span) -> Iterator[SparseRows]:
        """The span's rows of each row group that may have any."""
        file, schema = DataFile.of(add, self.folder), self.definition.schema
        first = self.definition.primary_key[0]
        with self.store.open(file.path) as source, told(file.path):
            parquet = open_checked(source, file)
            footer = parquet.metadata
            for index in range(footer.num_row_groups):
                if _may_overlap(group_bounds(footer, index, schema).get(first), span):
                    columns = columns_with_values(footer, index, schema.names)
                    table = parquet.read_row_group(index, columns=columns, use_threads=False)
                    rows = SparseRows.of(table.to_batches(), schema)
                    yield rows.filter(self._within(rows, span))

    def _within(self, rows: SparseRows, span: _Span) -> npt.NDArray[np.bool_]:
        keys = rows.table(list(self.definition.primary_key))
        mask = np.ones(rows.num_rows, np.bool_)
        if span.low is not None or span.high is not None:
            values = comparable(keys.column(0))
            assert values is not None  # else there are no bounds to cut at
            for bound, test in ((span.low, pc.greater_equal), (span.high, pc.less)):
                if bound is not None:
                    mask &= test(values, pa.scalar(bound, values.type)).to_numpy()
        if span.parts > 1:
            mask &= (_hashes(keys) & np.uint64(span.parts - 1)) == np.uint64(span.part)
        return mask


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


def _place(cuts: Sequence[Any], bound: Any) -> int:
    """The number of the span, between these cuts, that a value is in."""
    return bisect_right(cuts, bound)


def _may_overlap(bounds: Any, span: _Span) -> bool:
    if bounds is None:
        return True
    below = span.low is not None and bounds.max is not None and bounds.max < span.low
    above = span.high is not None and bounds.min is not None and bounds.min >= span.high
    return not (below or above)


def _hashes(keys: pa.Table) -> Hashes:
    """A number of each key, the same wherever it stands."""
    found = np.zeros(keys.num_rows, np.uint64)
    for column in keys.columns:
        found = (found ^ _numbers(column)) * _PRIME
        found ^= found >> np.uint64(29)
    found *= _MIX
    found ^= found >> np.uint64(32)
    return found


def _numbers(column: pa.ChunkedArray) -> Hashes:
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    if pa.types.is_integer(column.type):
        numbers: Hashes = column.to_numpy().astype(np.uint64)
        return numbers
    encoded = column.combine_chunks().dictionary_encode()
    values = encoded.dictionary.to_pylist()
    codes = np.array([crc32(repr(value).encode()) for value in values], np.uint64)
    hashes: Hashes = codes[encoded.indices.to_numpy(zero_copy_only=False)]
    return hashes
