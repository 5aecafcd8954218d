"""Tables "peers": the ingester compared with the systems that users would pick instead, in a burst.

All parties get the same rows, batches and writers. Within a repeat every cell is measured at
each party before the next cell, in an order that rotates from cell to cell, once or several
times; servers are new in each repeat. The ingester's writers are
those of its client library, with its defaults, and pipeline; a peer's writers send
batch after batch, as that is all their clients support. For latencies every writer waits for
every answer. No party compacts within a burst.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import ingester
from tests.bench.clients import PROCESSES, Clients, Written
from tests.bench.effort import Bench, Effort
from tests.bench.peers import (
    clickhouse,
    delta_lake,
    duck_db,
    iceberg,
    influxdb,
    postgresql,
    sqlite,
)
from tests.bench.peers.field import Field
from tests.bench.peers.installing import Installation
from tests.bench.peers.peer import Peer, Promise, WriteJob
from tests.bench.report import Table, Target
from tests.bench.samples import Samples, percentile
from tests.bench.streams import PutJob
from tests.bench.touched_memory import TouchedMemory
from tests.drivers.daemon import Daemon

NAME = "peers"
PEERS = tuple(
    module.PEER
    for module in (influxdb, postgresql, duck_db, sqlite, delta_lake, iceberg, clickhouse)
)
_MINE = "ingester"
_PROMISE = Promise("in its log, fdatasynced by group", True, "to all, at acknowledgement")
_ROW_BYTES = 42
_BURST = (10_000, 8)
_OF_BEST = {_BURST: 2.5}
"""The target ratio to the best durable peer, by rows and writers; elsewhere the target is to
lead."""
_P99_OF_BEST = 1 / 3
_NOTES = (
    "durability of a peer is that of its row in the table of promises; of best: of durable ones",
    "peers: one transaction, commit or request per batch, what is sent is encoded beforehand:"
    " COPY's binary format, line protocol, Python values, Arrow IPC",
    "settings put checkpoints and snapshots past a burst; SQLite's and PostgreSQL's logs are"
    " preallocated; only chdb merges",
    "InfluxDB: a writer's batches come round again, and its points then replace themselves",
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of the tables."""

    rows: int
    writers: int
    pipelined: bool

    @property
    def table(self) -> str:
        """The name of a table that each party uses for this cell only."""
        return f"r{self.rows}_w{self.writers}_{'p' if self.pipelined else 'l'}"


Results = dict[tuple[Cell, str], list[Written]]


def run(bench: Bench, peers: Sequence[Peer] = PEERS) -> list[Table]:
    """Measure rates and latencies next to the peers', and state what each peer promises."""
    effort = bench.effort
    installs = Installation(bench.kept / "peers", installs=effort.peer_installs, say=bench.say)
    field = Field(peers, installs)
    results: Results = defaultdict(list)
    with Clients(min(PROCESSES, max(effort.peer_writers))) as clients:
        for repeat in range(effort.peer_repeats):
            bench.say(f"repeat {repeat + 1} of {effort.peer_repeats}, starting")
            with (
                bench.daemon() as daemon,
                field.started(bench.new_folder()),
                TouchedMemory(effort.peer_touched_bytes),
            ):
                _measure(bench, repeat, _Parties(effort, clients, daemon, field), results)
    # A peer that failed once has no ratio within each repeat.
    times = effort.peer_repeats * effort.peer_turns
    whole = {each: found for each, found in results.items() if len(found) == times}
    cells = _cells(effort)
    return [
        _rates([cell for cell in cells if cell.pipelined], whole, field),
        _latencies([cell for cell in cells if not cell.pipelined], whole, field),
        _promises(field),
    ]


@dataclass(frozen=True, slots=True)
class _Parties:
    """The parties of a repeat."""

    effort: Effort
    clients: Clients
    daemon: Daemon
    field: Field

    @property
    def names(self) -> list[str]:
        """The ingester and every peer, including failed ones."""
        return [_MINE, *(peer.name for peer in self.field.peers)]

    def write(self, party: str, cell: Cell) -> Written | None:
        """Measure a party in a cell; ``None`` for a peer that failed."""
        # Writers that wait for each answer write less, and a p99 needs many batches.
        seconds = self.effort.peer_cell_s * (1 if cell.pipelined else 2)
        max_rows = self.effort.peer_cell_bytes // _ROW_BYTES
        if party != _MINE:
            job = WriteJob(cell.table, cell.rows, cell.writers, seconds, max_rows)
            return self.field.write(party, job)
        return self.clients.write(
            PutJob(
                flight=self.daemon.flight,
                table=cell.table,
                rows=cell.rows,
                streams=cell.writers,
                seconds=seconds,
                max_rows=max_rows,
                pipelined=cell.pipelined,
                shipped=True,
            )
        )


def _measure(bench: Bench, repeat: int, parties: _Parties, results: Results) -> None:
    """Measure every cell at each party, one after another."""
    names, effort = parties.names, bench.effort
    for number, cell in enumerate(_cells(effort) * effort.peer_turns):
        first = (number + repeat) % len(names)
        for party in names[first:] + names[:first]:
            bench.say(
                f"repeat {repeat + 1} of {effort.peer_repeats}, {cell.rows:,} rows by"
                f" {cell.writers}, {'rate' if cell.pipelined else 'latency'}, {party}"
            )
            if (written := parties.write(party, cell)) is not None:
                results[cell, party].append(written)


def _cells(effort: Effort) -> list[Cell]:
    rates = [
        Cell(rows, writers, True) for rows in effort.peer_rows for writers in effort.peer_writers
    ]
    return [*rates, *(Cell(rows, writers, False) for rows, writers in effort.peer_waits)]


def _rates(cells: list[Cell], results: Results, field: Field) -> Table:
    names = [peer.name for peer in field.peers]
    table = Table(
        "peers-rates",
        "Peers: rows/s acknowledged in a burst, the ingester pipelined",
        ["rows", "writers", _MINE, *names, "best durable", "of best"],
        notes=[*_NOTES, *_failures(field)],
    )
    for cell in cells:
        rates = {
            party: Samples(tuple(each.rows_per_s for each in results[cell, party]), "/s")
            for party in (_MINE, *names)
            if (cell, party) in results
        }
        durable = [name for name in _durable(field) if name in rates]
        best = max(durable, key=lambda name: rates[name].median, default=None)
        ratio = rates[_MINE].over(rates[best]) if best else None
        table.add(rows=cell.rows, writers=cell.writers, best_durable=best, of_best=ratio, **rates)
        if ratio is not None:
            what = f"{cell.rows:,}-row batches by {cell.writers}, of the best durable peer"
            wanted = _OF_BEST.get((cell.rows, cell.writers), 1.0)
            table.targets.append(Target(what, wanted, ratio))
    return table


def _latencies(cells: list[Cell], results: Results, field: Field) -> Table:
    table = Table(
        "peers-latencies",
        "Peers: time to the acknowledgement of a batch, each writer waits for each answer",
        ["rows", "writers", "party", "p50", "p99", "batches", "p99 of it"],
        notes=["p99 of it: the ingester's p99 as a share of the party's"],
    )
    for cell in cells:
        p99: dict[str, Samples] = {}
        for party in (_MINE, *(peer.name for peer in field.peers)):
            if not (found := results.get((cell, party))):
                continue
            p50 = Samples(tuple(percentile(each.latencies, 0.5) for each in found), "s")
            p99[party] = Samples(tuple(percentile(each.latencies, 0.99) for each in found), "s")
            table.add(
                rows=cell.rows,
                writers=cell.writers,
                party=party,
                p50=p50,
                p99=p99[party],
                batches=sum(each.batches for each in found),
                p99_of_it=None if party == _MINE else p99[_MINE].over(p99[party]),
            )
        durable = [name for name in _durable(field) if name in p99]
        if durable and (cell.rows, cell.writers) == _BURST:
            best = min(durable, key=lambda name: p99[name].median)
            what = f"{cell.rows:,}-row batches by {cell.writers}, p99 of the best durable peer's"
            ratio = p99[_MINE].over(p99[best])
            table.targets.append(Target(what, _P99_OF_BEST, ratio, below=True))
    return table


def _promises(field: Field) -> Table:
    table = Table(
        "peers-promises",
        "Peers: what holds when a batch is acknowledged",
        ["party", "version", "at acknowledgement", "durable", "visible"],
        notes=_failures(field),
    )
    mine = (_MINE, ingester.__version__, _PROMISE)
    others = [(each.name, field.versions.get(each.name), each.promise) for each in field.peers]
    for name, version, promise in (mine, *others):
        table.add(
            party=name,
            version=version or "-",
            at_acknowledgement=promise.holds,
            durable="yes" if promise.durable else "no",
            visible=promise.visible,
        )
    return table


def _durable(field: Field) -> list[str]:
    return [peer.name for peer in field.peers if peer.promise.durable]


def _failures(field: Field) -> list[str]:
    return [f"{name} left out: {reason}" for name, reason in field.reasons.items()]
