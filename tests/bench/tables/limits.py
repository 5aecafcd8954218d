"""Table "limits": this machine's maximum with the same rows, one step at a time.

One thread, without any code of the ingester. These numbers explain the other tables, so they are
measured in the same run.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.clients import Clients, Written
from tests.bench.disk import AppendFile
from tests.bench.effort import Bench
from tests.bench.report import Table
from tests.bench.rivals import Rival
from tests.bench.rows import make_batches
from tests.bench.samples import Samples, percentile
from tests.bench.streams import PutJob

NAME = "limits"
_ROWS = 10_000
_BATCHES = 50


def run(bench: Bench) -> list[Table]:
    """Measure the rates of single steps, and the two latencies that bound a write from below."""
    batches = make_batches(_ROWS, _BATCHES, seed=0)
    messages = [batch.serialize() for batch in batches]
    table = Table(
        NAME,
        "Limits: one thread, batches of 10,000 rows",
        ["step", "rows/s", "bytes/s", "seconds"],
        notes=[f"a row has {batches[0].nbytes / _ROWS:.0f} bytes in memory"],
    )
    nbytes = sum(message.size for message in messages)
    for name, step in (
        ("memory copy into fresh pages", lambda: [bytes(memoryview(m)) for m in messages]),
        ("CRC-32C", lambda: [crc32c.crc32c(memoryview(m)) for m in messages]),
        ("Arrow IPC encode", lambda: [batch.serialize() for batch in batches]),
        ("pyarrow write_table, zstd", lambda: _parquet(batches)),
    ):
        _add_rate(bench, table, name, step, nbytes)
    _add_append(bench, table, batches)
    _add_round_trip(bench, table)
    return [table]


def _add_rate(
    bench: Bench, table: Table, name: str, step: Callable[[], object], nbytes: int
) -> None:
    bench.say(name)
    seconds = []
    for _ in range(bench.effort.repeats + 1):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    del seconds[0]  # Warms up.
    rows = _ROWS * _BATCHES
    table.add(
        step=name,
        rows__s=Samples(tuple(rows / each for each in seconds), "/s"),
        bytes__s=Samples(tuple(nbytes / each for each in seconds), "B/s"),
    )


def _parquet(batches: list[pa.RecordBatch]) -> int:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_batches(batches), sink, compression="zstd")
    return sink.tell()


def _add_append(bench: Bench, table: Table, batches: list[pa.RecordBatch]) -> None:
    bench.say("append + fdatasync")
    effort = bench.effort
    many: list[Written] = []
    one: list[Written] = []
    rows = make_batches(1, 16, seed=0)
    with AppendFile(bench.folder, effort.append_file_bytes) as file:
        for _ in range(effort.repeats):
            many.append(file.append(batches, together=8, seconds=effort.cell_s))
            one.append(file.append(rows, together=1, seconds=effort.cell_s))
    row_bytes = batches[0].serialize().size / _ROWS
    table.add(
        step="append + fdatasync, 8 batches each",
        rows__s=Samples(tuple(run.rows_per_s for run in many), "/s"),
        bytes__s=Samples(tuple(run.rows_per_s * row_bytes for run in many), "B/s"),
        seconds=Samples(tuple(percentile(run.latencies, 0.5) for run in many), "s"),
    )
    table.add(
        step="append + fdatasync, one row",
        seconds=Samples(tuple(percentile(run.latencies, 0.5) for run in one), "s"),
    )


def _add_round_trip(bench: Bench, table: Table) -> None:
    bench.say("Flight round trip")
    medians = []
    with Clients(1) as clients, Rival("discard") as rival:
        for _ in range(bench.effort.repeats):
            written = clients.write(
                PutJob(rival.flight, "t", 1, 1, bench.effort.cell_s, 1 << 40, False, seed=0)
            )
            medians.append(float(np.median(written.latencies)))
    table.add(step="Flight round trip, one row", seconds=Samples(tuple(medians), "s"))
