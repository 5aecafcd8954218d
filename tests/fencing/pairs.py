"""Two daemons with one id and one store, and checks of the result.

Each daemon has its own data directory. A paused daemon cannot answer, so the tests read all its
answers before the pause.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq

from ingester.recovery import adopt as adopting
from persist.manifest import Manifest
from persist.store import ObjectStore, open_store
from tests.drivers.daemon import ROOT, Daemon
from tests.drivers.warm import warm
from tests.drivers.wire import (
    ARROW_AND_FLIGHT,
    DAY_US,
    NOON_US,
    Stream,
    Table,
    events,
    persist,
    writing,
)

NEVER = "1h"


@dataclass(frozen=True)
class Place:
    """The folder of the data directories of a test's daemons, and their shared store."""

    folder: Path
    url: str
    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment that a process needs to reach the store."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """The same for ``open_store``."""

    def store(self) -> ObjectStore:
        """The store, opened for this call."""
        return open_store(self.url, **self.storage_options)


Where = Path | Place
"""A folder alone means a store on local files, next to the data directories."""


def place_of(where: Where) -> Place:
    """The full place."""
    return where if isinstance(where, Place) else Place(where, store_url(where))


def start(where: Where, name: str, **settings: Any) -> Daemon:
    """A daemon with the shared id, on the shared store.

    Without the setting, a start refuses to replace a daemon whose log it does not have.
    """
    place = place_of(where)
    settings = {
        "persist__max_age": NEVER,
        "store": place.url,
        "recovery__accept_lost_log": "true",
        **settings,
    }
    return Daemon.start(place.folder / name, environment=place.environment, **settings)


def store_url(folder: Path) -> str:
    """The store of all daemons of a test on local files."""
    return f"file://{folder}/store"


def pause(daemon: Daemon) -> None:
    """Send SIGSTOP; returns when the process has stopped."""
    os.kill(daemon.pid, signal.SIGSTOP)
    while _state(daemon.pid) != "T":
        os.sched_yield()


def resume(daemon: Daemon) -> None:
    """Send SIGCONT."""
    os.kill(daemon.pid, signal.SIGCONT)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def ask_to_persist(daemon: Daemon, table: Table) -> None:
    """Make the daemon try to commit; it may be fenced and end during the call."""
    with fl.connect(daemon.flight) as client, suppress(*ARROW_AND_FLIGHT):
        persist(client, table, timeout_s=20)


def write(daemon: Daemon, table: Table, *batches: pa.RecordBatch) -> None:
    """Write batches of a new origin, sent at once; all are acknowledged before this returns."""
    with (
        fl.connect(daemon.flight) as client,
        Stream(client, writing(table, f"writer-{uuid4()}"), batches[0].schema) as stream,
    ):
        for sequence, batch in enumerate(batches):
            stream.send(batch, {"sequence": sequence})
        answers = stream.rest()
    assert [answer["accepted"] for answer in answers] == [True] * len(batches)


def on_day(day: int, first: int, count: int) -> pa.RecordBatch:
    """Rows as ``events`` makes them, all in one partition; day 0 is that of ``events``."""
    batch = events(first, count)
    times = pa.array([NOON_US + day * DAY_US] * count, batch.schema.field("time").type)
    return batch.set_column(0, "time", times)


def wal_command(
    name: str, data_dir: Path, *options: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``ingester wal NAME DIR``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("INGESTER_")}
    arguments = ["wal", name, str(data_dir), *options]
    done = warm().run(arguments, {**kept, **(environment or {})}, ROOT)
    return subprocess.CompletedProcess(
        arguments, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def adopt(where: Where, name: str) -> dict[Table, dict[str, Any]]:
    """Run ``ingester wal adopt``; its result for each table."""
    place = place_of(where)
    options = ("--store", place.url, "--json")
    done = wal_command("adopt", place.folder / name, *options, environment=place.environment)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    return {(one["namespace"], one["table"]): one for one in report["tables"]}


def adopted_rows(where: Where, name: str) -> int:
    """The number of rows that an adoption in this process adds; it refuses no table."""
    place = place_of(where)
    done = adopting.adopt(place.folder / name, place.store())
    assert not done.refused
    return sum(table.rows for table in done.tables)


def operations_in_log(data_dir: Path) -> int:
    """The count that ``ingester wal inspect`` reports."""
    done = wal_command("inspect", data_dir, "--json")
    assert done.returncode == 0, done.stderr
    return sum(segment["operations"] for segment in json.loads(done.stdout))


def files_of(where: Where, table: Table) -> list[bytes]:
    """The data files of the newest manifest version."""
    store = place_of(where).store()
    manifest = Manifest(store, *table)
    return [store.get(manifest.object_path(path)) for path in manifest.load().files]


def rows_in_files(where: Where, table: Table, column: str = "i") -> list[Any]:
    """A column of the newest version's files, sorted, read with pyarrow alone."""
    found = files_of(where, table)
    tables = [pq.ParquetFile(pa.BufferReader(data)).read(columns=[column]) for data in found]
    return sorted(pa.concat_tables(tables)[column].to_pylist()) if tables else []


@contextmanager
def fenced(daemon: Daemon) -> Iterator[None]:
    """The body ends the daemon with exit code 6 and a log line that names the remedy."""
    yield
    assert daemon.wait() == 6
    lines = [json.loads(line) for line in daemon.stderr_file.read_text().splitlines()]
    said = [line for line in lines if line["event"] == "fenced"]
    assert len(said) == 1
    assert said[0]["runbook"] == "fenced"
    assert f"ingester wal adopt {daemon.data_dir}" in said[0]["help"]
