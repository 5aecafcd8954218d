"""DuckDB: ``INSERT`` from a registered Arrow table and commit, one cursor per writer.

A commit returns when DuckDB's write-ahead log is synced. Checkpoints into the database file are
rare and do not occur within a burst.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa

from tests.bench.peers.peer import Peer, Promise

_COLUMNS = "time TIMESTAMPTZ, host VARCHAR, region VARCHAR, load DOUBLE, temperature DOUBLE"


class Database:
    """The database of a folder."""

    def __init__(self, folder: str) -> None:
        import duckdb

        self.version = duckdb.__version__
        self._connection = duckdb.connect(Path(folder) / "rows.duckdb")
        self._connection.execute("SET checkpoint_threshold = '2GiB'")
        self._numbers = itertools.count()

    def create(self, table: str) -> None:
        """Create the table."""
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({_COLUMNS})")

    def settle(self) -> None:
        """Checkpoint the log into the database file."""
        self._connection.execute("CHECKPOINT")

    def writer(self, table: str) -> Inserts:
        """Return a cursor: a separate connection to the same database."""
        return Inserts(self._connection.cursor(), table, f"writer_{next(self._numbers)}")


class Inserts:
    """Writes with ``INSERT INTO … FROM`` an Arrow table and commits each batch by itself."""

    def __init__(self, cursor: object, table: str, name: str) -> None:
        import duckdb

        assert isinstance(cursor, duckdb.DuckDBPyConnection)
        self._cursor = cursor
        self._table = table
        self._name = name
        self._batches = itertools.count()

    def encode(self, batch: pa.RecordBatch) -> str:
        """Register the batch with DuckDB and return the statement that inserts it."""
        name = f"{self._name}_{next(self._batches)}"
        self._cursor.register(name, pa.Table.from_batches([batch]))
        return f"INSERT INTO {self._table} FROM {name}"

    def write(self, encoded: str) -> None:
        self._cursor.execute(encoded)

    def close(self) -> None:
        self._cursor.close()


PEER = Peer(
    name="DuckDB",
    promise=Promise(
        "committed, its write-ahead log synced", True, "to its process alone, at acknowledgement"
    ),
    open=Database,
    packages=("duckdb",),
)
