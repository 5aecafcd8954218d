"""The changes of one table version's rows, applied to the files of another, of a keyed table.

    ``key_changes``: what changed there ─▶ ``copy_on_write`` on the files here ─▶ new files

Law of this file: what comes out is the removals and additions of one commit; nothing is listed
before that. Each change replaces what is there of its key, once. A file that changes of a later
part make anew was listed nowhere, and is deleted at once. What is held of rows is counted, before
it is read. Blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from persist.manifest import Action, Add, Manifest, PartitionKey, Remove, TableState
from persist.parquet.copy_on_write import (
    CopyOnWrite,
    KeyedFiles,
    RewriteLimits,
    Stretch,
    stretch_of,
)
from persist.parquet.encode import encode_ordered
from persist.parquet.key_spans import ENCODED_TO
from persist.parquet.put import FileOrigin, put_file
from persist.parquet.sparse_rows import SparseRows
from persist.switching.key_changes import FileChanges, KeyChanges
from persist.table import TableDefinition

WRITER = "_table_versions"
"""The writer of files that hold rows of several others."""
LIMITS = RewriteLimits(target_file_bytes=128 << 20, group_bytes=128 << 20)
"""Sizes of the files that are written, and of rows that are held at once, of either kind."""


def apply_changes(
    source: Manifest,
    changed: Mapping[PartitionKey, FileChanges],
    target: Manifest,
    state: TableState,
    limits: RewriteLimits = LIMITS,
) -> dict[PartitionKey, tuple[Action, ...]]:
    """Apply changes of partitions of ``source`` to a state of ``target``; files are written.

    Returns:
        The removals and additions that do it, of each partition.

    Raises:
        StoreError, FileDamaged: As files are read and written; nothing was committed.
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
    """The bytes of rows that switches hold in this process now, of either kind. Any thread."""
    return LIMITS.older.nbytes


def _most_held(files: FileChanges, limits: RewriteLimits) -> int:
    """The bytes of changes that are held at most: reckoned before any is read."""
    encoded = sum(add.bytes for add in (*files.went, *files.came))
    return min(limits.group_bytes, ENCODED_TO * encoded)


@dataclass(slots=True)
class _Partition:
    """A partition of the version that is switched to, and what becomes of its files."""

    target: Manifest
    key: PartitionKey
    definition: TableDefinition
    limits: RewriteLimits
    files: list[Add]
    own: set[str] = field(default_factory=set)
    """Paths of the files that were written here."""

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
        """The removals and additions that make the partition's files of a state into these."""
        kept = {add.path for add in self.files}
        for add in state.partitions.get(self.key, ()):
            if add.path not in kept:
                yield Remove(path=add.path, reason="switch")
        yield from (add for add in self.files if add.path not in state.files)

    def _put(self, stretch: Stretch) -> Iterator[Add]:
        origin = FileOrigin("rewrite", WRITER, self.definition, self.key)
        rows, order, files = stretch
        for file in encode_ordered(rows, order, metadata=origin.facts(), files=files):
            yield put_file(self.target.store, self.target.root, file, origin)
