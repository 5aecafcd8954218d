"""Tables "sql-…" of what SQL costs: round trips, others beside a heavy query, memory, and its end.

The heavy query is a cross join of the large table with itself that would take years.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from ingester.client import Client
from tests.bench.children import Child
from tests.bench.clients import Clients
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.requests import NAMESPACE, fill, persist
from tests.bench.rows import ROW_BYTES
from tests.bench.samples import Samples, percentile
from tests.bench.sampling import Every, PeakMemory
from tests.bench.sql.asking import (
    Asker,
    last_busy,
    wait_until,
    workers,
)
from tests.bench.sql.queries import BATCH_ROWS
from tests.bench.streams import PutJob
from tests.drivers.daemon import Daemon

ENDLESS = "SELECT max(a.load + b.load + c.range) FROM events AS a, events AS b, range(100000) AS c"
_SORT = (
    "SELECT max(n), max(time), max(host), max(region), max(temperature) FROM"
    " (SELECT row_number() OVER (ORDER BY load) AS n, * FROM events)"
)
_LEAST_MEMORY = 64 << 20
_OVERHEAD = 512 << 20
"""What a worker's process may use beyond ``sql.memory``."""
_PLANNED_S = 0.5
_WRITERS = 4
_ROWS = 1_000
_PER_S = 25.0
_LOOKUP = "host = 'host-07' and time < '2026-11-21T00:01:00Z'"
_LOOKUPS_PER_S = 20.0

Seconds = npt.NDArray[np.float64]


def round_trips(bench: Bench, daemon: Daemon) -> Table:
    """Measure the smallest query by one client."""
    table = Table("sql-round-trip", "SQL: SELECT 1, warm", ["queries", "p50", "p99"])
    calls = bench.effort.round_trips // 4
    found: list[Seconds] = []
    with Asker(daemon) as asker:
        asker.ask("SELECT 1")
        for repeat in range(bench.effort.repeats):
            bench.say(f"SELECT 1, repeat {repeat + 1}")
            found.append(np.array([asker.ask("SELECT 1").seconds for _ in range(calls)]))
    shares = {"p50": 0.5, "p99": 0.99}
    times = {name: _samples(found, share) for name, share in shares.items()}
    table.add(queries=calls * len(found), **times)
    for name, each in times.items():
        table.targets.append(Target(f"SELECT 1, {name}", 0.020, each, below=True))
    return table


def beside(bench: Bench, daemon: Daemon) -> Table:
    """Measure writers and look-ups without and with an endless query, in turns."""
    table = Table(
        "sql-beside",
        f"Beside SQL: {_WRITERS} writers, {_PER_S:g} batches of {_ROWS:,} rows a second each,"
        f" and {_LOOKUPS_PER_S:g} look-ups a second",
        ["who", "beside", "operations", "p50", "p99", "p99 of quiet"],
    )
    names = ("nothing", "an endless query")
    found: dict[tuple[str, str], list[Seconds]] = {
        (who, name): [] for who in ("writers", "look-ups") for name in names
    }
    with Clients(1) as clients, Client(daemon.flight) as client:
        _load(clients, client, daemon, 0.1)
        for repeat in range(bench.effort.repeats):
            for name in names if repeat % 2 else reversed(names):
                bench.say(f"writers and look-ups beside {name}, repeat {repeat + 1}")
                with nullcontext() if name == "nothing" else _endless(daemon):
                    taken = _load(clients, client, daemon, bench.effort.sql_beside_s)
                for who, seconds in taken.items():
                    found[who, name].append(seconds)
    for (who, name), each in found.items():
        p99, quiet = _samples(each, 0.99), _samples(found[who, "nothing"], 0.99)
        ratio = p99.over(quiet)
        table.rows.append(
            {
                "who": who,
                "beside": name,
                "operations": sum(map(len, each)),
                "p50": _samples(each, 0.5),
                "p99": p99,
                "p99 of quiet": ratio,
            }
        )
        if name != "nothing":
            what = f"p99 of {who} beside an endless query"
            table.targets.append(Target(what, 1.5, ratio, below=True))
    return table


def _load(clients: Clients, client: Client, daemon: Daemon, seconds: float) -> dict[str, Seconds]:
    """Return the latencies of writers and look-ups at a pace, from when each was due."""
    lookups: list[float] = []

    def look() -> None:
        began = time.monotonic()
        for number in range(max(2, int(seconds * _LOOKUPS_PER_S))):
            due = began + number / _LOOKUPS_PER_S
            time.sleep(max(0.0, due - time.monotonic()))
            client.query(NAMESPACE, "events", filter=_LOOKUP)
            lookups.append(time.monotonic() - due)

    job = PutJob(
        flight=daemon.flight,
        table="written",
        rows=_ROWS,
        streams=_WRITERS,
        seconds=max(seconds, 3 / _PER_S),
        per_s=_PER_S,
    )
    written = clients.write(job, look)
    return {"writers": written.latencies, "look-ups": np.array(lookups)}


@contextmanager
def _endless(daemon: Daemon) -> Iterator[Child]:
    """Run the endless query for a client process."""
    child = Child(_ask_endlessly, daemon.flight)
    try:
        with Client(daemon.flight) as client:
            wait_until(lambda: client.status()["sql"]["running"] > 0)
        yield child
    finally:
        child.end()


def _ask_endlessly(pipe: Connection, flight: str) -> None:
    with Client(flight) as client:
        client.sql(ENDLESS, namespace=NAMESPACE)


def limits(bench: Bench) -> Table:
    """Measure memory under a query that spills, and how long a query outlives its client."""
    rows = bench.effort.sql_rows
    memory = max(_LEAST_MEMORY, rows * ROW_BYTES // 2)
    table = Table(
        "sql-limits",
        f"SQL: {rows:,} rows in files, {memory >> 20} MiB for a query",
        ["what", "measured", "of sql.memory"],
    )
    with bench.daemon(sql__memory=memory) as daemon:
        fill(daemon, "events", rows, BATCH_ROWS)
        persist(daemon, "events")
        _spill(bench, table, daemon, memory)
        left = Samples(tuple(_outlives(bench, daemon) for _ in range(bench.effort.repeats)), "s")
    table.add(what="an endless query after its client's end", measured=left)
    table.targets.append(Target("a query after its client's end", 1.0, left, below=True))
    return table


def _spill(bench: Bench, table: Table, daemon: Daemon, memory: int) -> None:
    """Add the memory and the disk space of a sort that does not fit into the memory."""
    bench.say("a sort that spills")
    spilled, used = [0], [0]
    with Asker(daemon) as asker, Client(daemon.flight) as client:
        asker.ask("SELECT 1")
        (worker,) = workers(daemon)
        before = daemon.resident_bytes
        of_worker, of_daemon = PeakMemory(worker), PeakMemory(daemon.pid)

        def look() -> None:
            spilled.append(client.status()["sql"]["spilled_bytes"])
            # After a large query the daemon replaces the worker.
            with suppress(OSError, ValueError):
                used.append(of_worker.bytes)

        with Every(0.02, look):
            sort = asker.ask(_SORT)
    table.add(what="a sort of all rows", measured=Samples((sort.seconds,), "s"))
    measured = {
        "its bytes on disk": max(spilled),
        "memory of its worker": max(used),
        "memory that the daemon took meanwhile": max(0, of_daemon.bytes - before),
    }
    for what, nbytes in measured.items():
        share = Samples((nbytes / memory,), "x")
        table.rows.append(
            {"what": what, "measured": Samples((nbytes,), "B"), "of sql.memory": share}
        )
    peak = Samples((max(used),), "B")
    table.targets.append(Target("memory of a worker", memory + _OVERHEAD, peak, below=True))


def _outlives(bench: Bench, daemon: Daemon) -> float:
    """Return how long an endless query runs after its client was killed."""
    bench.say("a client that leaves")
    with _endless(daemon) as child:
        # By then it computes the join.
        time.sleep(_PLANNED_S)
        pids = workers(daemon)
        began = time.monotonic()
        os.kill(child.pid, signal.SIGKILL)
        return last_busy(pids) - began


def _samples(each: Sequence[Seconds], share: float) -> Samples:
    return Samples(tuple(percentile(seconds, share) for seconds in each), "s")
