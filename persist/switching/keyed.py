"""The net changes of a keyed partition between two versions, applied to another table version's
files.

    files removed, files added ─▶ spans of the key ─▶ rows of both, side by side ─▶ changes
    changes ─▶ ``copy_on_write`` on the target's files ─▶ new files

In each version a key occurs once. A row only in added files, or with other values than in removed
ones, was written; a key only in removed files was deleted. Rows rewritten unchanged are no change:
neither those that a flush or compaction carried along, nor those written again with the same
values, which cannot be told apart (tests/persist/switching/test_keyed.py).

The result is the removals and additions of one commit; nothing is listed before. A file that a
later part of the changes replaces was never listed, and is deleted at once. A partition may be
larger than memory: the rows held are limited, and counted before they are read. Blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.manifest import Action, Add, Manifest, PartitionKey, Remove, TableState
from persist.parquet.copy_on_write import (
    CopyOnWrite,
    KeyedFiles,
    RewriteLimits,
    Stretch,
    stretch_of,
)
from persist.parquet.encode import encode_ordered
from persist.parquet.key_overlap import marked
from persist.parquet.key_spans import ENCODED_TO, KeySpans, Span, TooMuch
from persist.parquet.put import FileOrigin, put_file
from persist.parquet.sort_keys import argsort, key_of
from persist.parquet.sparse_rows import SparseRows, concatenated
from persist.store import ObjectStore
from persist.table import TableDefinition

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]

_BITS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def same_values(left: pa.Array, right: pa.Array) -> Mask:
    """True where both arrays, of one type and length, have the same value.

    Two nulls are the same, and two NaN of the same bits; 0.0 and -0.0 differ. Nested values are the
    same if everything in them is.
    """
    both = _valid(left) & _valid(right)
    same: Mask = both | (~_valid(left) & ~_valid(right))
    kind = left.type
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            same &= ~both | same_values(left.field(number), right.field(number))
    elif pa.types.is_nested(kind):
        same &= ~both | _same_lists(left, right, both)
    elif not pa.types.is_null(kind):
        if kind in _BITS:
            left, right = left.view(_BITS[kind]), right.view(_BITS[kind])
        equal = pc.fill_null(pc.equal(left, right), False)
        same &= ~both | equal.to_numpy(zero_copy_only=False)
    return same


def _same_lists(left: pa.Array, right: pa.Array, both: Mask) -> Mask:
    """True where both, being valid, have the same items in the same order; also maps."""
    counts, other = _counts(left), _counts(right)
    same: Mask = both & (counts == other)
    rows = pa.array(np.flatnonzero(same))
    items = same_values(_items(left.take(rows)), _items(right.take(rows)))
    wrong = np.append(0, np.cumsum(~items))
    ends = np.cumsum(counts[same])
    same[same] = wrong[ends] == wrong[ends - counts[same]]
    return same


def _counts(lists: pa.Array) -> Counts:
    if pa.types.is_map(lists.type):
        ends: Counts = np.diff(lists.offsets.to_numpy()).astype(np.int64)
        return ends * _valid(lists)
    counts: Counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return counts.astype(np.int64)


def _items(lists: pa.Array) -> pa.Array:
    """The items of lists without nulls, one list after the other."""
    if pa.types.is_map(lists.type):
        # As structs of key and value; after `take` the offsets begin at 0.
        return pa.StructArray.from_arrays([lists.keys, lists.items], names=["key", "value"])
    return lists.flatten()


def _valid(values: pa.Array) -> Mask:
    found: Mask = pc.is_valid(values).to_numpy(zero_copy_only=False)
    return found


Rows = npt.NDArray[np.int64]
"""Numbers of rows."""


class FileChanges(NamedTuple):
    """The files of one partition removed between two versions, and those added."""

    went: tuple[Add, ...]
    came: tuple[Add, ...]


def changed_partitions(before: TableState, after: TableState) -> dict[PartitionKey, FileChanges]:
    """The partitions whose files differ between two versions, and the differing files."""
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
        room: About the bytes of rows held at once.
    """

    store: ObjectStore
    folder: str
    files: FileChanges
    definition: TableDefinition
    room: int

    def batches(self) -> Iterator[SparseRows]:
        """Written rows, and deleted keys with a mark, a part at a time; no key is in two parts.

        Raises:
            StoreError, FileDamaged: from reading files.
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
    """The rows of ``came`` that are new or differ from ``went``, and the keys that are gone,
    marked.

    In each of both a key occurs once.
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
    # The sort is stable: of two rows of a key the removed one is first.
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
    """The same rows with only these columns."""
    return SparseRows(rows.schema, tuple(batch.select(list(names)) for batch in rows.batches))


WRITER = "_table_versions"
"""The writer of files that hold rows of several others."""
LIMITS = RewriteLimits(target_file_bytes=128 << 20, group_bytes=128 << 20)
"""Sizes of written files, and of rows held at once, of either kind."""


def apply_changes(
    source: Manifest,
    changed: Mapping[PartitionKey, FileChanges],
    target: Manifest,
    state: TableState,
    limits: RewriteLimits = LIMITS,
) -> dict[PartitionKey, tuple[Action, ...]]:
    """Apply changes of partitions of ``source`` to a state of ``target``; files are written.

    Returns:
        The removals and additions for each partition.

    Raises:
        StoreError, FileDamaged: from reading and writing files; nothing was committed.
    """
    definition = TableDefinition.of_state(state)
    done = {}
    for key, files in changed.items():
        there = _Partition(target, key, definition, limits, list(state.partitions.get(key, ())))
        with limits.older.counted() as hold:
            hold(_most_held(files, limits))
            for changes in there.changes_of(source, files).batches():
                there.apply(changes)
        done[key] = tuple(there.actions(state))
    return done


def held_bytes() -> int:
    """The bytes of rows, of either kind, that switches hold in this process. Any thread."""
    return LIMITS.older.nbytes


def _most_held(files: FileChanges, limits: RewriteLimits) -> int:
    """The most bytes of changes that are held, estimated before any is read."""
    encoded = sum(add.bytes for add in (*files.went, *files.came))
    return min(limits.group_bytes, ENCODED_TO * encoded)


@dataclass(slots=True)
class _Partition:
    """A partition of the target version, and the changes to its files."""

    target: Manifest
    key: PartitionKey
    definition: TableDefinition
    limits: RewriteLimits
    files: list[Add]
    own: set[str] = field(default_factory=set)
    """Paths of the files written here."""

    def changes_of(self, source: Manifest, files: FileChanges) -> KeyChanges:
        return KeyChanges(
            source.store, source.root, files, self.definition, self.limits.group_bytes
        )

    def apply(self, changes: SparseRows) -> None:
        there = KeyedFiles(self.target.root, tuple(self.files))
        rewriting = CopyOnWrite(self.target.store, there, changes, self.definition, self.limits)
        made: list[Add] = []
        for rows in rewriting.stretches():
            target_bytes = self.limits.target_file_bytes
            made += self._put(
                stretch_of(rows, self.definition, target_bytes, rewriting.bytes_per_row)
            )
            del rows
        gone = {add.path for add in rewriting.replaced}
        self.files = [add for add in self.files if add.path not in gone] + made
        for path in gone & self.own:
            self.target.store.delete(self.target.object_path(path))
        self.own |= {add.path for add in made}

    def actions(self, state: TableState) -> Iterator[Action]:
        """The removals and additions that turn the partition's files of a state into these."""
        kept = {add.path for add in self.files}
        for add in state.partitions.get(self.key, ()):
            if add.path not in kept:
                yield Remove(path=add.path, reason="switch")
        yield from (add for add in self.files if add.path not in state.files)

    def _put(self, stretch: Stretch) -> Iterator[Add]:
        origin = FileOrigin("rewrite", WRITER, self.definition, self.key)
        rows, order, files = stretch
        for file in encode_ordered(
            rows, order, self.definition, metadata=origin.facts(), files=files
        ):
            yield put_file(self.target.store, self.target.root, file, origin)
