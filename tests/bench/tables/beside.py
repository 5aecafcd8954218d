"""Table "beside": what a persist costs those who write meanwhile.

Law of this file: writers at a pace that leaves room, to one table, while another table of many rows
is persisted; and the same writers while nothing else runs.
Latencies count from the moment at which a batch was due.
"""

from __future__ import annotations

import threading

from tests.bench.asking import fill, persist
from tests.bench.clients import Clients, Written
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.rows import ROW_BYTES
from tests.bench.samples import Samples, percentile
from tests.bench.streams import PutJob
from tests.daemon import Daemon

NAME = "beside"
_WRITERS = 8
_ROWS = 1_000
_PER_S = 25.0
"""Batches of each writer: 200,000 rows/s together, a tenth of what two processors can persist."""


def run(bench: Bench) -> list[Table]:
    """Latencies without and with a persist, and their ratio."""
    rows = bench.effort.persist_rows
    table = Table(
        NAME,
        f"Beside a persist: {_WRITERS} writers, {_PER_S:g} batches of {_ROWS:,} rows a second each",
        ["beside", "p50", "p99", "p99.9", "p99 of quiet"],
        notes=[f"a persist: {rows:,} rows ({rows * ROW_BYTES >> 20} MiB) of another table"],
    )
    quiet: list[Written] = []
    busy: list[Written] = []
    with Clients(2) as clients, bench.daemon() as daemon:
        for repeat in range(bench.effort.repeats):
            bench.say(f"repeat {repeat + 1} of {bench.effort.repeats}")
            fill(daemon, f"t{repeat}", rows, 10_000)
            quiet.append(clients.write(_job(bench, daemon)))
            busy.append(_while_persisting(bench, daemon, clients, f"t{repeat}"))
    p99: dict[str, Samples] = {}
    for beside, found in (("nothing", quiet), ("a persist", busy)):
        p50, p99[beside], p999 = (
            Samples(tuple(percentile(w.latencies, share) for w in found), "s")
            for share in (0.5, 0.99, 0.999)
        )
        table.rows.append(
            {
                "beside": beside,
                "p50": p50,
                "p99": p99[beside],
                "p99.9": p999,
                "p99 of quiet": p99[beside].over(p99["nothing"]),
            }
        )
    ratio = p99["a persist"].over(p99["nothing"])
    table.targets.append(Target("p99 of writers while a persist runs", 2.0, ratio, below=True))
    return [table]


def _while_persisting(bench: Bench, daemon: Daemon, clients: Clients, table: str) -> Written:
    """Writers from the persist's beginning to its end, at least for a cell's time."""
    parts: list[Written] = []
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            parts.append(clients.write(_job(bench, daemon)))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        persist(daemon, table)
    finally:
        over.set()
        thread.join()
    return Written.together(parts)


def _job(bench: Bench, daemon: Daemon) -> PutJob:
    return PutJob(
        flight=daemon.flight,
        table="written",
        rows=_ROWS,
        streams=_WRITERS,
        seconds=max(0.2, bench.effort.cell_s),
        max_rows=1 << 50,
        pipelined=True,
        seed=0,
        per_s=_PER_S,
    )
