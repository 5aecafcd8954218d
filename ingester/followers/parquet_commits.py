"""The commits of a Parquet folder: what it holds, and how the next state of it is made.

    current                ─▶ commits/12: replaced by each transaction, in one step
    commits/12/states      the states, and which copy is filled
    commits/12/shown       ─▶ ../../copies/30: what readers see
    copies/30/*.parquet    links to files; a folder is never changed once a commit names it
    new/                   files that no copy has yet

Law of this file: a draft writes into ``new`` alone until it is finished, and what it makes then is
nobody's until ``current`` points to it. The commit before stays, for who is reading there.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from ingester.followers import parquet_files as files
from ingester.followers.errors import FollowerError
from ingester.followers.sink import Rows, Run, StateKey

_EMPTY = "empty.parquet"
"""The file of a copy without rows: readers find the columns in it."""
_FLUSH_BYTES = 64 << 20
"""The rows that one transaction holds before it writes a file."""


class Commit(msgspec.Struct, frozen=True):
    """What the folder holds: copies by number, and states."""

    number: int = 0
    shown: int | None = None
    filled: int | None = None
    states: tuple[tuple[StateKey, bytes], ...] = ()


def committed(root: Path) -> Commit:
    """What was committed last; anything else is removed."""
    commit = last_commit(root)
    _removed_but(root, commit)
    emptied(root / "new")
    return commit


def last_commit(root: Path) -> Commit:
    """What was committed last; nothing where nothing was, or there is no such folder."""
    current = root / "current"
    if not current.is_symlink():
        return Commit()
    return msgspec.msgpack.decode((current / "states").read_bytes(), type=Commit)


class Draft:
    """The next commit, in the making."""

    def __init__(self, root: Path, before: Commit, schema: pa.Schema) -> None:
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
        """Show the copy that is filled, or drop it."""
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
            left = files.without(path, goes)
            if left is None:
                kept.append(path)
            elif left[1]:
                kept.append(self._written(*left))
        self._change(kept)

    def finish(self) -> Commit:
        """Make it what the folder holds, in one step."""
        self._flush()
        commit = Commit(
            self._before.number + 1, self._shown, self._filled, tuple(self.states.items())
        )
        for number in {self._shown, self._filled} & self._new_copies:
            assert number is not None
            self._make_copy(number)
        folder = self._root / "commits" / str(commit.number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "states").write_bytes(msgspec.msgpack.encode(commit))
        files.sync(folder / "states")
        if commit.shown is not None:
            (folder / "shown").symlink_to(Path("..", "..", "copies", str(commit.shown)))
        files.sync(folder)
        files.sync(folder.parent)
        pointer = self._root / "new" / "current"
        pointer.symlink_to(Path("commits", str(commit.number)))
        pointer.rename(self._root / "current")
        files.sync(self._root)
        _removed_but(self._root, commit, self._before)
        return commit

    def _flush(self) -> None:
        if not self._pending:
            return
        pending, self._pending, self._bytes = self._pending, [], 0
        rows = pa.concat_tables([part.batch for part in pending], promote_options="default")
        path = self._written(rows, [run for part in pending for run in part.runs])
        listed = [*self._links[self._target()], path]
        if small := files.to_merge(listed):
            one = self._written(*files.merged(small))
            listed = [*(path for path in listed if path not in small), one]
        self._change(listed)

    def _written(self, rows: pa.Table, runs: Sequence[Run]) -> Path:
        path = self._root / "new" / f"{uuid.uuid4().hex}.parquet"
        files.write_rows(path, rows, runs)
        return path

    def _change(self, listed: list[Path]) -> None:
        """Let the copy that is written to have these files: it becomes another folder."""
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
            files.write_rows(folder / _EMPTY, self._schema.empty_table(), [])
        files.sync(folder)
        files.sync(folder.parent)


def _removed_but(root: Path, *commits: Commit) -> None:
    """Remove folders that none of these commits is of. What a crash leaves goes the next time."""
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
