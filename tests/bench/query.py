"""Table "query": rows a second of a full scan, from buffers and from files.

Law of this file: the same rows, one reader, beside a server that sends them from memory without a
step of Python per batch. Every answer has to have every row.
"""

from __future__ import annotations

import json

import pyarrow.flight as fl

from tests.bench.clients import Clients
from tests.bench.effort import Bench
from tests.bench.report import Table
from tests.bench.rivals import Rival
from tests.bench.rows import SCHEMA, batches_of
from tests.bench.samples import Samples
from tests.bench.streams import ScanJob, ScanResult
from tests.daemon import Daemon

NAME = "query"
_BATCH_ROWS = 10_000
_TICKET = json.dumps({"namespace": "bench", "table": "scan"}).encode()


def run(bench: Bench) -> list[Table]:
    """Scan rates and the time to the first batch."""
    table = Table(
        NAME,
        f"Query: full scan of {bench.effort.scan_rows:,} rows by one reader",
        ["source", "rows/s", "first batch", "streaming server", "of streaming"],
        notes=["files: the daemon keeps some decoded row groups; the first scan finds none"],
    )
    rows = bench.effort.scan_rows
    with (
        Clients(1) as clients,
        Rival("stream", rows=rows, batch_rows=_BATCH_ROWS) as rival,
        bench.daemon() as daemon,
    ):
        total = fill(daemon, "scan", rows, _BATCH_ROWS)
        theirs = ScanJob(rival.flight, b"")
        mine = ScanJob(daemon.flight, _TICKET)
        _add(bench, table, clients, "buffers", (mine, theirs), total)
        persist(daemon, "scan")
        _add(bench, table, clients, "files", (mine, theirs), total)
    return [table]


def fill(daemon: Daemon, table: str, rows: int, batch_rows: int) -> int:
    """Write the rows in batches down one stream; how many there are."""
    total = 0
    with fl.connect(daemon.flight) as client:
        path = fl.FlightDescriptor.for_path("bench", table)
        writer, answers = client.do_put(path, SCHEMA)
        for batch in batches_of(rows, batch_rows, seed=0):
            writer.write_batch(batch)
            if answers.read() is None:
                writer.close()
                raise AssertionError("the server ended the stream")
            total += batch.num_rows
        writer.done_writing()
        writer.close()
    return total


def persist(daemon: Daemon, table: str) -> None:
    """Return when the table's rows are committed."""
    body = json.dumps({"namespace": "bench", "table": table, "timeout_s": 300}).encode()
    with fl.connect(daemon.flight) as client:
        list(client.do_action(fl.Action("persist", body)))


def _add(
    bench: Bench,
    table: Table,
    clients: Clients,
    source: str,
    jobs: tuple[ScanJob, ScanJob],
    total: int,
) -> None:
    found: tuple[list[ScanResult], list[ScanResult]] = ([], [])
    for repeat in range(bench.effort.repeats):
        bench.say(f"{source}, repeat {repeat + 1} of {bench.effort.repeats}")
        for job, results in zip(jobs, found, strict=True):
            result = clients.scan(job)
            if result.rows != total:
                raise AssertionError(f"{result.rows} rows came, {total} are there")
            results.append(result)
    mine, theirs = (
        Samples(tuple(result.rows / result.seconds for result in results), "/s")
        for results in found
    )
    table.add(
        source=source,
        rows__s=mine,
        first_batch=Samples(tuple(result.first_s for result in found[0]), "s"),
        streaming_server=theirs,
        of_streaming=mine.over(theirs),
    )
