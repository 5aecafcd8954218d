"""Table "tracing": processor time of a daemon per batch, by tracing level.

All parties receive the same batches from the same code, in an order that rotates from repeat to
repeat. The receiver of spans runs in this process, so that its time is not the daemon's.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import ExitStack
from typing import NamedTuple

from tests.bench.clients import Clients
from tests.bench.effort import Bench, cpu_seconds
from tests.bench.report import Table, Target
from tests.bench.rows import ROW_BYTES
from tests.bench.samples import Samples
from tests.bench.streams import PutJob
from tests.drivers.daemon import Daemon
from tests.drivers.receiver import Receiver, otlp_receiver

NAME = "tracing"
QUIET_S = 0.25
PARTIES = {"off": None, "one of 100": "0.01", "each": "1"}


class Cell(NamedTuple):
    """One combination of batch size and writers."""

    rows: int
    writers: int
    pipelined: bool


CELLS = (Cell(1, 8, True), Cell(1, 1, False), Cell(10_000, 8, True))


def run(bench: Bench) -> list[Table]:
    """Measure each party and its cost compared with the party that traces nothing."""
    effort = bench.effort
    spent = defaultdict[tuple[Cell, str], list[float]](list)
    with Clients() as clients, otlp_receiver() as receiver:
        for repeat in range(effort.repeats):
            with ExitStack() as stack:
                daemons = {name: _daemon(bench, stack, name, receiver.endpoint) for name in PARTIES}
                for cell in CELLS:
                    bench.say(f"repeat {repeat + 1} of {effort.repeats}, {cell}")
                    for party in sorted(PARTIES, reverse=repeat % 2 == 1):
                        daemon = daemons[party]
                        before = cpu_seconds(daemon.pid)
                        written = clients.write(_job(bench, cell, daemon.flight))
                        _await_quiet(receiver)
                        used_s = cpu_seconds(daemon.pid) - before
                        spent[cell, party].append(used_s / written.batches)
            receiver.spans.clear()
    table = Table(
        "tracing",
        "Processor time of a batch, by how much is traced",
        ["rows", "writers", "off", "one of 100", "of off", "each", "each of off"],
        notes=["of the daemon, all of its threads; the receiver of spans takes all of them"],
    )
    for cell in CELLS:
        seconds = {party: Samples(tuple(spent[cell, party]), "s") for party in PARTIES}
        ratio = seconds["one of 100"].over(seconds["off"])
        table.add(
            rows=cell.rows,
            writers=cell.writers,
            off=seconds["off"],
            one_of_100=seconds["one of 100"],
            of_off=ratio,
            each=seconds["each"],
            each_of_off=seconds["each"].over(seconds["off"]),
        )
        kind = "pipelined" if cell.pipelined else "one by one"
        what = f"one of 100 traced, {cell.rows:,}-row batches by {cell.writers}, {kind}, of off"
        table.targets.append(Target(what, 1.10, ratio, below=True))
    return [table]


def _daemon(bench: Bench, stack: ExitStack, party: str, endpoint: str) -> Daemon:
    sample = PARTIES[party]
    if sample is None:
        return stack.enter_context(bench.daemon())
    said = {"tracing__endpoint": endpoint, "tracing__sample": sample}
    return stack.enter_context(bench.daemon({"OTEL_BSP_SCHEDULE_DELAY": "100"}, **said))


def _await_quiet(receiver: Receiver) -> None:
    """Return when no span has arrived for a while: sending spans is part of their cost."""
    came = -1
    while came != len(receiver.spans):
        came = len(receiver.spans)
        time.sleep(QUIET_S)


def _job(bench: Bench, cell: Cell, flight: str) -> PutJob:
    return PutJob(
        flight=flight,
        table=f"r{cell.rows}-w{cell.writers}",
        rows=cell.rows,
        streams=cell.writers,
        seconds=bench.effort.cell_s * 2,
        max_rows=bench.effort.cell_bytes // ROW_BYTES // cell.writers,
        pipelined=cell.pipelined,
    )
