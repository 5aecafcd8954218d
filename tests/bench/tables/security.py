"""Table "security": writes over TLS and with a token, compared with plain writes.

The same code sends the same batches in turns to two daemons that differ only in their listeners,
in an order that rotates from cell to cell.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, cast

from tests.bench.clients import Clients, Written
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.rivals import Rival
from tests.bench.rows import ROW_BYTES
from tests.bench.samples import Samples, percentile
from tests.bench.streams import PutJob
from tests.drivers.secured import Secured

NAME = "security"


class Cell(NamedTuple):
    """A kind of write, and the target share of the plain rate."""

    rows: int
    writers: int
    pipelined: bool
    wanted: float


CELLS = (
    Cell(10_000, 8, True, 0.90),
    Cell(1, 8, True, 0.85),
    Cell(1, 1, False, 0.85),
)


PARTIES = ("plain", "secure", "keep_plain", "keep_tls")


def run(bench: Bench) -> list[Table]:
    """Measure rates and latencies of both, and their ratio."""
    effort = bench.effort
    secured = Secured(bench.new_folder(), {"bench": "bench:read,write"})
    results = defaultdict[tuple[Cell, str], list[Written]](list)
    with Clients() as clients:
        for repeat in range(effort.repeats):
            with ExitStack() as stack:
                flights = _flights(bench, secured, stack)
                for number, cell in enumerate(CELLS):
                    bench.say(f"repeat {repeat + 1} of {effort.repeats}, {cell}")
                    for party in sorted(PARTIES, reverse=(number + repeat) % 2 == 1):
                        job = _job(bench, cell, flights[party])
                        if party in ("secure", "keep_tls"):
                            token = secured.tokens["bench"] if party == "secure" else ""
                            job = replace(job, tls_ca=str(secured.ca), token=token)
                        results[cell, party].append(clients.write(job))
    table = Table(
        "security",
        "Writes through TLS and with a token, beside plain ones",
        ["rows", "writers", "secure", "plain", "of plain", "keep of plain", "p50", "plain p50"],
        notes=[
            "rows a second; p50 where each writer waits for each answer; no persists",
            "keep: what TLS leaves of a Flight server that only keeps the batches in a list",
        ],
    )
    for cell in CELLS:
        _add(table, cell, {party: results[cell, party] for party in PARTIES})
    return [table]


def _flights(bench: Bench, secured: Secured, stack: ExitStack) -> dict[str, str]:
    """Start a server of each party."""
    plain = stack.enter_context(bench.daemon())
    secure = stack.enter_context(bench.daemon(**cast(Any, secured.settings)))
    folder = str(bench.new_folder())
    keep = stack.enter_context(Rival("keep", folder=folder))
    tls = stack.enter_context(Rival("keep", folder=folder, certificate=secured.pair))
    servers = (plain.flight, secure.flight, keep.flight, tls.flight)
    return dict(zip(PARTIES, servers, strict=True))


def _job(bench: Bench, cell: Cell, flight: str) -> PutJob:
    return PutJob(
        flight=flight,
        table=f"r{cell.rows}-w{cell.writers}-{cell.pipelined}",
        rows=cell.rows,
        streams=cell.writers,
        seconds=bench.effort.cell_s * 2,
        max_rows=bench.effort.cell_bytes // ROW_BYTES,
        pipelined=cell.pipelined,
    )


def _add(table: Table, cell: Cell, measured: dict[str, list[Written]]) -> None:
    rates = {
        party: Samples(tuple(each.rows_per_s for each in found), "/s")
        for party, found in measured.items()
    }
    ratio = rates["secure"].over(rates["plain"])
    table.add(
        rows=cell.rows,
        writers=cell.writers,
        secure=rates["secure"],
        plain=rates["plain"],
        of_plain=ratio,
        keep_of_plain=rates["keep_tls"].over(rates["keep_plain"]),
        **({} if cell.pipelined else _medians(measured)),
    )
    kind = "pipelined" if cell.pipelined else "one by one"
    what = f"TLS and token, {cell.rows:,}-row batches by {cell.writers} writers, {kind}, of plain"
    table.targets.append(Target(what, cell.wanted, ratio))


def _medians(measured: dict[str, list[Written]]) -> dict[str, Samples]:
    found = {
        party: Samples(tuple(percentile(each.latencies, 0.5) for each in measured[party]), "s")
        for party in ("secure", "plain")
    }
    return {"p50": found["secure"], "plain_p50": found["plain"]}
