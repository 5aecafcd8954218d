"""Iceberg through ``pyiceberg`` with the SQLite catalog: an append, so one snapshot, per batch.

An append returns when the catalog points to the new metadata. SQLite syncs this pointer. The
files that it points to are not synced, so the rows survive a process crash, but not a power cut.
The writers of a process take turns: of two concurrent appends one would be refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.bench.peers.peer import Peer, Promise
from tests.bench.peers.turns import Turns
from tests.bench.rows import SCHEMA


class Catalog:
    """A catalog and the tables of a folder."""

    def __init__(self, folder: str) -> None:
        import pyiceberg
        from pyiceberg.catalog.sql import SqlCatalog

        self.version = pyiceberg.__version__
        path = Path(folder).resolve()
        self._catalog = SqlCatalog(
            "bench", uri=f"sqlite:///{path}/catalog.sqlite", warehouse=f"file://{path}/warehouse"
        )
        self._catalog.create_namespace_if_not_exists("bench")
        self._tables: dict[str, Any] = {}
        self._turns = Turns()

    def create(self, table: str) -> None:
        """Create an empty table, without partitions or order."""
        self._tables[table] = self._catalog.create_table_if_not_exists(
            f"bench.{table}", schema=SCHEMA
        )

    def settle(self) -> None:
        """No-op: Iceberg has no log to flush."""

    def writer(self, table: str) -> Appends:
        """Return a writer; all writers share one table, which knows the newest metadata."""
        return Appends(self._tables[table], self._turns)


class Appends:
    """Writes with ``Table.append``."""

    def __init__(self, table: Any, turns: Turns) -> None:
        self._table = table
        self._turns = turns

    def encode(self, batch: pa.RecordBatch) -> Any:
        """Return a pyarrow table, which the library takes."""
        return pa.Table.from_batches([batch])

    def write(self, encoded: Any) -> None:
        with self._turns:
            self._table.append(encoded)

    def close(self) -> None:
        """No-op: there is nothing to close."""


PEER = Peer(
    name="pyiceberg",
    promise=Promise(
        "its files written, not synced; the catalog's pointer to them synced",
        False,
        "to all, at acknowledgement",
    ),
    open=Catalog,
    packages=("pyiceberg[sql-sqlite]",),
)
