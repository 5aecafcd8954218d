"""The commits and files of a Parquet folder.

    current                ─▶ commits/12: replaced atomically by each transaction
    commits/12/states      the states, and the number of the copy being filled
    commits/12/shown       ─▶ ../../copies/30: what readers see
    copies/30/*.parquet    hard links to files; a committed folder never changes
    new/                   files that belong to no copy yet

A draft writes only into ``new`` and new folders until it is committed. The previous commit stays
for readers. A file has exactly the user's columns and never changes; its footer's key
``ingester.runs`` lists ``[partition, group, rows]`` in row order.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ingester.followers.errors import FollowerError
from ingester.followers.sink import Rows, Run, StateKey

RUNS = b"ingester.runs"
SMALL_BYTES = 16 << 20
"""Files below this size are merged."""
MANY_FILES = 32
"""The number of small files that starts a merge."""
MERGED_BYTES = 64 << 20
"""The most bytes merged at once; their rows are in memory."""
MANY_RUNS = 10_000
"""Files with more runs are not merged: the footer would be the larger part."""

_decode = msgspec.json.Decoder(list[tuple[str, int, int]]).decode
_EMPTY = "empty.parquet"
"""The file of a copy without rows, from which readers get the columns."""
_FLUSH_BYTES = 64 << 20
"""The bytes of rows that a transaction buffers before it writes a file."""


class FolderCommit(msgspec.Struct, frozen=True):
    """A committed state of the folder: copies by number, and states."""

    number: int = 0
    shown: int | None = None
    filled: int | None = None
    states: tuple[tuple[StateKey, bytes], ...] = ()


def committed(root: Path) -> FolderCommit:
    """The last commit; everything else is removed."""
    commit = last_commit(root)
    _removed_but(root, commit)
    emptied(root / "new")
    return commit


def last_commit(root: Path) -> FolderCommit:
    """The last commit; an empty one if there is none."""
    current = root / "current"
    if not current.is_symlink():
        return FolderCommit()
    return msgspec.msgpack.decode((current / "states").read_bytes(), type=FolderCommit)


class FolderDraft:
    """The next commit of a folder."""

    def __init__(self, root: Path, before: FolderCommit, schema: pa.Schema) -> None:
        self._root, self._before, self._schema = root, before, schema
        self.states = dict(before.states)
        self._shown, self._filled = before.shown, before.filled
        self._links = {number: self._listed(number) for number in (self._shown, self._filled)}
        self._pending: list[Rows] = []
        self._bytes = 0
        self._new_copies: set[int] = set()

    def begin(self, is_current: bool) -> None:
        """Begin an empty copy."""
        number = self._next_copy()
        self._links[number] = []
        if is_current:
            self._shown, self._filled = number, None
        else:
            self._filled = number
        self._pending, self._bytes = [], 0

    def end(self, current: bool) -> None:
        """Show the begun copy, or drop it."""
        self._flush()
        if current and self._filled is not None:
            self._shown = self._filled
        self._filled = None

    def add(self, rows: Rows) -> None:
        """Add rows to the copy that is written to."""
        self._target()
        self._pending.append(rows)
        self._bytes += rows.batch.nbytes
        if self._bytes > _FLUSH_BYTES:
            self._flush()

    def remove(self, goes: Callable[[Run], bool]) -> None:
        """Remove the rows of some runs from the copy that is written to."""
        self._flush()
        kept: list[Path] = []
        for path in self._links[self._target()]:
            left = without(path, goes)
            if left is None:
                kept.append(path)
            elif left[1]:
                kept.append(self._written(*left))
        self._change(kept)

    def finish(self) -> FolderCommit:
        """Commit in one step: replace the link ``current``."""
        self._flush()
        commit = FolderCommit(
            self._before.number + 1, self._shown, self._filled, tuple(self.states.items())
        )
        for number in {self._shown, self._filled} & self._new_copies:
            assert number is not None
            self._make_copy(number)
        folder = self._root / "commits" / str(commit.number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "states").write_bytes(msgspec.msgpack.encode(commit))
        sync(folder / "states")
        if commit.shown is not None:
            (folder / "shown").symlink_to(Path("..", "..", "copies", str(commit.shown)))
        sync(folder)
        sync(folder.parent)
        pointer = self._root / "new" / "current"
        pointer.symlink_to(Path("commits", str(commit.number)))
        pointer.rename(self._root / "current")
        sync(self._root)
        _removed_but(self._root, commit, self._before)
        return commit

    def _flush(self) -> None:
        if not self._pending:
            return
        pending, self._pending, self._bytes = self._pending, [], 0
        rows = pa.concat_tables([part.batch for part in pending], promote_options="default")
        path = self._written(rows, [run for part in pending for run in part.runs])
        listed = [*self._links[self._target()], path]
        if small := to_merge(listed):
            one = self._written(*merged(small))
            listed = [*(path for path in listed if path not in small), one]
        self._change(listed)

    def _written(self, rows: pa.Table, runs: Sequence[Run]) -> Path:
        path = self._root / "new" / f"{uuid.uuid4().hex}.parquet"
        write_rows(path, rows, runs)
        return path

    def _change(self, listed: list[Path]) -> None:
        """Give the copy that is written to these files; it becomes another folder."""
        before, number = self._target(), self._next_copy()
        self._links[number] = listed
        if before == self._filled:
            self._filled = number
        else:
            self._shown = number

    def _target(self) -> int:
        number = self._shown if self._filled is None else self._filled
        if number is None:
            raise FollowerError("a Parquet sink was given rows before a version was begun")
        return number

    def _next_copy(self) -> int:
        known = [*(number for number in self._links if number is not None)]
        known += [int(path.name) for path in (self._root / "copies").iterdir()]
        self._new_copies.add(number := max(known, default=0) + 1)
        return number

    def _listed(self, number: int | None) -> list[Path]:
        if number is None:
            return []
        found = (self._root / "copies" / str(number)).glob("*.parquet")
        return sorted(path for path in found if path.name != _EMPTY)

    def _make_copy(self, number: int) -> None:
        folder = self._root / "copies" / str(number)
        folder.mkdir()
        for path in self._links[number]:
            (folder / path.name).hardlink_to(path)
        if not self._links[number]:
            write_rows(folder / _EMPTY, self._schema.empty_table(), [])
        sync(folder)
        sync(folder.parent)


def _removed_but(root: Path, *commits: FolderCommit) -> None:
    """Remove folders of other commits, including those that a crash has left."""
    numbers = {str(commit.number) for commit in commits}
    copies = {str(number) for commit in commits for number in (commit.shown, commit.filled)}
    for kept, folder in ((numbers, root / "commits"), (copies, root / "copies")):
        for path in folder.iterdir():
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def emptied(folder: Path) -> None:
    """Remove the files in a folder."""
    for path in folder.iterdir():
        path.unlink(missing_ok=True)


def write_rows(path: Path, rows: pa.Table, runs: Sequence[Run]) -> None:
    """Write a file and sync it."""
    metadata = {**(rows.schema.metadata or {}), RUNS: msgspec.json.encode(joined(runs))}
    pq.write_table(rows.replace_schema_metadata(metadata), path, compression="zstd")
    sync(path)


def joined(runs: Iterable[Run]) -> list[Run]:
    """The runs, with neighbours of the same group joined."""
    together = groupby(runs, key=lambda run: (run.part, run.at))
    return [Run(part, at, sum(r.rows for r in same)) for (part, at), same in together]


def runs_of(path: Path) -> list[Run]:
    """The runs of a file's rows."""
    return [Run(*run) for run in _decode(pq.read_metadata(path).metadata[RUNS])]


def without(path: Path, goes: Callable[[Run], bool]) -> tuple[pa.Table, list[Run]] | None:
    """A file's rows and runs without those that ``goes`` selects; None if all stay."""
    runs = runs_of(path)
    if not any(map(goes, runs)):
        return None
    rows = pq.ParquetFile(path).read()
    stays = [run for run in runs if not goes(run)]
    pieces = [rows.slice(first, run.rows) for first, run in _placed(runs) if not goes(run)]
    return pa.concat_tables(pieces) if pieces else rows.slice(0, 0), stays


def _placed(runs: Sequence[Run]) -> Iterator[tuple[int, Run]]:
    """Each run with the index of its first row."""
    first = 0
    for run in runs:
        yield first, run
        first += run.rows


def to_merge(files: Sequence[Path]) -> list[Path]:
    """The files to merge; none while there are few."""
    sizes = {path: path.stat().st_size for path in files}
    small = [path for path in files if sizes[path] < SMALL_BYTES]
    if len(small) < MANY_FILES:
        return []
    taken, room = [], MERGED_BYTES
    for path in sorted(small, key=lambda path: sizes[path]):
        room -= sizes[path]
        if room < 0:
            break
        if len(runs_of(path)) <= MANY_RUNS:
            taken.append(path)
    return taken if len(taken) > 1 else []


def merged(files: Sequence[Path]) -> tuple[pa.Table, list[Run]]:
    """The rows and runs of several files; missing columns are null."""
    tables = [pq.ParquetFile(path).read() for path in files]
    rows = pa.concat_tables(
        [table.replace_schema_metadata(None) for table in tables], promote_options="default"
    )
    return rows, [run for path in files for run in runs_of(path)]


def sync(path: Path) -> None:
    """Sync a file's bytes or a folder's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
