"""Table "query": rows a second of a full scan, from buffers and from files.

The same rows and one reader; the baseline is a server that sends the rows from memory without
Python code per batch. Every answer must contain every row.
"""

from __future__ import annotations

from tests.bench.clients import Clients
from tests.bench.effort import Bench, cpu_seconds
from tests.bench.report import Table, Target
from tests.bench.requests import fill, persist, ticket
from tests.bench.rivals import Rival
from tests.bench.samples import Samples
from tests.bench.scans import ScanJob, ScanResult
from tests.drivers.daemon import Daemon

NAME = "query"
_BATCH_ROWS = 10_000
_TICKET = ticket("scan")


def run(bench: Bench) -> list[Table]:
    """Measure scan rates and the time to the first batch."""
    table = Table(
        NAME,
        f"Query: full scan of {bench.effort.scan_rows:,} rows by one reader",
        ["source", "rows/s", "first batch", "CPU s/M rows", "limit", "limit's rows/s", "of limit"],
        notes=[
            "stream: a Flight server that sends the same batches from memory",
            "dataset: a Flight server that sends what pyarrow.dataset reads of the same files",
        ],
    )
    rows = bench.effort.scan_rows
    with Clients(1) as clients, bench.daemon() as daemon:
        total = fill(daemon, "scan", rows, _BATCH_ROWS)
        with Rival("stream", rows=rows, batch_rows=_BATCH_ROWS) as rival:
            ratio = _add(bench, table, clients, ("buffers", daemon), ("stream", rival), total)
            table.targets.append(Target("scan of buffers, of a streaming server", 0.7, ratio))
        persist(daemon, "scan")
        folder = daemon.data_dir / "store"
        with Rival("dataset", folder=str(folder)) as rival:
            ratio = _add(bench, table, clients, ("files", daemon), ("dataset", rival), total)
            table.targets.append(Target("scan of files, of pyarrow.dataset", 0.7, ratio))
    return [table]


def _add(
    bench: Bench,
    table: Table,
    clients: Clients,
    mine: tuple[str, Daemon],
    limit: tuple[str, Rival],
    total: int,
) -> Samples:
    """Add a row to the table and return the ratio."""
    (source, daemon), (name, rival) = mine, limit
    jobs = (ScanJob(daemon.flight, _TICKET), ScanJob(rival.flight, b""))
    found: tuple[list[ScanResult], list[ScanResult]] = ([], [])
    cpu = []
    repeats = bench.effort.scan_repeats + 1
    for repeat in range(repeats):
        bench.say(f"{source}, repeat {repeat + 1} of {repeats}")
        before = cpu_seconds(daemon.pid)
        results = [clients.scan(job) for job in jobs]
        for result, kept in zip(results, found, strict=True):
            if result.rows != total:
                raise AssertionError(f"{result.rows} rows came, {total} are there")
            if repeat:  # the first one warms both up: imports, connections, the disk's cache
                kept.append(result)
        cpu.append((cpu_seconds(daemon.pid) - before) / total * 1e6)
    rates, theirs = (
        Samples(tuple(result.rows / result.seconds for result in results), "/s")
        for results in found
    )
    ratio = rates.over(theirs)
    table.add(
        source=source,
        rows__s=rates,
        first_batch=Samples(tuple(result.first_s for result in found[0]), "s"),
        CPU_s__M_rows=Samples(tuple(cpu[1:]), "x"),
        limit=name,
        **{"limit's_rows__s": theirs},
        of_limit=ratio,
    )
    return ratio
