"""One DuckDB file: attached while a transaction needs it, and free for readers in between.

    transaction ──▶ attach, waiting for whoever has it open ──▶ BEGIN ──▶ … ──▶ COMMIT ──▶ detach
                                                                  └ raises ──▶ ROLLBACK ──▶ detach

Law of this file: what a transaction did is in the file whole or not at all, whenever the process
dies. DuckDB lets one process write, or any number read: nobody opens a file that is attached here,
and here nothing is attached while somebody reads. An attach and a detach take some milliseconds,
which is what a transaction costs anyway. A database that DuckDB gave up is attached anew.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingester.client.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

CATALOG = "copy"
"""The name of the attached file. No view in it may say this name: readers have another."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.008
"""The pauses between two attempts to attach a file that somebody else has open: shorter than those
that a reader makes who opens it again and again."""

STORAGE_VERSION = "v1.0.0"
"""The oldest DuckDB that reads a file made here: others than Python's are often older."""
RENEW_AFTER = 256
"""The files that one connection attaches: DuckDB keeps some kilobytes of each that it detaches."""

_turns: dict[str, threading.RLock] = {}
"""What each file that is written to in this process is attached under. Locks of POSIX are the
process's: whoever opens a file once more, and closes it, lets go of DuckDB's lock, and another
process gets in."""


def turn_of(path: str) -> threading.RLock | None:
    """The lock under which a file is attached in this process; None where none was written to."""
    return _turns.get(os.path.realpath(path))


class DuckDBFile:
    """A DuckDB file that is written to, made by the first transaction.

    Args:
        path: of the file; its folder has to be there.
        locked: is told who has the file, once for each time that it has to be waited for.
    """

    def __init__(self, path: Path, locked: Callable[[str], None] = lambda holder: None) -> None:
        self.path = path
        self.waited_s = 0.0
        """The time spent waiting for others to close the file."""
        self._locked = locked
        self._connection: DuckDBPyConnection | None = None
        self._attached = False
        self._detached = 0
        self._turn = _turns.setdefault(os.path.realpath(path), threading.RLock())
        self._closed = threading.Event()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[DuckDBPyConnection]:
        """A connection within a transaction: committed at the end, rolled back where it raises.

        Raises:
            InvalidRequest: the file cannot be used; the message says what to change.
            Unavailable: a full or broken disk, or :meth:`close` while the file was waited for.
        """
        with self._turn:
            connection = self._attach()
            try:
                with _translated(self.path):
                    connection.execute("BEGIN")
                    yield connection
                    connection.execute("COMMIT")
            except BaseException:
                self._give_up(connection)
                raise
            self._detach()

    def close(self) -> None:
        """Let the file go. Whoever waits for it is refused; a transaction ends before."""
        self._closed.set()
        with self._turn:
            self._drop()

    def _attach(self) -> DuckDBPyConnection:
        if self._closed.is_set():
            raise Unavailable(f"{self.path}: closed", code="closed")
        connection = self._connection or self._connect()
        self._connection = connection
        if not self._attached:
            self._wait_for_file(connection)
            self._attached = True
        return connection

    def _connect(self) -> DuckDBPyConnection:
        duckdb = _duckdb()
        connection: DuckDBPyConnection = duckdb.connect(
            config={
                # A file of SQLite's is to be refused, and not to fetch what reads it.
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "temp_directory": f"{self.path}.tmp",
                "storage_compatibility_version": STORAGE_VERSION,
            }
        )
        # Never the machine's: whatever DuckDB casts by it would differ.
        connection.execute("SET TimeZone = 'UTC'")
        # Rows have no order, and keeping one takes memory.
        connection.execute("SET preserve_insertion_order = false")
        return connection

    def _wait_for_file(self, connection: DuckDBPyConnection) -> None:
        began, pause_s, told = time.monotonic(), FIRST_PAUSE_S, False
        path = str(self.path).replace("'", "''")
        while True:
            try:
                with _translated(self.path):
                    self._make(connection)
                    connection.execute(f"ATTACH '{path}' AS {CATALOG} (TYPE duckdb)")
                    connection.execute(f"USE {CATALOG}")
            except Unavailable as exc:
                if exc.code != "locked":
                    raise
                if not told:
                    self._locked(str(exc))
                    told = True
            else:
                break
            # Nothing tells of another process's lock.
            if self._closed.wait(pause_s):
                raise Unavailable(f"{self.path}: closed while it was waited for", code="closed")
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if told:
            self.waited_s += time.monotonic() - began

    def _make(self, connection: DuckDBPyConnection) -> None:
        """Make the file where there is none, under another name until it is whole.

        DuckDB writes a new file in steps: a reader may meet each of them, and a kill leave it so.
        """
        if self.path.exists():
            return
        new = self.path.with_name(f"{self.path.name}.new")
        quoted = str(new).replace("'", "''")
        attach = f"ATTACH '{quoted}' AS {CATALOG} (TYPE duckdb)"
        try:
            connection.execute(attach)
        except _duckdb().Error as exc:
            if "set lock on file" in str(exc) or not new.exists():
                raise
            new.unlink(missing_ok=True)  # what a killed process has left
            connection.execute(attach)
        connection.execute(f"DETACH {CATALOG}")
        # Another process was faster; or there are no links here, and the file is made in its place.
        with contextlib.suppress(OSError):
            os.link(new, self.path)
        new.unlink(missing_ok=True)

    def _detach(self) -> None:
        if not self._attached or self._connection is None:
            return
        try:
            with _translated(self.path):
                self._connection.execute("USE memory")
                # Writes a checkpoint: no log stays beside the file.
                self._connection.execute(f"DETACH {CATALOG}")
        except BaseException:
            # Without a checkpoint, as on a full disk: what was committed is in DuckDB's log.
            self._drop()
            raise
        self._attached = False
        self._detached += 1
        if self._detached >= RENEW_AFTER:
            self._drop()

    def _give_up(self, connection: DuckDBPyConnection) -> None:
        """Roll back, and let go of everything: DuckDB may have given the database up."""
        with contextlib.suppress(_duckdb().Error):
            connection.execute("ROLLBACK")
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._attached, self._detached = False, 0
        if connection is not None:
            with contextlib.suppress(_duckdb().Error):
                connection.close()


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as exc:
        raise InvalidRequest('duckdb is missing: pip install "ingester[duckdb]"') from exc
    return duckdb


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn what DuckDB raises into ours, with the file's name and what helps."""
    duckdb = _duckdb()
    try:
        yield
    except duckdb.Error as exc:
        raise _ours(path, str(exc)) from exc


@contextlib.contextmanager
def full_disk_told(path: Path) -> Iterator[None]:
    """Turn a full disk into :class:`Unavailable`, as it passes; leave any other error as it is."""
    duckdb = _duckdb()
    try:
        yield
    except duckdb.Error as exc:
        ours = _ours(path, str(exc))
        if isinstance(ours, Unavailable) and ours.code == "disk_full":
            raise ours from exc
        raise


def _ours(path: Path, text: str) -> InvalidRequest | Unavailable:
    if "set lock on file" in text or "already attached by" in text:
        return Unavailable(f"{path}: somebody else has it open: {_first(text)}", code="locked")
    if "No space left" in text or "ENOSPC" in text:
        return Unavailable(f"{path}: the disk is full", code="disk_full")
    if "not a valid DuckDB database file" in text:
        return InvalidRequest(f"{path} is there and is no DuckDB file: name another one")
    if "replaying WAL" in text or "Corrupt" in text:
        return InvalidRequest(
            f"{path} is damaged: {_first(text)}; move it away, with what lies beside it under its"
            " name, and the copy is built anew"
        )
    return InvalidRequest(f"{path}: {_first(text)}")


def _first(text: str) -> str:
    return text.strip().splitlines()[0]
