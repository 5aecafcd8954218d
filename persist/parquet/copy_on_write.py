"""Rewrites the files of a keyed partition that a flush or a switch touches.

    overlapping files ─▶ read, as many as fit ─▶ with their share of the new rows ─▶ new files …

A partition may be larger than memory: its files are read group by group, and the rows held are
counted. Each new row goes with one group and replaces all older rows of its key
(tests/flush/test_copy_on_write.py). Blocks; worker threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from persist.manifest import Add
from persist.parquet.encode import average_bytes, files_of
from persist.parquet.key_overlap import NewRows, neighbour, overlapping, read_rows, rising
from persist.parquet.sort import Sorted, sort_rows, without_marks
from persist.parquet.sparse_rows import SparseRows, concatenated
from persist.parquet.stats import column_stats
from persist.store import ObjectStore
from persist.table import TableDefinition

SMALL_FILES = 4
"""A file of a keyed table smaller than the target divided by this is rewritten with a neighbour."""
GROUP_BYTES = 512 << 20
"""The most older rows, in memory, that are rewritten at once; a larger file is rewritten by
itself.
"""
GROUP_SHARE = 16
"""Rewritten rows take at most the memory limit divided by this."""
ENCODED_TO = 4
"""The assumed ratio of a file's rows in memory to its size, before it is read."""


class OlderRows:
    """The bytes held of files that are being rewritten. Any thread."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._lock = threading.Lock()

    @contextmanager
    def counted(self) -> Iterator[Callable[[int], None]]:
        """A function that counts further held bytes; at the end they are subtracted."""
        mine = 0

        def hold(nbytes: int) -> None:
            nonlocal mine
            with self._lock:
                self.nbytes += nbytes
                mine += nbytes

        try:
            yield hold
        finally:
            hold(-mine)


@dataclass(frozen=True, slots=True)
class RewriteLimits:
    """Limits of a rewrite: file sizes, and how much of older rows is held at once."""

    target_file_bytes: int
    group_bytes: int = GROUP_BYTES
    """About the most older rows, in memory, that are rewritten at once."""
    older: OlderRows = field(default_factory=OlderRows)
    """The older rows held now."""
    give_back: Callable[[], object] = lambda: None
    """Returns free memory to the system after a group."""

    @classmethod
    def within(cls, memory_limit: int, target_file_bytes: int) -> RewriteLimits:
        """The limits for a daemon with this memory limit."""
        return cls(target_file_bytes, min(GROUP_BYTES, memory_limit // GROUP_SHARE))


class KeyedFiles(NamedTuple):
    """The files of one partition, and the folder of their table version."""

    folder: str
    files: Sequence[Add]


class Stretch(NamedTuple):
    """Rows in file order."""

    rows: SparseRows
    order: Sorted
    files: int
    """The number of files to make of the rows."""


def stretch_of(
    rows: SparseRows, definition: TableDefinition, target_bytes: int, bytes_per_row: float | None
) -> Stretch:
    """Put rows into file order.

    Args:
        rows: in order of arrival, with marks if some of them delete.
        bytes_per_row: of such rows in files, if known.
    """
    order = sort_rows(rows, definition)
    plain, _ = without_marks(rows, definition)
    files = files_of(plain, target_bytes)
    if bytes_per_row is not None:
        # By the known size of such rows in files, so that no file is far from the target.
        files = max(1, round(order.rows * bytes_per_row / target_bytes))
    return Stretch(plain, order, files)


class CopyOnWrite:
    """The rewrite of one partition. Its stretches can be iterated once."""

    def __init__(
        self,
        store: ObjectStore,
        partition: KeyedFiles,
        rows: SparseRows,
        definition: TableDefinition,
        limits: RewriteLimits,
    ) -> None:
        """Take the new ``rows``, in order of arrival, with marks if some of them delete."""
        self._store = store
        self._folder = partition.folder
        self._rows = rows
        self._definition = definition
        self._there = partition.files
        self._give_back = limits.give_back
        self._target_file_bytes = limits.target_file_bytes
        self._group_bytes = limits.group_bytes
        self._older = limits.older
        self._keys = rows.table(list(self._definition.primary_key))
        self.replaced = overlapping(self._there, self._keys)
        """The files that are replaced; the first stretch may add some."""

    @property
    def bytes_per_row(self) -> float | None:
        """The average bytes of a row in the partition's files; None without files."""
        if not self._there:
            return None
        return sum(add.bytes for add in self._there) / max(1, sum(add.rows for add in self._there))

    def stretches(self) -> Iterator[SparseRows]:
        """Rows of future files, in order of arrival with marks; no key is in two stretches.

        Raises:
            StoreError, FileDamaged: from reading files.
        """
        first_of_key = self._definition.primary_key[0]
        left = rising(self.replaced, first_of_key)
        new = NewRows(self._rows, first_of_key)
        first = True
        row_bytes = max(average_bytes(self._rows), ENCODED_TO * (self.bytes_per_row or 0.0))
        while left or first:
            group: list[Add] = []
            older: list[SparseRows] = []
            held = 0
            with self._older.counted() as hold:
                while count := self._fitting(left, held, row_bytes):
                    some, left = left[:count], left[count:]
                    expected = int(sum(add.rows for add in some) * row_bytes)
                    hold(expected)
                    older += read_rows(self._store, self._folder, some)
                    group += some
                    was, held = held, sum(table.nbytes for table in older)
                    hold(held - was - expected)
                    row_bytes = held / max(1, sum(table.num_rows for table in older))
                rows = self._behind(older, new.share(group, left[0] if left else None))
                older.clear()
                if first and not left:
                    rows = self._with_neighbours(rows, self._group_bytes - held, row_bytes, hold)
                yield rows
                del rows
            if not first or left:
                self._give_back()
            first = False

    def _fitting(self, files: list[Add], held: int, row_bytes: float) -> int:
        """How many of the next two files fit beside what is held; one if nothing is held."""
        room, count = self._group_bytes - held, 0
        for add in files[:2]:
            room -= int(add.rows * row_bytes)
            count += room >= 0
        return count or int(bool(files and not held))

    def _with_neighbours(
        self, rows: SparseRows, room: int, row_bytes: float, hold: Callable[[int], None]
    ) -> SparseRows:
        """All rows; if they are too few for a file, with the rows of neighbouring files before
        them.

        Only files that fit are taken; the next flush may take others.
        """
        bytes_per_row = self.bytes_per_row
        if bytes_per_row is None:
            return rows
        touched, key = column_stats(self._keys), self._definition.primary_key[0]
        enough = self._target_file_bytes / SMALL_FILES / bytes_per_row
        # Files have each key once, so at most as many of their rows are replaced as rows came. Most
        # flushes are therefore not sorted twice.
        while (
            rows.num_rows - 2 * self._rows.num_rows < enough
            and (more := neighbour(self._there, self.replaced, touched, key)) is not None
            and more.rows * row_bytes <= room
            and 0 < sort_rows(rows, self._definition).rows < enough
        ):
            self.replaced = (*self.replaced, more)
            older = read_rows(self._store, self._folder, [more])
            row_bytes = older[0].nbytes / max(1, more.rows)
            room -= older[0].nbytes
            hold(older[0].nbytes)
            rows = self._behind(older, rows)
            del older
        return rows

    def _behind(self, older: list[SparseRows], rows: SparseRows) -> SparseRows:
        """The rows of files, followed by the given rows."""
        behind = (SparseRows.of(each.batches, rows.schema) for each in older)
        return concatenated([SparseRows(rows.schema, ()), *behind, rows])
