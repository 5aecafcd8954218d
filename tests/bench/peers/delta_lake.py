"""Delta Lake through ``deltalake``: an append, so one file and one log entry, per batch.

Law of this file: an append returns when its log entry has its name. Neither the file nor the entry
is synced: the rows outlive the process, not a power cut. Writers take turns within their process
and share a handle: of two at once, one would have to try again, at half the rate.
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
        """Make an empty table."""
        from deltalake import DeltaTable

        if table not in self._tables:
            self._tables[table] = DeltaTable.create(
                self._folder / table, pa.schema(SCHEMA), mode="ignore"
            )

    def settle(self) -> None:
        """There is no log."""

    def writer(self, table: str) -> Appends:
        """All writers have one handle, which knows the newest version."""
        return Appends(self._tables[table], self._turns)


class Appends:
    """``write_deltalake(mode="append")``."""

    def __init__(self, table: Any, turns: Turns) -> None:
        from deltalake import write_deltalake

        self._table = table
        self._turns = turns
        self._append = write_deltalake

    def encode(self, batch: pa.RecordBatch) -> Any:
        """A table: what the library takes without copying."""
        return pa.Table.from_batches([batch])

    def write(self, encoded: Any) -> None:
        """One append."""
        with self._turns:
            self._append(self._table, encoded, mode="append")

    def close(self) -> None:
        """Nothing is held open."""


PEER = Peer(
    name="deltalake",
    promise=Promise(
        "its file and log entry written and named, not synced", False, "to all, at acknowledgement"
    ),
    open=Tables,
    packages=("deltalake",),
)
