"""Tables "growth-…": costs at 1, 10 and 100 times one dimension, with the exponent.

Each dimension has its own daemon, which grows from one size to the next; the same operations are
timed at each size. The exponent is the slope of the logarithm of the cost over the logarithm of
the size: 0 for a cost that does not depend on the size, 1 for one that grows in proportion.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from tests.bench.clients import Clients
from tests.bench.effort import Bench
from tests.bench.report import Table
from tests.bench.requests import create_table, persist, send, ticket
from tests.bench.rows import SCHEMA, batches_of, in_hour, make_batches
from tests.bench.samples import Samples, percentile
from tests.bench.scans import ScanJob
from tests.bench.streams import PutJob
from tests.drivers.daemon import Daemon

NAME = "growth"
_BATCH_ROWS = 1_000
_QUERIES = 5
_POINT = [[["region", "=", "iad"], ["host", "=", "host-07"], ["load", "<", 0.001]]]

Grow = Callable[["_Subject", int, int], None]


@dataclass(slots=True)
class _Subject:
    """A daemon that grows, and the resources that are held open in it."""

    daemon: Daemon
    clients: Clients
    held: ExitStack


@dataclass(frozen=True, slots=True)
class Dimension:
    """What grows, its smallest size, and the step from one size to the next."""

    what: str
    base: int
    grow: Grow
    restarts: bool = True


def run(bench: Bench) -> Iterator[Table]:
    """Yield one table for each dimension as it is done."""
    dimensions = DIMENSIONS if bench.effort.growth else ()
    return (measure(bench, dimension) for dimension in dimensions)


def measure(bench: Bench, dimension: Dimension) -> Table:
    """Measure the costs at each size of one dimension."""
    name = dimension.what.replace(" ", "-")
    table = Table(
        f"growth-{name}",
        f"Growth: by {dimension.what}",
        ["cost", *(f"{times}x" for times in bench.effort.growth), "exponent"],
        notes=[f"1x: {dimension.base:,} {dimension.what}"],
    )
    costs: dict[str, list[float]] = {}
    with Clients(1) as clients, bench.daemon() as first, ExitStack() as held:
        subject = _Subject(first, clients, held)
        before = 0
        for times in bench.effort.growth:
            size = dimension.base * times
            bench.say(f"{size:,} {dimension.what}")
            dimension.grow(subject, before, size)
            before = size
            for cost, seconds in _costs(bench, subject, dimension).items():
                costs.setdefault(cost, []).append(seconds)
        subject.daemon.kill()
    logs = np.log([float(times) for times in bench.effort.growth])
    for cost, seconds_by_size in costs.items():
        slope = float(np.polyfit(logs, np.log(seconds_by_size), 1)[0])
        cells = zip(bench.effort.growth, seconds_by_size, strict=True)
        row = {f"{times}x": Samples((seconds,), "s") for times, seconds in cells}
        table.rows.append({"cost": cost, **row, "exponent": f"{slope:+.2f}"})
    return table


def _costs(bench: Bench, subject: _Subject, dimension: Dimension) -> dict[str, float]:
    """Return the seconds of an acknowledgement, of queries, and of a start."""
    flight = subject.daemon.flight
    job = PutJob(flight, "grown", _BATCH_ROWS, 1, bench.effort.cell_s, 1 << 40, False, seed=1)
    latencies = subject.clients.write(job).latencies
    costs = {
        "acknowledgement, p50": percentile(latencies, 0.5),
        "acknowledgement, p99": percentile(latencies, 0.99),
        "query of one small table": _query_s(subject, "small"),
        "filtered query of the table": _query_s(subject, "grown", filter=_POINT),
    }
    if dimension.restarts:
        subject.daemon.kill()
        began = time.monotonic()
        subject.daemon = subject.daemon.again()
        costs["start after kill -9"] = time.monotonic() - began
    return costs


def _query_s(subject: _Subject, table: str, **wanted: Any) -> float:
    job = ScanJob(subject.daemon.flight, ticket(table, **wanted))
    return float(np.median([subject.clients.scan(job).seconds for _ in range(_QUERIES)]))


def _both_tables(subject: _Subject, before: int) -> None:
    """Create the small table, and the one that is written to and queried."""
    if not before:
        for table in ("small", "grown"):
            send(subject.daemon.flight, table, make_batches(100, 1, seed=2))


def _rows(subject: _Subject, before: int, size: int) -> None:
    _both_tables(subject, before)
    send(subject.daemon.flight, "grown", batches_of(size - before, 10_000, seed=3))


def _partitions(subject: _Subject, before: int, size: int, *, files: bool = False) -> None:
    flight = subject.daemon.flight
    if not before:
        create_table(flight, "grown", partition_by=["hour(time)"])
    _both_tables(subject, before)
    [row] = make_batches(1, 1, seed=4, within_us=1_000)
    for first in range(before, size, 100):
        rows = [in_hour(row, hour) for hour in range(first, min(first + 100, size))]
        send(flight, "grown", pa.Table.from_batches(rows).combine_chunks().to_batches())
    if files:
        persist(subject.daemon, "grown")


def _tables(subject: _Subject, before: int, size: int) -> None:
    _both_tables(subject, before)
    [batch] = make_batches(1, 1, seed=5)
    for number in range(before, size):
        send(subject.daemon.flight, f"t{number}", [batch])


def _origins(subject: _Subject, before: int, size: int) -> None:
    _both_tables(subject, before)
    [batch] = make_batches(1, 1, seed=6)
    with fl.connect(subject.daemon.flight) as client:
        for number in range(before, size):
            command = {"type": "write", "namespace": "bench", "table": "grown",
                       "origin": f"origin-{number}"}  # fmt: skip
            descriptor = fl.FlightDescriptor.for_command(json.dumps(command).encode())
            writer, answers = client.do_put(descriptor, SCHEMA)
            writer.write_with_metadata(batch, b'{"sequence": 1}')
            assert answers.read() is not None
            writer.done_writing()
            writer.close()


def _open_queries(subject: _Subject, before: int, size: int) -> None:
    _both_tables(subject, before)
    if not before:
        # Larger than a client connection's buffers, so that answers stay open.
        send(subject.daemon.flight, "read", batches_of(200_000, 10_000, seed=7))
    for _ in range(before, size):
        client = subject.held.enter_context(fl.connect(subject.daemon.flight))
        reader = client.do_get(fl.Ticket(ticket("read")))
        reader.read_chunk()
        subject.held.callback(reader.cancel)


DIMENSIONS = (
    Dimension("rows in buffers", 50_000, _rows),
    Dimension("live partitions", 100, _partitions),
    Dimension("tables", 10, _tables),
    Dimension("files", 100, partial(_partitions, files=True)),
    Dimension("origins", 100, _origins),
    Dimension("open queries", 1, _open_queries, restarts=False),
)
