"""All rows of a table, in each of the ways in which a user reads them.

Law of this file: the daemon is asked over Flight alone; the files are those of the manifest's
newest version, found without the daemon. Spark runs in a process of its own.
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
    """The read with Spark did not end well; with the end of what it said."""


def call(endpoint: str, name: str, **body: Any) -> list[dict[str, Any]]:
    """The answers of one action of the daemon."""
    with fl.connect(endpoint) as client:
        action = fl.Action(name, json.dumps(body).encode())
        results = list(client.do_action(action, fl.FlightCallOptions(timeout=TIMEOUT_S)))
    return [json.loads(result.body.to_pybytes()) for result in results]


class Reader:
    """A client that reads, and writes down when it did and what it saw."""

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
        """One consistent answer over everything, over one writer's rows, or over a ``scope``.

        Raises:
            FlightError, ArrowException, OSError: it broke off; the history has what it had shown.
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
        """The rows of exactly the manifest's files, through pyarrow alone."""
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
        """Write a read down, which ends now."""
        last = now_s()
        times = {"t": sent, "first": first or last, "last": last}
        facts = {"by": self.name, "table": table, "how": how, "whole": whole, "only": only}
        self._history.add({"is": "read", **times, **facts, **shown(rows)})


class StoreAt(NamedTuple):
    """A store, and how it is reached."""

    url: str
    options: dict[str, Any]


def files_of(store: StoreAt, table: str) -> list[str]:
    """The files of the newest manifest version, found without the daemon: paths in the store."""
    manifest = Manifest(open_store(store.url, **store.options), NAMESPACE, table)
    return [manifest.object_path(path) for path in manifest.load().files]


def read_spark(stores: Sequence[StoreAt], tables: Sequence[str]) -> list[dict[str, pa.Table]]:
    """The rows of each table's manifest files in each store, through Spark; one session for all."""
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
