"""SQLite, from Python's standard library: WAL and ``synchronous = FULL``, a transaction per batch.

A commit returns when the log's pages are synced. The writers of a process take turns, because
SQLite itself waits for another writer by sleeping and retrying. As with the other peers,
checkpoints of the log into the database file are rare and do not occur within a burst.
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
"""Size of the log before the first batch: overwriting is cheaper than appending."""
_TOGETHER = 50
"""Rows of one ``INSERT``: twice as fast as single rows; more are no faster."""
_Statements = list[tuple[str, list[object]]]


class Database:
    """The database of a folder, and the lock of its writers."""

    version = f"{sqlite3.sqlite_version}"

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / "rows.sqlite"
        self._connection = connect(self.path)
        self._turns = Turns()
        self._warm_up()

    def _warm_up(self) -> None:
        """Write the log once and checkpoint it, as in a database that was used before."""
        execute = self._connection.execute
        execute("CREATE TABLE warm_up (zeros BLOB)")
        execute("BEGIN")
        for _ in range(_LOG_MIB):
            execute("INSERT INTO warm_up VALUES (zeroblob(1 << 20))")
        execute("COMMIT")
        execute("DROP TABLE warm_up")
        execute("PRAGMA wal_checkpoint(RESTART)")

    def create(self, table: str) -> None:
        """Create the table; times are microseconds."""
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {table}"
            " (time INTEGER, host TEXT, region TEXT, load REAL, temperature REAL)"
        )

    def settle(self) -> None:
        """Checkpoint the log into the database file."""
        self._connection.execute("PRAGMA wal_checkpoint(RESTART)")

    def writer(self, table: str) -> Inserts:
        """Return a new connection."""
        return Inserts(connect(self.path), table, self._turns)


class Inserts:
    """Writes with ``INSERT`` of several rows at a time within a transaction."""

    def __init__(self, connection: sqlite3.Connection, table: str, turns: Turns) -> None:
        self._connection = connection
        self._table = table
        self._turns = turns

    def encode(self, batch: pa.RecordBatch) -> _Statements:
        """Return statements with their values as Python objects."""
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
        execute = self._connection.execute
        with self._turns:
            execute("BEGIN IMMEDIATE")
            for statement, values in encoded:
                execute(statement, values)
            execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection that syncs with every commit."""
    # Transactions are explicit; the connection is used by several threads in turn.
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
