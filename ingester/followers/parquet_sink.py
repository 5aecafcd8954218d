"""Copies of tables as folders of Parquet files, with the states of followers beside them.

    FOLDER/TABLE                     ─▶ .ingester/NS/TABLE/vN/current/shown: what readers read
    FOLDER/.ingester/NS/TABLE/vN/    its commits, see ``parquet_commits``
        lock                         held by the follower
    FOLDER/.ingester/NS/TABLE/gone*  versions that are being removed

A transaction becomes visible atomically, rows and states. The copy of another version is shown in
one step right after the transaction that completes it; a process killed in between repeats that
step. Tables with a primary key are refused, because files do not change.
``tests/followers/test_killed_sink.py`` kills the sink at any point.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa

from ingester.client.errors import InvalidRequest, Unavailable
from ingester.followers.errors import FollowerError
from ingester.followers.parquet_commits import FolderDraft, committed, emptied, last_commit, sync
from ingester.followers.sink import (
    CheckpointStore,
    FollowedTable,
    FollowerSink,
    Rows,
    StateKey,
)

HIDDEN = ".ingester"


class ParquetFolder:
    """A folder of copies; it is created if necessary."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _translated(path):
            (path / HIDDEN).mkdir(parents=True, exist_ok=True)

    def sink(self, table: FollowedTable) -> ParquetSink:
        """The sink of a table: the factory for a follower."""
        return ParquetSink(self.path, table)

    def close(self) -> None:
        """No-op: each sink releases its own lock."""


class ParquetSink(FollowerSink):
    """Keeps the copy of one table as a folder of Parquet files.

    Raises:
        InvalidRequest: The table has a primary key, its name is taken, or the folder is not
            writable.
        FollowerError: Another follower keeps this copy.
    """

    version = 1

    def __init__(self, folder: Path, table: FollowedTable) -> None:
        name = f"{table.namespace}/{table.table}"
        if table.keyed:
            raise InvalidRequest(
                f"table {name} has a primary key, and rows of Parquet files cannot be replaced:"
                " follow it into DuckDB (--into duckdb:FILE)"
            )
        self._version = table.table_version
        self._home = folder / HIDDEN / table.namespace / table.table
        self._root = _root(self._home, table.table_version)
        self._schema = table.schema
        self._link = folder / table.table
        self._target = (self._root / "current" / "shown").relative_to(folder)
        with _translated(folder):
            if (self._link.is_symlink() or self._link.exists()) and not self._is_ours(folder):
                raise InvalidRequest(
                    f"{self._link} exists and is not a copy of {name}: follow into another folder"
                )
            for made in (self._root / "copies", self._root / "commits", self._root / "new"):
                made.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self._root / "lock", name)
            self._commit = committed(self._root)
            if not self._link.is_symlink():
                self._link.symlink_to(self._target)
                sync(folder)
            self._remove_gone()
        self._draft: FolderDraft | None = None
        self._shows = self._will_show = False

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See :class:`ingester.followers.sink.Transactional`."""
        with _translated(self._root):
            self._draft = FolderDraft(self._root, self._commit, self._schema)
            self._will_show = self._shows
            try:
                yield
                self._commit = self._draft.finish()
                self._shows = self._will_show
                self._point()
            finally:
                self._draft = None
                emptied(self._root / "new")

    def checkpoint_store(self) -> CheckpointStore:
        """The folder's own states."""
        return _FolderStates(self)

    def on_start_version(self, partitions: Sequence[str], is_current: bool) -> None:
        """Begin an empty copy, shown or beside the shown one."""
        self.draft.begin(is_current)
        self._will_show |= is_current

    def on_end_version(self, current: bool) -> None:
        """Show the begun copy in place of any other, or drop it."""
        self.draft.end(current)
        self._will_show |= current

    def put(self, rows: Rows) -> None:
        """Add rows."""
        self.draft.add(rows)

    def delete(self, keys: pa.Table) -> None:
        """Always an error: the table has no primary key."""
        raise FollowerError("rows of a Parquet folder have no key")

    def take_back(self, part: str, groups: Sequence[int]) -> None:
        """Remove the rows of these groups from a partition."""
        gone = set(groups)
        self.draft.remove(lambda run: run.part == part and run.at in gone)

    def take_back_all(self, part: str, keep: Sequence[int] = ()) -> None:
        """Remove all rows of a partition except those of the groups to keep."""
        kept = set(keep)
        self.draft.remove(lambda run: run.part == part and run.at not in kept)

    def drop_version(self, table_version: int) -> None:
        """Remove the copy of another version with its states."""
        root = _root(self._home, table_version)
        if root.exists():
            root.rename(self._home / f"gone-{uuid.uuid4().hex}")
        self._remove_gone()

    def close(self) -> None:
        """Release the lock of the copy."""
        self._lock.close()

    def state_of(self, key: StateKey) -> bytes | None:
        """A state in the open transaction; that of another version as committed."""
        if key.table_version == self._version:
            return self.draft.states.get(key)
        return dict(last_commit(_root(self._home, key.table_version)).states).get(key)

    @property
    def draft(self) -> FolderDraft:
        """The draft of the open transaction."""
        if self._draft is None:
            raise FollowerError("a Parquet sink was called outside of a transaction")
        return self._draft

    def _is_ours(self, folder: Path) -> bool:
        """Whether the link points to a copy of this table, of any version."""
        if not self._link.is_symlink():
            return False
        target = folder / self._link.readlink()
        return target.is_relative_to(self._home) and target.parts[-2:] == ("current", "shown")

    def _point(self) -> None:
        """Point the link to this version's copy, if it is shown."""
        if not self._shows or (self._link.is_symlink() and self._link.readlink() == self._target):
            return
        link = self._root / "new" / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(self._target)
        link.rename(self._link)
        sync(self._link.parent)

    def _remove_gone(self) -> None:
        for path in self._home.glob("gone-*"):
            shutil.rmtree(path, ignore_errors=True)


class _FolderStates:
    """The states in the folder, within the sink's open transaction."""

    def __init__(self, sink: ParquetSink) -> None:
        self._sink = sink

    def get(self, key: StateKey) -> bytes | None:
        return self._sink.state_of(key)

    def put(self, key: StateKey, state: bytes) -> None:
        self._sink.draft.states[key] = state

    def delete(self, key: StateKey) -> None:
        self._sink.draft.states.pop(key, None)


def _root(home: Path, table_version: int) -> Path:
    return home / f"v{table_version}"


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
