"""Copies of tables as folders of Parquet files, with the states of followers beside them.

    FOLDER/TABLE                     ─▶ .ingester/NS/TABLE/vN/current/shown: what readers read
    FOLDER/.ingester/NS/TABLE/vN/
        lock                         held as long as a follower is there
        current                      ─▶ commits/12: replaced by each transaction, in one step
        commits/12/states            the states, and which copy is filled
        commits/12/shown             ─▶ ../../copies/30
        copies/30/*.parquet          links to files; a folder is never changed once it is shown

Law of this file: what a transaction did is seen whole or not at all, rows and states: it makes new
folders and points ``current`` to them. The folder before stays until the next transaction, for who
is reading there. Rows of files do not change, so that a table with a primary key is refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec
import pyarrow as pa

from ingester.client.errors import InvalidRequest, Unavailable
from ingester.client.follower import parquet_files as files
from ingester.client.follower.errors import FollowerError
from ingester.client.follower.sink import (
    CheckpointStore,
    FollowedTable,
    FollowerSink,
    Rows,
    Run,
    StateKey,
)

HIDDEN = ".ingester"
_EMPTY = "empty.parquet"
"""The file of a copy without rows: readers find the columns in it."""
_FLUSH_BYTES = 64 << 20
"""The rows that one transaction holds before it writes a file."""


class _Commit(msgspec.Struct, frozen=True):
    """What the folder holds: copies by number, and states."""

    number: int = 0
    shown: int | None = None
    filled: int | None = None
    states: tuple[tuple[StateKey, bytes], ...] = ()


class ParquetFolder:
    """A folder that copies go to, which is made unless it is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _translated(path):
            (path / HIDDEN).mkdir(parents=True, exist_ok=True)

    def sink(self, table: FollowedTable) -> ParquetSink:
        """The sink of a table; the factory for a follower."""
        return ParquetSink(self.path, table)

    def close(self) -> None:
        """Do nothing: each sink lets go of its own."""


class ParquetSink(FollowerSink):
    """Keeps the copy of one table as a folder of Parquet files.

    Raises:
        InvalidRequest: a table with a primary key, a name that is taken, a folder that cannot be
            written to. FollowerError: another follower is there.
    """

    version = 1

    def __init__(self, folder: Path, table: FollowedTable) -> None:
        name = f"{table.namespace}/{table.table}"
        if table.keyed:
            raise InvalidRequest(
                f"table {name} has a primary key, and rows of Parquet files do not change: follow"
                " it into DuckDB (--into duckdb:FILE)"
            )
        self._root = folder / HIDDEN / table.namespace / table.table / f"v{table.table_version}"
        self._schema = table.schema
        self._link = folder / table.table
        shown = (self._root / "current" / "shown").relative_to(folder)
        with _translated(folder):
            if (self._link.is_symlink() or self._link.exists()) and not (
                self._link.is_symlink() and self._link.readlink() == shown
            ):
                raise InvalidRequest(
                    f"{self._link} is there and no copy of {name}: follow into another folder"
                )
            for made in (self._root / "copies", self._root / "commits", self._root / "new"):
                made.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self._root / "lock", name)
            self._commit = self._recovered()
            if not self._link.is_symlink():
                self._link.symlink_to(shown)
                files.sync(folder)
        self._draft: _Draft | None = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep all calls inside, states included, at the end; none where the block raises."""
        with _translated(self._root):
            self._draft = _Draft(self._root, self._commit, self._schema)
            try:
                yield
                self._commit = self._draft.finish()
            finally:
                self._draft = None
                _emptied(self._root / "new")

    def checkpoint_store(self) -> CheckpointStore:
        """The folder's own states."""
        return _States(self)

    def on_start_version(self, partitions: Sequence[str], is_current: bool) -> None:
        """Begin an empty copy, shown at once or beside the one that is shown."""
        self.draft.begin(is_current)

    def on_end_version(self, current: bool) -> None:
        """Show the copy that was begun last, in the place of any other; or drop it."""
        self.draft.end(current)

    def put(self, rows: Rows) -> None:
        """Add rows."""
        self.draft.add(rows)

    def delete(self, keys: pa.Table) -> None:
        """Raise: the table has no primary key."""
        raise FollowerError("rows of a Parquet folder have no key to be deleted by")

    def take_back(self, part: str, groups: Sequence[int]) -> None:
        """Remove the rows of these groups from a partition."""
        gone = set(groups)
        self.draft.remove(lambda run: run.part == part and run.at in gone)

    def take_back_all(self, part: str, keep: Sequence[int] = ()) -> None:
        """Remove all rows of a partition but those of the groups to keep."""
        kept = set(keep)
        self.draft.remove(lambda run: run.part == part and run.at not in kept)

    def close(self) -> None:
        """Let the folder go."""
        self._lock.close()

    @property
    def draft(self) -> _Draft:
        """What the open transaction has done so far."""
        if self._draft is None:
            raise FollowerError("a Parquet sink was called outside of its transaction")
        return self._draft

    def _recovered(self) -> _Commit:
        """What was committed last; anything else is removed."""
        current = self._root / "current"
        commit = _Commit()
        if current.is_symlink():
            commit = msgspec.msgpack.decode((current / "states").read_bytes(), type=_Commit)
        _removed_but(self._root, commit)
        _emptied(self._root / "new")
        return commit


class _Draft:
    """The next commit, in the making."""

    def __init__(self, root: Path, before: _Commit, schema: pa.Schema) -> None:
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

    def finish(self) -> _Commit:
        """Make it what the folder holds, in one step."""
        self._flush()
        commit = _Commit(
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


class _States:
    """The states in the folder, as of the sink's open transaction."""

    def __init__(self, sink: ParquetSink) -> None:
        self._sink = sink

    def get(self, key: StateKey) -> bytes | None:
        return self._sink.draft.states.get(key)

    def put(self, key: StateKey, state: bytes) -> None:
        self._sink.draft.states[key] = state

    def delete(self, key: StateKey) -> None:
        self._sink.draft.states.pop(key, None)


def _removed_but(root: Path, *commits: _Commit) -> None:
    """Remove folders that none of these commits is of. What a crash leaves goes the next time."""
    numbers = {str(commit.number) for commit in commits}
    copies = {str(number) for commit in commits for number in (commit.shown, commit.filled)}
    for kept, folder in ((numbers, root / "commits"), (copies, root / "copies")):
        for path in folder.iterdir():
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def _emptied(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink(missing_ok=True)


def _locked(path: Path, name: str) -> IO[bytes]:
    file = path.open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        file.close()
        raise FollowerError(f"another follower keeps the copy of {name} in this folder") from exc
    return file


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Unavailable(f"{path}: the disk is full", code="disk_full") from exc
        raise InvalidRequest(f"{exc.filename or path}: {exc.strerror or exc}") from exc
