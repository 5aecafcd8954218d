"""All rows of a table, read in each way that users have.

The daemon is only queried over Flight. The files are those of the manifest's newest version,
found without the daemon. Spark runs in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq

from persist.manifest import Manifest
from persist.store import open_store
from tests.crash.history import History, now_s, shown
from tests.crash.rows import NAMESPACE, SCHEMA

ROOT = Path(__file__).resolve().parent.parent.parent
COLUMNS = ["time", "host", "writer", "n", "v"]
TIMEOUT_S = 120.0


class SparkFailed(Exception):
    """Raised when Spark fails to read, with the end of its output."""


def call(endpoint: str, name: str, **body: Any) -> list[dict[str, Any]]:
    """Return the answers of one action of the daemon."""
    with fl.connect(endpoint) as client:
        action = fl.Action(name, json.dumps(body).encode())
        results = list(client.do_action(action, fl.FlightCallOptions(timeout=TIMEOUT_S)))
    return [json.loads(result.body.to_pybytes()) for result in results]


class Reader:
    """A client that reads, and records the times and the rows of each read."""

    def __init__(self, history: History, name: str, timeout_s: float = TIMEOUT_S) -> None:
        self.name = name
        self._history = history
        self._timeout_s = timeout_s

    def read(
        self,
        endpoint: str,
        table: str,
        columns: Sequence[str] = COLUMNS,
        only: int | None = None,
        **scope: Any,
    ) -> pa.Table:
        """Read one consistent answer: all rows, one writer's rows, or a ``scope``.

        Raises:
            FlightError, ArrowException, OSError: The read was interrupted; the history has the
                rows it returned.
        """
        ticket = {"namespace": NAMESPACE, "table": table, "columns": list(columns), **scope}
        if only is not None:
            ticket["filter"] = [[["writer", "=", only]]]
        batches: list[pa.RecordBatch] = []
        sent, first, whole = now_s(), None, False
        try:
            with fl.connect(endpoint) as client:
                options = fl.FlightCallOptions(timeout=self._timeout_s)
                stream = client.do_get(fl.Ticket(json.dumps(ticket).encode()), options)
                for chunk in stream:
                    first = first or now_s()
                    batches.append(chunk.data)
                rows = pa.Table.from_batches(batches, stream.schema)
            whole = True
        finally:
            seen = rows if whole else (pa.Table.from_batches(batches) if batches else None)
            self.saw(table, seen, sent, first, whole=whole, only=only)
        return rows

    def read_files(self, store: StoreAt, table: str) -> pa.Table:
        """Read the rows of exactly the manifest's files, with pyarrow alone."""
        sent = now_s()
        opened = open_store(store.url, **store.options)
        tables = [
            pq.ParquetFile(pa.BufferReader(opened.get(path))).read(columns=COLUMNS)
            for path in files_of(store, table)
        ]
        rows = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
        self.saw(table, rows, sent, None, how="files")
        return rows

    def saw(
        self,
        table: str,
        rows: pa.Table | None,
        sent: float,
        first: float | None,
        *,
        how: str = "daemon",
        whole: bool = True,
        only: int | None = None,
    ) -> None:
        """Record a read that ends now."""
        last = now_s()
        times = {"t": sent, "first": first or last, "last": last}
        facts = {"by": self.name, "table": table, "how": how, "whole": whole, "only": only}
        self._history.add({"is": "read", **times, **facts, **shown(rows)})


class StoreAt(NamedTuple):
    """A store, and the options that reach it."""

    url: str
    options: dict[str, Any]


def files_of(store: StoreAt, table: str) -> list[str]:
    """Return the paths of the newest manifest version's files, found without the daemon."""
    manifest = Manifest(open_store(store.url, **store.options), NAMESPACE, table)
    return [manifest.object_path(path) for path in manifest.load().files]


def read_spark(stores: Sequence[StoreAt], tables: Sequence[str]) -> list[dict[str, pa.Table]]:
    """Read each table's manifest files in each store with Spark, in one session for all."""
    with tempfile.TemporaryDirectory(prefix="crash-spark-") as name:
        folder = Path(name)
        orders = [{"url": store.url, "options": store.options} for store in stores]
        done = subprocess.run(
            [sys.executable, "-m", "tests.crash.spark", str(folder), *tables],
            cwd=ROOT,
            input=json.dumps(orders),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            raise SparkFailed(f"exit code {done.returncode}\n{done.stderr[-4000:]}")
        return [
            {table: pq.read_table(folder / f"{index}-{table}.parquet") for table in tables}
            for index in range(len(stores))
        ]
