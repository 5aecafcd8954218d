"""Delta Lake through ``deltalake``: an append, so one file and one log entry, per batch.

An append returns when its log entry has its name. Neither the file nor the entry is synced: the
rows survive a process crash, but not a power cut. The writers of a process take turns and share
a handle: of two concurrent appends one would have to be retried, which halves the rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.bench.peers.peer import Peer, Promise
from tests.bench.peers.turns import Turns
from tests.bench.rows import SCHEMA


class Tables:
    """The tables of a folder."""

    def __init__(self, folder: str) -> None:
        import deltalake

        self.version = deltalake.__version__
        self._folder = Path(folder)
        self._tables: dict[str, Any] = {}
        self._turns = Turns()

    def create(self, table: str) -> None:
        """Create an empty table."""
        from deltalake import DeltaTable

        if table not in self._tables:
            self._tables[table] = DeltaTable.create(
                self._folder / table, pa.schema(SCHEMA), mode="ignore"
            )

    def settle(self) -> None:
        """No-op: Delta Lake has no log to flush."""

    def writer(self, table: str) -> Appends:
        """Return a writer; all writers share one handle, which knows the newest version."""
        return Appends(self._tables[table], self._turns)


class Appends:
    """Writes with ``write_deltalake(mode="append")``."""

    def __init__(self, table: Any, turns: Turns) -> None:
        from deltalake import write_deltalake

        self._table = table
        self._turns = turns
        self._append = write_deltalake

    def encode(self, batch: pa.RecordBatch) -> Any:
        """Return a pyarrow table, which the library takes without copying."""
        return pa.Table.from_batches([batch])

    def write(self, encoded: Any) -> None:
        with self._turns:
            self._append(self._table, encoded, mode="append")

    def close(self) -> None:
        """No-op: there is nothing to close."""


PEER = Peer(
    name="deltalake",
    promise=Promise(
        "its file and log entry written and named, not synced", False, "to all, at acknowledgement"
    ),
    open=Tables,
    packages=("deltalake",),
)
