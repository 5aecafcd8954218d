"""One DuckDB file: attached during a transaction, and free for readers between transactions.

    transaction ──▶ attach, waiting for other processes ──▶ BEGIN ──▶ … ──▶ COMMIT ──▶ detach
                                                              └ raises ──▶ ROLLBACK ──▶ detach

DuckDB lets one process write, or any number read. The follower holds the file for some milliseconds
at a time, and :func:`open_copy` waits until it is free. A killed process leaves each transaction
complete or absent; ``tests/followers/test_killed_sink.py`` checks it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingester.client.errors import InvalidRequest, TimedOut, Unavailable
from ingester.followers.errors import FollowerError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

CATALOG = "copy"
"""The name under which the file is attached. Views in it must not use it: readers have another."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.008
"""The pauses between attempts to attach a file that another process has open. They are shorter than
:data:`READER_PAUSE_S`, so that readers that open the file in a loop do not starve the follower."""
READER_PAUSE_S = 0.005
"""The pause of a reader between attempts, at most as long as the follower leaves the file free."""

STORAGE_VERSION = "v1.0.0"
"""The oldest DuckDB that can read the file; programs other than Python often have an older one."""
RENEW_AFTER = 256
"""How often one connection attaches a file: DuckDB keeps some kilobytes after each detach."""

_turns: dict[str, threading.RLock] = {}
"""The lock of each file that this process writes to. POSIX locks belong to the process: opening and
closing the file a second time would release DuckDB's lock and let another process in."""


def turn_of(path: str) -> threading.RLock | None:
    """The lock of a file that this process writes to; None for other files."""
    return _turns.get(os.path.realpath(path))


class DuckDBFile:
    """A DuckDB file that is written to; the first transaction creates it.

    Args:
        path: The file; its folder must exist.
        locked: Called with the holder of the file, once per wait.
    """

    def __init__(self, path: Path, locked: Callable[[str], None] = lambda holder: None) -> None:
        self.path = path
        self.waited_s = 0.0
        """The seconds spent waiting for others to close the file."""
        self._locked = locked
        self._connection: DuckDBPyConnection | None = None
        self._attached = False
        self._detached = 0
        self._had_file = False
        self._turn = _turns.setdefault(os.path.realpath(path), threading.RLock())
        self._closed = threading.Event()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[DuckDBPyConnection]:
        """A connection in a transaction: committed at the end, rolled back if the block raises.

        Raises:
            InvalidRequest: The file cannot be used; the message says what to change.
            Unavailable: The disk is full, or :meth:`close` was called during the wait.
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
        """Release the file after the open transaction. A waiting transaction fails."""
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
            self._attached = self._had_file = True
        return connection

    def _connect(self) -> DuckDBPyConnection:
        duckdb = _duckdb()
        connection: DuckDBPyConnection = duckdb.connect(
            config={
                # A SQLite file is refused; DuckDB would download an extension to read it.
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "temp_directory": f"{self.path}.tmp",
                "storage_compatibility_version": STORAGE_VERSION,
            }
        )
        # Casts must not depend on the machine's time zone.
        connection.execute("SET TimeZone = 'UTC'")
        # Rows have no order; preserving one costs memory.
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
            # No event announces the release of another process's lock.
            if self._closed.wait(pause_s):
                raise Unavailable(f"{self.path}: closed during the wait", code="closed")
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if told:
            self.waited_s += time.monotonic() - began

    def _make(self, connection: DuckDBPyConnection) -> None:
        """Create the file under another name and link it when it is complete.

        DuckDB writes a new file in steps, which a reader or a kill could interrupt.

        Raises:
            FollowerError: An earlier transaction had the file.
        """
        if self.path.exists():
            return
        if self._had_file:
            raise FollowerError(
                f"{self.path} was deleted or moved away while it was followed into: start the"
                " follower again to copy its tables from the beginning",
                code="taken_over",
            )
        new = self.path.with_name(f"{self.path.name}.new")
        quoted = str(new).replace("'", "''")
        attach = f"ATTACH '{quoted}' AS {CATALOG} (TYPE duckdb)"
        try:
            connection.execute(attach)
        except _duckdb().Error as exc:
            if "set lock on file" in str(exc) or not new.exists():
                raise
            new.unlink(missing_ok=True)  # left by a killed process
            connection.execute(attach)
        connection.execute(f"DETACH {CATALOG}")
        # Fails if another process was faster, or if the file system has no links; ATTACH then
        # creates the file.
        with contextlib.suppress(OSError):
            os.link(new, self.path)
        new.unlink(missing_ok=True)

    def _detach(self) -> None:
        if not self._attached or self._connection is None:
            return
        try:
            with _translated(self.path):
                self._connection.execute("USE memory")
                # Writes a checkpoint, so that no log stays beside the file.
                self._connection.execute(f"DETACH {CATALOG}")
        except BaseException:
            # No checkpoint, for example on a full disk: the commit is in DuckDB's log.
            self._drop()
            raise
        self._attached = False
        self._detached += 1
        if self._detached >= RENEW_AFTER:
            self._drop()

    def _give_up(self, connection: DuckDBPyConnection) -> None:
        """Roll back and drop the connection: DuckDB may have invalidated the database."""
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
        raise InvalidRequest(
            'duckdb is missing: pip install ".[duckdb]" in the folder of the sources'
        ) from exc
    return duckdb


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Translate DuckDB's errors into client errors that name the file and a remedy."""
    duckdb = _duckdb()
    try:
        yield
    except duckdb.Error as exc:
        raise _ours(path, str(exc)) from exc


@contextlib.contextmanager
def full_disk_translated(path: Path) -> Iterator[None]:
    """Translate a full disk into :class:`Unavailable`, which is retried; leave other errors."""
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
        return Unavailable(f"{path} is open in another process: {_first(text)}", code="locked")
    if "No space left" in text or "ENOSPC" in text:
        return Unavailable(f"{path}: the disk is full", code="disk_full")
    if "not a valid DuckDB database file" in text:
        return InvalidRequest(f"{path} exists and is not a DuckDB file: name another one")
    if "replaying WAL" in text or "Corrupt" in text:
        return InvalidRequest(
            f"{path} is damaged: {_first(text)}; move it away, with the files beside it that begin"
            " with its name, and the copy will be rebuilt"
        )
    return InvalidRequest(f"{path}: {_first(text)}")


def _first(text: str) -> str:
    return text.strip().splitlines()[0]


def open_copy(path: str | PathLike[str], wait_s: float = 10.0) -> DuckDBPyConnection:
    """A read-only connection to a copy; close it soon.

    The connection sees the state of one moment. The follower cannot write while it is open, and
    catches up afterwards.

    Raises:
        TimedOut: The file was not free within ``wait_s``, for example during a first fill.
        duckdb.IOException: The file does not exist or is not a DuckDB file.
    """
    duckdb = _duckdb()
    name, deadline = fspath(path), time.monotonic() + wait_s
    while True:
        try:
            with _turn(name, deadline):
                # Without the prefix, DuckDB 2.0 reads the file's header before it locks the file: a
                # follower that commits in between leaves it with the header of another state.
                connection: DuckDBPyConnection = duckdb.connect(f"duckdb:{name}", read_only=True)
                return connection
        except (duckdb.Error, TimedOut) as exc:
            if not any(text in str(exc) for text in _HELD):
                raise
            if time.monotonic() > deadline:
                raise TimedOut(f"{name} was not free within {wait_s:g} s: {exc}") from exc
        time.sleep(READER_PAUSE_S)


_HELD = ("set lock on file", "already attached", "another thread")


@contextlib.contextmanager
def _turn(name: str, deadline: float) -> Iterator[None]:
    """Keep a follower in this process from attaching the file."""
    turn = turn_of(name)
    if turn is None:
        yield
        return
    if not turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise TimedOut("a follower in another thread writes to it")
    try:
        yield
    finally:
        turn.release()
