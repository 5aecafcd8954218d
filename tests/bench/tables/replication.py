"""Tables "replication…": row changes, folding them, and the bytes that a flush of them writes.

The baseline is Delta Lake's merge of the same changes into the same table, in its own process,
if installed. When a merge returns, its changes are in files. A transaction of the daemon is in
files after the flush; before that it is acknowledged, durable and readable.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ingester.client import Client
from ingester.client.sync_stream import SyncColumn, SyncStream
from ingester.replication.fold import Changes, fold
from tests.bench.changes import Message, base_rows, messages, some_keys, updates
from tests.bench.effort import Bench
from tests.bench.peers.installing import Installation, Missing
from tests.bench.report import Table, Target
from tests.bench.requests import ask
from tests.bench.requests import persist as persist_now
from tests.bench.samples import Samples
from tests.drivers.daemon import ROOT, Daemon

NAME = "replication"
_NAMESPACE = "bench"
_KEYED = {"replication__max_lag": "1d", "persist__target_file_bytes": "16MiB"}
_MERGE_WITHIN_S = 900
TOUCHED = 0.01


def run(bench: Bench) -> list[Table]:
    """Measure rates by kind, the rate of folding, and flushes by the size of the table."""
    return [_kinds(bench), _folding(bench), _flushes(bench)]


def _kinds(bench: Bench) -> Table:
    rows, count = bench.effort.replication_rows, bench.effort.replication_messages
    table_rows = rows * count
    table = Table(
        NAME,
        f"Replication: changes of a table of {table_rows:,} rows, {rows:,} in a transaction",
        ["kind", "acknowledged/s", "in files/s", "deltalake/s", "of deltalake"],
        notes=["deltalake: one merge a transaction; here one flush for all of them"],
    )
    for kind in bench.effort.replication_kinds:
        bench.say(kind)
        changes = messages(kind, table_rows, count, rows)
        acknowledged: list[float] = []
        in_files: list[float] = []
        theirs: list[float] = []
        for _ in range(bench.effort.replication_repeats):
            with bench.daemon(**_KEYED) as daemon, Client(daemon.flight) as client:
                stream = _filled(client, daemon, base_rows(table_rows))
                began = time.perf_counter()
                for number, message in enumerate(changes):
                    _send(stream, message, number + 2)
                acknowledged.append(rows * count / (time.perf_counter() - began))
                persist_now(daemon, "t")
                in_files.append(rows * count / (time.perf_counter() - began))
            merged = _merged(bench, kind, table_rows, count, rows)
            if merged is not None:
                theirs.append(rows * count / sum(merged["seconds"]))
        ours = Samples(tuple(in_files), "/s")
        delta = Samples(tuple(theirs), "/s") if theirs else None
        table.add(
            kind=kind,
            acknowledged__s=Samples(tuple(acknowledged), "/s"),
            in_files__s=ours,
            deltalake__s=delta,
            of_deltalake=None if delta is None else ours.over(delta),
        )
        if delta is not None and kind == "mixed":
            table.targets.append(
                Target("mixed changes in files, of deltalake", 1.0, ours.over(delta))
            )
    return table


def _folding(bench: Bench) -> Table:
    table = Table(
        f"{NAME}-folding",
        "Replication: changes folded to one per key, in one thread",
        ["changes", "keys", "changes/s"],
    )
    count = bench.effort.replication_rows * bench.effort.replication_messages
    for keys in (max(2, count // 100), count):
        random = np.random.default_rng(0)
        side = [random.integers(0, keys, count) for _ in range(2)]
        old, new = (
            pa.RecordBatch.from_arrays([pa.array(each, mask=random.random(count) < 0.2)], ["id"])
            for each in side
        )
        values = pa.RecordBatch.from_pydict({"v": random.random(count)})
        changes = Changes(old, new, values, {"v": random.random(count) < 0.5})
        rates = []
        for _ in range(bench.effort.replication_repeats):
            began = time.perf_counter()
            fold(changes)
            rates.append(count / (time.perf_counter() - began))
        table.add(changes=count, keys=keys, changes__s=Samples(tuple(rates), "/s"))
    return table


def _flushes(bench: Bench) -> Table:
    table = Table(
        f"{NAME}-flushes",
        f"Replication: a flush that touches {TOUCHED:.0%} of a table's keys, all over it",
        ["rows", "files", "seconds", "bytes written", "deltalake", "deltalake written", "faster"],
    )
    for rows in bench.effort.replication_tables:
        bench.say(f"flush into {rows:,} rows")
        touched = updates(some_keys(rows, TOUCHED))
        with bench.daemon(**_KEYED) as daemon, Client(daemon.flight) as client:
            stream = _filled(client, daemon, base_rows(rows))
            files = ask(daemon.flight, "describe_table", "t")["persisted"]["files"]
            before = _written(daemon)
            began = time.perf_counter()
            _send(stream, touched, 2)
            persist_now(daemon, "t")
            seconds = time.perf_counter() - began
            written = _written(daemon) - before
        merged = _merged(bench, "touch", rows, 1, len(touched.old))
        table.add(
            rows=rows,
            files=files,
            seconds=Samples((seconds,), "s"),
            bytes_written=Samples((float(written),), "B"),
            deltalake=None if merged is None else Samples((merged["seconds"][0],), "s"),
            deltalake_written=None if merged is None else Samples((merged["written"][0],), "B"),
            faster=None if merged is None else Samples((merged["seconds"][0] / seconds,), "x"),
        )
    return table


def _filled(client: Client, daemon: Daemon, base: pa.Table) -> SyncStream:
    """A table with these rows in files, and its client."""
    client.create_table(_NAMESPACE, "t", base.schema, primary_key=["id"], partition_by=[])
    client.write(_NAMESPACE, "t", base)
    persist_now(daemon, "t")
    return client.sync(_NAMESPACE, "source")


def _send(stream: SyncStream, message: Message, sequence: int) -> None:
    keys = [pa.array(side, mask=side < 0) for side in (message.old, message.new)]
    names = message.values.schema.names
    columns = [SyncColumn(role, "id") for role in ("old_pk", "new_pk")]
    columns += [SyncColumn("value", name) for name in names]
    batch = pa.RecordBatch.from_arrays(
        [*keys, *message.values.columns], names=[str(n) for n in range(len(columns))]
    )
    answer = stream.send("t", columns, batch, begin=True, sequence=sequence)
    assert answer.accepted


def _written(daemon: Daemon) -> int:
    """Return the bytes of data files that the daemon has written."""
    folder = daemon.data_dir / "store" / _NAMESPACE / "t" / "v1" / "data"
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


def _merged(bench: Bench, kind: str, table_rows: int, count: int, rows: int) -> Any:
    """Measure a merge of the same changes; None if Delta Lake is not installed."""
    installation = Installation(
        bench.kept / "peers", installs=bench.effort.peer_installs, say=bench.say
    )
    try:
        python: Path = installation.python_with(("deltalake",))
    except Missing as exc:
        bench.say(f"no deltalake: {exc}")
        return None
    numbers = [str(each) for each in (table_rows, count, rows)]
    command = [str(python), "-m", "tests.bench.peers.merging"]
    done = subprocess.run(
        [*command, str(bench.new_folder() / "delta"), kind, *numbers],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=_MERGE_WITHIN_S,
    )
    return json.loads(done.stdout)


__all__ = ["NAME", "run"]
