"""All rows of a table, in each of the ways in which a user reads them.

Law of this file: the daemon is asked over Flight alone; the files are those of the manifest's
newest version, found without the daemon. Spark runs in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq

from persist.manifest import Manifest
from persist.store import open_store
from tests.crash.rows import NAMESPACE, TABLES

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


def read_daemon(endpoint: str, table: str, **scope: Any) -> pa.Table:
    """One consistent answer over everything, or over a ``scope`` of the ticket."""
    ticket = {"namespace": NAMESPACE, "table": table, "columns": COLUMNS, **scope}
    with fl.connect(endpoint) as client:
        options = fl.FlightCallOptions(timeout=TIMEOUT_S)
        rows: pa.Table = client.do_get(fl.Ticket(json.dumps(ticket).encode()), options).read_all()
    return rows


def files_of(store_url: str, table: str) -> list[Path]:
    """The files of the newest manifest version, of a store on local disk."""
    manifest = Manifest(open_store(store_url), NAMESPACE, table)
    root = Path(store_url.removeprefix("file://"))
    return [root / manifest.object_path(path) for path in manifest.load().files]


def read_files(store_url: str, table: str) -> pa.Table:
    """The rows of exactly the manifest's files, through pyarrow."""
    tables = [pq.ParquetFile(path).read(columns=COLUMNS) for path in files_of(store_url, table)]
    return pa.concat_tables(tables)


def read_spark(store_url: str) -> dict[str, pa.Table]:
    """The rows of each table's manifest files, through Spark; one session for all."""
    with tempfile.TemporaryDirectory(prefix="crash-spark-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.crash.spark", store_url, folder],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            raise SparkFailed(f"exit code {done.returncode}\n{done.stderr[-4000:]}")
        return {t.name: pq.read_table(Path(folder) / f"{t.name}.parquet") for t in TABLES}
