"""Tables "ingest": rows a second, and acknowledgement latency, in a burst without flushes.

The ingester is measured as users meet it, through the client library with its defaults, and, as
``raw``, through plain Flight calls without an origin, which are not exactly once. The other servers
get plain Flight calls. Within a repeat every cell is measured at each party before the next cell,
in an order that rotates from cell to cell. Servers are new in each repeat, as memory that was used
before is faster than new memory. Rates are pipelined; for latencies each writer waits for each
answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from tests.bench.clients import Clients, Written
from tests.bench.disk import AppendFile
from tests.bench.effort import Bench, cpu_seconds
from tests.bench.report import Table, Target
from tests.bench.requests import metric
from tests.bench.rivals import Kind, Rival
from tests.bench.rows import ROW_BYTES, make_batches
from tests.bench.samples import Samples, percentile
from tests.bench.streams import PutJob
from tests.drivers.daemon import Daemon

NAME = "ingest"
PARTIES = ("ingester", "raw", "keep", "discard", "log", "append")
_SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
_OF_KEEP = {(10_000, 8): 0.55, (1_000, 8): 0.4}
"""The target share of the rate of the server that keeps batches, by rows and writers."""
_OF_RAW = {(1, 1): 0.9}
"""The target share of the rate without an origin."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of the tables."""

    rows: int
    writers: int
    pipelined: bool

    @property
    def table(self) -> str:
        """The name of a table that the daemon uses for this cell only."""
        return f"r{self.rows}-w{self.writers}-{'p' if self.pipelined else 'l'}"


@dataclass(frozen=True, slots=True)
class Measured:
    """One party's result in a cell of a repeat; only Flight servers fill the last three."""

    written: Written
    cpu_s: float = 0.0
    log_bytes: float = 0.0
    syncs: float = 0.0


Results = dict[tuple[Cell, str], list[Measured]]
Drive = Callable[[Cell], Measured]


def run(bench: Bench) -> list[Table]:
    """Measure rates next to the rivals', and acknowledgement latencies."""
    effort = bench.effort
    cells = [
        Cell(rows, writers, pipelined)
        for pipelined in (True, False)
        for rows in effort.batch_rows
        for writers in effort.writers
    ]
    results: Results = defaultdict(list)
    with Clients() as clients:
        for repeat in range(effort.repeats):
            with ExitStack() as stack:
                drives = _parties(bench, clients, stack)
                for number, cell in enumerate(cells):
                    bench.say(
                        f"repeat {repeat + 1} of {effort.repeats}, {cell.rows:,} rows by"
                        f" {cell.writers}, {'rate' if cell.pipelined else 'latency'}"
                    )
                    for party in _turned(PARTIES, number + repeat):
                        results[cell, party].append(drives[party](cell))
    return [_rates(cells, results), _latencies(cells, results)]


def _parties(bench: Bench, clients: Clients, stack: ExitStack) -> dict[str, Drive]:
    """Start new servers; return how each party measures a cell."""
    kinds: tuple[Kind, ...] = ("keep", "discard", "log")
    starting = {kind: Rival(kind, folder=str(bench.new_folder())) for kind in kinds}
    rivals = {kind: stack.enter_context(rival) for kind, rival in starting.items()}
    daemon = stack.enter_context(bench.daemon())
    file = stack.enter_context(AppendFile(bench.folder, bench.effort.append_file_bytes))

    def at_daemon(cell: Cell, *, shipped: bool) -> Measured:
        before = _log_counts(daemon)
        measured = _drive(bench, clients, daemon.flight, daemon.pid, cell, shipped=shipped)
        log_bytes, syncs = (
            now - then for now, then in zip(_log_counts(daemon), before, strict=True)
        )
        return replace(measured, log_bytes=log_bytes, syncs=syncs)

    def append(cell: Cell) -> Measured:
        batches = make_batches(cell.rows, max(cell.writers, 16), seed=0)
        seconds = _seconds(bench, cell) / 2
        return Measured(file.append(batches, together=cell.writers, seconds=seconds))

    return {
        "ingester": partial(at_daemon, shipped=True),
        "raw": partial(at_daemon, shipped=False),
        **{
            kind: partial(_drive, bench, clients, rival.flight, rival.pid)
            for kind, rival in rivals.items()
        },
        "append": append,
    }


def _drive(
    bench: Bench, clients: Clients, flight: str, pid: int, cell: Cell, *, shipped: bool = False
) -> Measured:
    job = PutJob(
        flight=flight,
        table=f"{cell.table}{'-shipped' if shipped else ''}",
        rows=cell.rows,
        streams=cell.writers,
        seconds=_seconds(bench, cell),
        max_rows=bench.effort.cell_bytes // ROW_BYTES,
        pipelined=cell.pipelined,
        shipped=shipped,
    )
    before = cpu_seconds(pid)
    written = clients.write(job)
    return Measured(written, cpu_seconds(pid) - before)


def _log_counts(daemon: Daemon) -> tuple[float, float]:
    """Return (bytes, syncs) of the log so far."""
    return (
        metric(daemon, "ingester_log_written_bytes_total"),
        metric(daemon, "ingester_sync_seconds_count"),
    )


def _seconds(bench: Bench, cell: Cell) -> float:
    # A median settles sooner than a rate. But writers that wait for each answer with one row need
    # the longest until threads and groups have settled, and in a short cell eight streams mostly
    # start and drain.
    if cell.rows == 1 or (cell.pipelined and (cell.rows, cell.writers) in _OF_KEEP):
        return bench.effort.cell_s * 2
    return bench.effort.cell_s / (1 if cell.pipelined else 2)


def _turned(parties: tuple[str, ...], by: int) -> Iterator[str]:
    by %= len(parties)
    yield from parties[by:]
    yield from parties[:by]


def _rates(cells: list[Cell], results: Results) -> Table:
    table = Table(
        "ingest-rates",
        "Ingest: rows/s, pipelined, fsync at commit, no persists",
        [
            "rows",
            "writers",
            *PARTIES,
            *(f"of {party}" for party in PARTIES[1:]),
            "raw of keep",
            "CPU s/M rows",
            "log bytes/row",
            "syncs/batch",
        ],
        notes=[
            "ingester: by the client library with its defaults; raw: by plain Flight calls without"
            " an origin, so not exactly once",
            "keep: a Flight server that keeps the batches in a list; discard: one that drops them",
            "log: one that keeps them and appends each to a file, with one fdatasync for each",
            "append: the same bytes appended by one thread, one fdatasync per round of the writers",
        ],
    )
    for cell in (cell for cell in cells if cell.pipelined):
        rates = {
            party: Samples(tuple(m.written.rows_per_s for m in results[cell, party]), "/s")
            for party in PARTIES
        }
        mine = rates["ingester"]
        ratios = {f"of_{party}": mine.over(rates[party]) for party in PARTIES[1:]}
        own = results[cell, "ingester"]
        table.add(
            rows=cell.rows,
            writers=cell.writers,
            CPU_s__M_rows=Samples(tuple(m.cpu_s / m.written.rows * 1e6 for m in own), "x"),
            log_bytes__row=Samples(tuple(m.log_bytes / m.written.rows for m in own), "B"),
            syncs__batch=Samples(tuple(m.syncs / m.written.batches for m in own), "x"),
            raw_of_keep=rates["raw"].over(rates["keep"]),
            **rates,
            **ratios,
        )
        if (wanted := _OF_KEEP.get((cell.rows, cell.writers))) is not None:
            what = f"ingest, {cell.rows:,}-row batches by {cell.writers} writers, of keep"
            table.targets.append(Target(what, wanted, ratios["of_keep"]))
        if (wanted := _OF_RAW.get((cell.rows, cell.writers))) is not None:
            what = f"ingest, {cell.rows:,}-row batches by {cell.writers} writer, of raw"
            table.targets.append(Target(what, wanted, ratios["of_raw"]))
    return table


def _latencies(cells: list[Cell], results: Results) -> Table:
    table = Table(
        "ingest-latencies",
        "Ingest: time to the acknowledgement, each writer waits for each answer",
        [
            "rows",
            "writers",
            *_SHARES,
            *(f"{party} {share}" for party in PARTIES[1:] for share in ("p50", "p99")),
            "batches/s",
            "of raw",
            "of keep",
        ],
    )
    for cell in (cell for cell in cells if not cell.pipelined):
        named: dict[str, Samples] = {}
        for party in PARTIES:
            prefix = "" if party == "ingester" else f"{party}_"
            found = [m.written.latencies for m in results[cell, party]]
            for name, share in _SHARES.items():
                if name == "p99.9" and prefix:
                    continue
                values = tuple(percentile(each, share) for each in found)
                named[prefix + name] = Samples(values, "s")
        speeds = {
            party: Samples(
                tuple(m.written.batches / m.written.seconds for m in results[cell, party]), "/s"
            )
            for party in ("ingester", "raw", "keep")
        }
        of_raw = speeds["ingester"].over(speeds["raw"])
        table.add(
            rows=cell.rows,
            writers=cell.writers,
            batches__s=speeds["ingester"],
            of_raw=of_raw,
            of_keep=speeds["ingester"].over(speeds["keep"]),
            **named,
        )
        if (cell.rows, cell.writers) == (1, 8):
            table.targets.append(
                Target("ingest, one-row batches by 8 writers that wait, of raw", 1.0, of_raw)
            )
        if (cell.rows, cell.writers) == (1, 1):
            # A Flight round trip is the latency of the server that drops the batch.
            least = zip(named["discard_p50"].values, named["append_p50"].values, strict=True)
            both = Samples(tuple(flight + disk for flight, disk in least), "s")
            table.targets.append(
                Target(
                    "ingest, one row by one writer, p50 of round trip + fdatasync",
                    1.6,
                    named["p50"].over(both),
                    below=True,
                )
            )
    return table
