"""SQLite, from Python's standard library: WAL and ``synchronous = FULL``, a transaction per batch.

Law of this file: a commit returns when the log's pages are synced. Writers take turns within their
process, because SQLite's own way of waiting for another writer is to sleep and try again. The log
is copied into the database file seldom, as with the other peers: not within a burst.
"""

from __future__ import annotations

import sqlite3
from itertools import chain
from pathlib import Path

import pyarrow as pa

from tests.bench.peers.peer import Peer, Promise
from tests.bench.peers.turns import Turns

_CHECKPOINT_PAGES = 262_144
"""1 GiB."""
_LOG_MIB = 128
"""Of the log that are there before the first batch: to overwrite is cheaper than to append."""
_TOGETHER = 50
"""Rows of one ``INSERT``: twice as fast as one by one; more are no faster."""
_Statements = list[tuple[str, list[object]]]


class Database:
    """The database of a folder, and the turn of its writers."""

    version = f"{sqlite3.sqlite_version}"

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / "rows.sqlite"
        self._connection = connect(self.path)
        self._turns = Turns()
        self._warm_up()

    def _warm_up(self) -> None:
        """Write the log once and copy it, as a database that was used before has it."""
        execute = self._connection.execute
        execute("CREATE TABLE warm_up (zeros BLOB)")
        execute("BEGIN")
        for _ in range(_LOG_MIB):
            execute("INSERT INTO warm_up VALUES (zeroblob(1 << 20))")
        execute("COMMIT")
        execute("DROP TABLE warm_up")
        execute("PRAGMA wal_checkpoint(RESTART)")

    def create(self, table: str) -> None:
        """Make the table; times are microseconds."""
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {table}"
            " (time INTEGER, host TEXT, region TEXT, load REAL, temperature REAL)"
        )

    def settle(self) -> None:
        """Bring the log into the database file."""
        self._connection.execute("PRAGMA wal_checkpoint(RESTART)")

    def writer(self, table: str) -> Inserts:
        """A connection of its own."""
        return Inserts(connect(self.path), table, self._turns)


class Inserts:
    """``INSERT`` of some rows at a time within a transaction."""

    def __init__(self, connection: sqlite3.Connection, table: str, turns: Turns) -> None:
        self._connection = connection
        self._table = table
        self._turns = turns

    def encode(self, batch: pa.RecordBatch) -> _Statements:
        """Statements, and the Python objects that are their values."""
        times, *others = batch.columns
        columns = [times.view(pa.int64()), *others]
        rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
        statements: _Statements = []
        for first in range(0, len(rows), _TOGETHER):
            part = rows[first : first + _TOGETHER]
            places = ", ".join(["(?, ?, ?, ?, ?)"] * len(part))
            statement = f"INSERT INTO {self._table} VALUES {places}"
            statements.append((statement, list(chain.from_iterable(part))))
        return statements

    def write(self, encoded: _Statements) -> None:
        """One transaction."""
        execute = self._connection.execute
        with self._turns:
            execute("BEGIN IMMEDIATE")
            for statement, values in encoded:
                execute(statement, values)
            execute("COMMIT")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def connect(path: Path) -> sqlite3.Connection:
    """A connection that syncs with every commit."""
    # Transactions are begun and ended by hand; the connection goes from one thread to another.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        f"wal_autocheckpoint = {_CHECKPOINT_PAGES}",
        "cache_size = -65536",
        "busy_timeout = 10000",
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection


PEER = Peer(
    name="SQLite",
    promise=Promise("committed, its write-ahead log synced", True, "to all, at acknowledgement"),
    open=Database,
)
