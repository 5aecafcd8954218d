"""Runs the tasks of a rewrite in this process, one after another, within a memory limit.

    files of a group ─▶ read while they fit ─▶ one piece: rewritten ─▶ the next files …

Rows are counted as they are decoded. A group that does not fit is cut into pieces of neighbouring
files, and a piece of a single file is left as it is. If no two files fit together, or one alone
does not fit, these files are refused with the reason (``tests/persist/compaction``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from persist.compaction.plan import FileGroup
from persist.compaction.task import RewriteTask, Rewritten
from persist.manifest import Add
from persist.parquet.copy_on_write import OlderRows
from persist.parquet.reading import RowsTooLarge
from persist.parquet.sparse_rows import SparseRows
from persist.partitioning import PartitionValueTooLong, folder_of
from persist.store import ObjectStore

WORKING_BYTES, WORKING_TIMES = 96 << 20, 2
"""The memory of a group: blocks that are sorted and encoded, plus a multiple of its rows' (these,
their order and sort keys, and the encoded file)."""
SAMPLE_SHARE = 0.8
"""The share of the room that is planned for, because other files may differ from a sample."""
LEAST_SHARE = 8
"""Rows may take at least the memory divided by this, however small it is."""


@dataclass(frozen=True, slots=True)
class InProcess:
    """A :data:`persist.compaction.run.Runner`. Blocks.

    Attributes:
        memory_bytes: The memory of one group, beside that of the process.
        pause: Called before each file is read; its exception ends the run.
        held: Counts the memory of the group.
    """

    store: ObjectStore
    memory_bytes: int
    pause: Callable[[], None] = lambda: None
    held: OlderRows = field(default_factory=OlderRows)

    def __call__(self, task: RewriteTask, groups: Sequence[FileGroup]) -> list[Rewritten]:
        """Rewrite the groups, or pieces of them."""
        found: list[Rewritten] = []
        for group in groups:
            found += self._group(task, group)
            pa.default_memory_pool().release_unused()
        return found

    def fitting_target(self, task: RewriteTask, group: FileGroup) -> int:
        """The largest size of new files whose rows fit into memory, by one file of the group."""
        sample = max(group.files, key=lambda add: add.bytes)
        rows = self._read(task, sample, self._room(group))
        if rows is None:
            return 0
        return int(self._room(group) * SAMPLE_SHARE * sample.bytes / max(1, rows.nbytes))

    def _room(self, group: FileGroup) -> int:
        """The memory for rows of the group."""
        # Rows that move are held a second time, by partition.
        times = WORKING_TIMES + (group.partition is None)
        return max((self.memory_bytes - WORKING_BYTES) // times, self.memory_bytes // LEAST_SHARE)

    def _group(self, task: RewriteTask, group: FileGroup) -> Iterator[Rewritten]:
        moves = group.partition is None  # then a single file is rewritten, too
        left: list[Add] = []
        refused, wrote = False, False
        for piece, tables in self._pieces(task, group):
            refused = refused or not tables
            if tables and (moves or len(piece.files) > 1 or len(group.files) == 1):
                wrote = True
                try:
                    yield Rewritten(piece, task.write(self.store, piece, tables))
                except PartitionValueTooLong as exc:
                    yield Rewritten(piece, [], str(exc))
            else:
                left += piece.files
            tables.clear()
        if refused or not wrote:
            yield Rewritten(FileGroup(group.partition, tuple(left)), [], self._reason(task, left))

    def _pieces(
        self, task: RewriteTask, group: FileGroup
    ) -> Iterator[tuple[FileGroup, list[SparseRows]]]:
        """Neighbouring files that fit together, with their rows; without rows if one does not."""
        room = self._room(group)
        files: list[Add] = []
        tables: list[SparseRows] = []
        with self.held.counted() as hold:
            hold(self.memory_bytes)
            for add in group.files:
                self.pause()
                used = sum(table.nbytes for table in tables)
                rows = self._read(task, add, room - used)
                if rows is None and files:
                    yield FileGroup(group.partition, tuple(files)), tables
                    files, tables = [], []
                    rows = self._read(task, add, room)
                if rows is None:
                    yield FileGroup(group.partition, (add,)), []
                else:
                    files.append(add)
                    tables.append(rows)
                del rows
            if files:
                yield FileGroup(group.partition, tuple(files)), tables

    def _read(self, task: RewriteTask, add: Add, most_bytes: int) -> SparseRows | None:
        try:
            return task.read(self.store, add, most_bytes)
        except RowsTooLarge:
            return None

    def _reason(self, task: RewriteTask, files: Sequence[Add]) -> str:
        spec_id, values = files[0].partition
        folder = folder_of(task.definition.spec_of(spec_id), values)
        which = "a file" if len(files) == 1 else f"{len(files)} files"
        return (
            f"{which} of {f'partition {folder}' if folder else 'the table'} would exceed"
            f" {self.memory_bytes / 1e6:.0f} MB of memory when rewritten: give more memory, or"
            " choose a smaller size for the new files"
        )
