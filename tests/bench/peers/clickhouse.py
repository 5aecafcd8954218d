"""ClickHouse through ``chdb``: an ``INSERT`` of an Arrow stream per batch, every part synced.

An insert returns when its part of the ``MergeTree`` table is renamed into place, after a sync of
its files (``fsync_after_insert``) and folder (``fsync_part_directory``). There is no log. One
process opens the database, with a session per writer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.bench.peers.peer import Peer, Promise

_COLUMNS = (
    "time DateTime64(6, 'UTC'), host String, region String, load Float64, temperature Float64"
)
_SETTINGS = {
    "fsync_after_insert": 1,
    "fsync_part_directory": 1,
    # Parts that wait to be merged neither slow down nor refuse inserts.
    "parts_to_delay_insert": 1_000_000,
    "parts_to_throw_insert": 1_000_000,
    "max_parts_in_total": 10_000_000,
}


class Database:
    """The database of a folder."""

    def __init__(self, folder: str) -> None:
        self._path = str(Path(folder) / "clickhouse")
        self._session = self._connect()
        self.version = str(self._session.query("SELECT version()", "TSV")).strip()
        self._session.query("CREATE DATABASE IF NOT EXISTS bench")

    def _connect(self) -> Any:
        from chdb.session import Session

        return Session(self._path)

    def create(self, table: str) -> None:
        """Create a ``MergeTree`` table without an order: nothing is sorted."""
        settings = ", ".join(f"{name} = {value}" for name, value in _SETTINGS.items())
        self._session.query(
            f"CREATE TABLE IF NOT EXISTS bench.{table} ({_COLUMNS})"
            f" ENGINE = MergeTree ORDER BY tuple() SETTINGS {settings}"
        )
        self._session.query(f"SYSTEM START MERGES bench.{table}")

    def settle(self) -> None:
        """No-op: ClickHouse has no log here."""

    def writer(self, table: str) -> Inserts:
        """Return a new session."""
        return Inserts(self._connect(), table)


class Inserts:
    """Writes with ``INSERT … FORMAT ArrowStream``."""

    def __init__(self, session: Any, table: str) -> None:
        self._session = session
        self._table = f"bench.{table}"
        self._insert = f"INSERT INTO {self._table}"

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """Return the batch as an Arrow IPC stream."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        encoded: bytes = sink.getvalue().to_pybytes()
        return encoded

    def write(self, encoded: bytes) -> None:
        insert = self._session.send_insert(self._insert, "ArrowStream")
        insert.append(encoded)
        insert.finish()

    def close(self) -> None:
        """Close the session; merges stop, so that they do not disturb the next measurement."""
        self._session.query(f"SYSTEM STOP MERGES {self._table}")
        self._session.close()


PEER = Peer(
    name="chdb",
    promise=Promise(
        "in a part of its table, files and folder fsynced",
        True,
        "to its process alone, at acknowledgement",
    ),
    open=Database,
    packages=("chdb",),
)
