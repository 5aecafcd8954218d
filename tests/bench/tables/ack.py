"""Table "ack": acknowledgements at ``store``, compared with the same conditional PUTs.

The time of an acknowledgement depends on when the write comes: a log object is started at most
once per ``wal.store.interval``. Writers whose batches are due at random times, further apart than
the interval, wait for half of it and one PUT on average; a single one finds no object under way
and waits for its PUT only. A writer that sends each batch after the last answer gets one answer
per interval, and its latency is about the interval or the PUT, whichever is longer. Both are
shown; the target is for random times.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ingester.client import AckLevel, Client
from tests.bench.clients import Clients, Written
from tests.bench.effort import Bench
from tests.bench.puts import PutLoop
from tests.bench.report import Table, Target
from tests.bench.rows import ROW_BYTES, SCHEMA, make_batches
from tests.bench.samples import Samples, percentile
from tests.bench.streams import PutJob
from tests.drivers.s3_server import S3Server

NAME = "ack"
INTERVAL_S = 0.1
"""The default of ``wal.store.interval``."""
OBJECT_BYTES = 8 << 20
"""The default of ``wal.store.max_bytes``."""
IN_FLIGHT = 8
PER_S = 4.0
"""Batches of each writer, at least 125 ms apart."""
LEVELS: tuple[AckLevel, ...] = ("disk", "store")

Seconds = npt.NDArray[np.float64]


class Cell(NamedTuple):
    """A kind of write."""

    rows: int
    writers: int
    at_random: bool

    @property
    def object_bytes(self) -> int:
        """About the bytes of a log object."""
        batch = make_batches(self.rows, 1, 0)[0].serialize().size
        together = self.writers * PER_S * INTERVAL_S if self.at_random else self.writers
        return int(batch * max(1.0, together))


@dataclass(slots=True)
class Place:
    """A store, a daemon on it and the plain loop on it."""

    name: str
    flight: str
    loop: PutLoop
    set_delay: Callable[[], object] = lambda: None
    acks: dict[Cell, list[Written]] = field(default_factory=lambda: defaultdict(list))
    puts: dict[Cell, list[Seconds]] = field(default_factory=lambda: defaultdict(list))


def run(bench: Bench) -> list[Table]:
    """Measure latencies at each store, rates on local files, and ``disk`` writers beside."""
    with Clients() as clients, ExitStack() as stack:
        places = _places(bench, stack)
        for repeat in range(bench.effort.heavy_repeats):
            for place in places:
                place.set_delay()
                for cell in _cells(bench, place):
                    bench.say(f"repeat {repeat + 1}, {place.name}, {cell}")
                    _measure(bench, clients, place, cell)
        return [
            _latency_table(places),
            _rate_table(bench, clients, places[0]),
            _beside_table(bench, clients, places[0]),
        ]


def _cells(bench: Bench, place: Place) -> list[Cell]:
    """All kinds of writes; in the quick form only some."""
    cells = [
        Cell(rows, writers, at_random)
        for at_random in (True, False)
        for rows in (1, 10_000)
        for writers in (1, 8)
    ]
    return [cell for cell in cells if bench.effort.ack_everything or _main(cell, place)]


def _main(cell: Cell, place: Place) -> bool:
    if place.name != "files":
        return cell == Cell(1, 8, True)
    return cell in (Cell(1, 1, True), Cell(1, 8, True), Cell(10_000, 8, True), Cell(1, 1, False))


def _places(bench: Bench, stack: ExitStack) -> list[Place]:
    loop = PutLoop(f"file://{bench.new_folder()}")
    places = [Place("files", stack.enter_context(bench.daemon()).flight, loop)]
    server = stack.enter_context(S3Server.start())
    server.make_bucket("lake")
    far = stack.enter_context(bench.daemon(server.environment, store="s3://lake/daemon"))
    loop = PutLoop("s3://lake/loop", **server.storage_options)
    for delay_s in bench.effort.ack_delays_s:
        name = f"S3 server, {delay_s * 1e3:g} ms"
        places.append(Place(name, far.flight, loop, partial(server.delay, delay_s)))
    return places


def _measure(bench: Bench, clients: Clients, place: Place, cell: Cell) -> None:
    seconds = bench.effort.ack_s
    place.puts[cell].append(
        place.loop.latencies(cell.object_bytes, every_s=INTERVAL_S, seconds=seconds / 2)
    )
    job = PutJob(
        flight=place.flight,
        table=f"r{cell.rows}-w{cell.writers}",
        rows=cell.rows,
        streams=cell.writers,
        seconds=seconds,
        pipelined=cell.at_random,
        per_s=PER_S if cell.at_random else 0.0,
        at_random=cell.at_random,
        shipped=True,
        ack="store",
    )
    place.acks[cell].append(clients.write(job))


def _latency_table(places: list[Place]) -> Table:
    table = Table(
        NAME,
        f"Acknowledged at store, interval {INTERVAL_S * 1e3:g} ms, beside plain conditional PUTs",
        [
            "store",
            "rows",
            "writers",
            "writes",
            "p50",
            "p99",
            "PUT p50",
            "PUT p99",
            "p50 of interval/2 + 1.3 PUT",
        ],
        notes=[
            f"random: due {0.5 / PER_S:g} to {1.5 / PER_S:g} s apart, counted from then",
            "in turn: each after the last answer, so at most one per interval or PUT",
        ],
    )
    for place in places:
        for cell, acks in place.acks.items():
            _add_latency(table, place, cell, acks)
    return table


def _add_latency(table: Table, place: Place, cell: Cell, acks: list[Written]) -> None:
    p50, p99 = _percentiles([each.latencies for each in acks])
    put_p50, put_p99 = _percentiles(place.puts[cell])
    wanted = Samples(tuple(INTERVAL_S / 2 + 1.3 * put for put in put_p50.values), "s")
    ratio = p50.over(wanted)
    table.rows.append(
        {
            "store": place.name,
            "rows": cell.rows,
            "writers": cell.writers,
            "writes": "random" if cell.at_random else "in turn",
            "p50": p50,
            "p99": p99,
            "PUT p50": put_p50,
            "PUT p99": put_p99,
            "p50 of interval/2 + 1.3 PUT": ratio,
        }
    )
    if cell.at_random:
        what = f"{place.name}: {cell.rows:,} rows x {cell.writers} at store, p50"
        table.targets.append(Target(f"{what}, of interval/2 + 1.3 PUT", 1.0, ratio, below=True))


def _percentiles(found: list[Seconds]) -> tuple[Samples, Samples]:
    p50, p99 = (
        Samples(tuple(percentile(each, share) for each in found), "s") for share in (0.5, 0.99)
    )
    return p50, p99


def _rate_table(bench: Bench, clients: Clients, place: Place) -> Table:
    """Rates of large batches on local files by level, in turns with the plain loop."""
    found: dict[str, list[float]] = defaultdict(list)
    for turn in range(bench.effort.ack_turns):
        bench.say(f"rates, turn {turn + 1}")
        for level in sorted(LEVELS, reverse=turn % 2 == 1):
            job = _job_as_fast_as_it_goes(bench, place, Cell(10_000, 8, False))
            # A table that was written to at "store" once stays there, so each level has its own.
            job = replace(job, ack=level, table=f"rate-{level}")
            found[level].append(clients.write(job).rows_per_s)
        created = place.loop.bytes_per_s(
            OBJECT_BYTES, at_once=IN_FLIGHT, seconds=bench.effort.cell_s * 2
        )
        found["PUTs"].append(created / ROW_BYTES)
    rates = {name: Samples(tuple(values), "/s") for name, values in found.items()}
    table = Table(
        f"{NAME}-rate",
        "10,000 rows x 8 writers on local files, rows/s by level",
        ["level", "rows/s", "of disk", "of PUTs"],
        notes=[
            f"PUTs: {IN_FLIGHT} threads create objects of {OBJECT_BYTES >> 20} MiB,"
            f" {ROW_BYTES} bytes a row"
        ],
    )
    for name in ("disk", "store", "PUTs"):
        table.rows.append(
            {
                "level": name,
                "rows/s": rates[name],
                "of disk": rates[name].over(rates["disk"]),
                "of PUTs": rates[name].over(rates["PUTs"]),
            }
        )
    ratio = rates["store"].over(rates["disk"])
    table.targets.append(Target("10,000 rows x 8 at store on files, rows/s of disk", 0.7, ratio))
    return table


def _job_as_fast_as_it_goes(bench: Bench, place: Place, cell: Cell) -> PutJob:
    return PutJob(
        flight=place.flight,
        table=f"beside-r{cell.rows}",
        rows=cell.rows,
        streams=cell.writers,
        seconds=bench.effort.cell_s * 2,
        max_rows=bench.effort.cell_bytes // ROW_BYTES,
        pipelined=cell.rows > 1,
        shipped=True,
    )


def _beside_table(bench: Bench, clients: Clients, place: Place) -> Table:
    """Rates of ``disk`` writers with and without a ``store`` writer at the same daemon."""
    table = Table(
        f"{NAME}-beside",
        "Writers at disk, alone and beside a writer of one row at store",
        ["rows", "writers", "batches/s alone", "batches/s beside", "of alone"],
        notes=[f"beside: {PER_S:g} rows a second at store, each a log object"],
    )
    for cell in (Cell(1, 8, False), Cell(10_000, 8, False)):
        found: dict[bool, list[float]] = defaultdict(list)
        job = _job_as_fast_as_it_goes(bench, place, cell)
        for turn in range(bench.effort.ack_turns):
            bench.say(f"beside, {cell}, turn {turn + 1}")
            for beside in sorted((False, True), reverse=turn % 2 == 1):
                with _writer_beside(place.flight) if beside else nullcontext():
                    written = clients.write(job)
                found[beside].append(written.batches / written.seconds)
        alone, beside_it = (Samples(tuple(found[each]), "/s") for each in (False, True))
        ratio = beside_it.over(alone)
        table.rows.append(
            {
                "rows": cell.rows,
                "writers": cell.writers,
                "batches/s alone": alone,
                "batches/s beside": beside_it,
                "of alone": ratio,
            }
        )
        what = f"{cell.rows:,} rows x {cell.writers} at disk beside a writer at store, of alone"
        table.targets.append(Target(what, 0.97, ratio))
    return table


@contextmanager
def _writer_beside(flight: str) -> Iterator[None]:
    """Write a row at ``store`` at random times until the block ends."""
    over, random = threading.Event(), Random(1)
    [row] = make_batches(1, 1, 0)

    def write() -> None:
        with (
            Client(flight) as client,
            client.writer("bench", "beside", SCHEMA, ack="store") as writer,
        ):
            while not over.wait(random.uniform(0.5, 1.5) / PER_S):
                writer.write(row)

    with ThreadPoolExecutor(1) as threads:
        written = threads.submit(write)
        try:
            yield
        finally:
            over.set()
        written.result()
