"""Tables "sustained-…": minutes of writing while flushes keep up, then at 80 % of that rate.

Settings and clients are the defaults, so flushes start by size, workers sort and encode, and only
backpressure slows writers down. The rate is that of rows in files: all acknowledged rows,
divided by the time until the last of them is committed. Plain pyarrow, which sorts and writes
the same rows in as many processes as there are processors, runs before and after. Data files are
deleted some seconds after their commit, because the disk of a benchmark machine is small. Then
each durable peer writes alone for as long. Where the disk is too small for that, the peer
restarts on empty data as often as needed, up to a limit. At the end of each period its log is
flushed to its files within the measured time, as the ingester's rows are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from shutil import disk_usage, rmtree
from statistics import mean

import numpy as np

from tests.bench.clients import Clients, Written
from tests.bench.effort import Bench
from tests.bench.peers.field import Field
from tests.bench.peers.installing import Installation
from tests.bench.peers.peer import WriteJob
from tests.bench.plain import plain_rate
from tests.bench.report import Table, Target
from tests.bench.requests import persist
from tests.bench.rows import ROW_BYTES
from tests.bench.samples import Samples, percentile
from tests.bench.sampling import Every, Sample, Watch, delete_data_files
from tests.bench.streams import PutJob
from tests.bench.tables.peers import PEERS
from tests.drivers.daemon import Daemon, Launch

NAME = "sustained"
_ROWS = 10_000
_WRITERS = 8
_SLICES = 10
_STRETCHES = 3
"""Repeats at 80 %: one disk stall spoils only one of them."""
_STRETCH_LEAST_S = 1.25
_FILLED = 5
"""Slices in which buffers fill for the first time and the first flushes end."""
_FILE_ROWS = (64 << 20) // ROW_BYTES
"""Upper bound: a partition is flushed when it has 64 MiB, as by default."""
_KEEP_FILES_S = 10.0
_PEER_ROW_BYTES = 250
"""Upper bound of a row's bytes at a peer, including its log and indexes."""
_TIMES = 20
"""Upper bound of a peer's restarts: a nearly full disk must not prolong the run indefinitely."""


@dataclass(frozen=True, slots=True)
class _Load:
    """One period of writing and its samples."""

    written: Written
    samples: list[Sample]
    """The last sample, taken when everything is in files."""

    @property
    def in_files_per_s(self) -> float:
        """Acknowledged rows a second until all of them were in files."""
        return self.written.rows / (self.samples[-1].at - self.samples[0].at)


def run(bench: Bench) -> list[Table]:
    """Measure rates over slices of time, next to pyarrow's, and latencies at 80 % of the rate."""
    effort = bench.effort
    folder = bench.new_folder()
    processes = len(os.sched_getaffinity(0))
    plain_s = max(0.2, effort.sustained_s / 10)

    def plain() -> float:
        bench.say("plain pyarrow")
        rows = min(_FILE_ROWS, effort.persist_rows)
        return plain_rate(folder, rows, plain_s, processes)

    with _default_daemon(bench) as daemon, Clients() as clients:
        before = plain()
        bench.say(f"{effort.sustained_s:g} s of writing")
        full = _load(bench, daemon, clients, per_s=0.0)
        after = plain()
        # Per stream; a batch's due time does not depend on the server.
        per_s = 0.8 * full.in_files_per_s / _ROWS / _WRITERS
        paced = []
        for stretch in range(_STRETCHES):
            bench.say(f"at 80 %, {stretch + 1} of {_STRETCHES}")
            paced.append(_load(bench, daemon, clients, per_s=per_s))
    rates = _rates(full, before, after)
    if effort.sustained_peers_s:
        _add_peers(bench, rates, full)
    return [rates, _drift(full), _latencies(paced)]


@contextmanager
def _default_daemon(bench: Bench) -> Iterator[Daemon]:
    folder = bench.new_folder()
    try:
        with Launch(folder / "daemon", {}, (), {"log__format": "json"}).start() as daemon:
            yield daemon
    finally:
        rmtree(folder, ignore_errors=True)


def _load(bench: Bench, daemon: Daemon, clients: Clients, per_s: float) -> _Load:
    seconds = bench.effort.sustained_s / (4 * _STRETCHES if per_s else 1)
    if per_s:
        seconds = max(seconds, min(_STRETCH_LEAST_S, bench.effort.sustained_s))
    job = PutJob(
        flight=daemon.flight,
        table="sustained",
        rows=_ROWS,
        streams=_WRITERS,
        seconds=seconds,
        per_s=per_s,
        shipped=True,
        timed=True,
    )
    watch = Watch(daemon)
    store = daemon.data_dir / "store"
    with (
        Every(1.0, lambda: delete_data_files(store, _KEEP_FILES_S)),
        Every(seconds / _SLICES / 4, watch.take),
    ):
        written = clients.write(job)
        persist(daemon, "sustained")
    return _Load(written, watch.samples)


def _rates(load: _Load, before: float, after: float) -> Table:
    table = Table(
        "sustained-rates",
        f"Sustained: {_ROWS:,}-row batches by {_WRITERS} writers, pipelined, with persists",
        ["who", "seconds", "rows/s", "of pyarrow", "CPU s/M rows"],
        notes=["plain pyarrow: one process a processor, nothing else running, before and after"],
    )
    first, last = load.samples[0], load.samples[-1]
    mine = Samples((load.in_files_per_s,), "/s")
    plain = Samples((mean((before, after)),), "/s")
    table.add(who="plain pyarrow, sort and write", rows__s=Samples((before, after), "/s"))
    table.add(
        who="acknowledged, until in files",
        seconds=Samples((last.at - first.at,), "s"),
        rows__s=mine,
        of_pyarrow=mine.over(plain),
        CPU_s__M_rows=Samples(((last.cpu_s - first.cpu_s) / load.written.rows * 1e6,), "x"),
    )
    table.targets.append(Target("sustained, of plain pyarrow", 0.6, mine.over(plain)))
    return table


def _add_peers(bench: Bench, table: Table, load: _Load) -> None:
    """Run each durable peer alone for as long, if the disk is large enough."""
    installation = Installation(
        bench.kept / "peers", installs=bench.effort.peer_installs, say=bench.say
    )
    room = disk_usage(bench.folder).free // 2
    best: tuple[float, str] = (0.0, "")
    for peer in (each for each in PEERS if each.promise.durable):
        bench.say(f"{peer.name}, {bench.effort.sustained_peers_s:g} s")
        field = Field([peer], installation)
        written = _write_for_long(bench, field, peer.name, room // _PEER_ROW_BYTES)
        if written is None:
            table.notes.append(f"{peer.name} left out: {field.reasons[peer.name]}")
            continue
        rows, seconds, times = written
        table.add(
            who=f"{peer.name}, until in its files",
            seconds=Samples((seconds,), "s"),
            rows__s=Samples((rows / seconds,), "/s"),
        )
        if times > 1:
            table.notes.append(f"{peer.name}: {times} times on empty data, for want of room")
        best = max(best, (rows / seconds, peer.name))
    if best[0]:
        ratio = Samples((load.in_files_per_s / best[0],), "x")
        table.targets.append(Target(f"sustained, of the best durable peer ({best[1]})", 1.0, ratio))


def _write_for_long(
    bench: Bench, field: Field, peer: str, most_rows: int
) -> tuple[int, float, int] | None:
    """Return (rows, seconds, runs on empty data); ``None`` for a peer that failed."""
    rows, took_s, times = 0, 0.0, 0
    while took_s < bench.effort.sustained_peers_s and times < _TIMES:
        job = WriteJob(
            table="sustained",
            rows=_ROWS,
            writers=_WRITERS,
            seconds=bench.effort.sustained_peers_s - took_s,
            max_rows=most_rows,
        )
        with field.started(bench.new_folder() / "peers"):
            written = field.write(peer, job)
            settling_s = field.settle(peer)
        if written is None or settling_s is None:
            return None
        rows, times = rows + written.rows, times + 1
        took_s += written.seconds + settling_s
    return rows, took_s, times


def _drift(load: _Load) -> Table:
    table = Table(
        "sustained-drift",
        "Sustained: the same minutes in slices",
        ["slice", "from", "acknowledged rows/s", "persisted rows/s", "resident memory"],
    )
    answered = load.written.answered
    edges = np.linspace(answered.min(), answered.max(), _SLICES + 1)
    counts, _ = np.histogram(answered, edges)
    resident = []
    soon = 0.0
    for number in range(_SLICES):
        begin, end = edges[number], edges[number + 1]
        inside = [each for each in load.samples if begin <= each.at <= end]
        resident.append(max((each.resident_bytes for each in inside), default=0))
        persisted = inside[-1].persisted_rows - inside[0].persisted_rows if inside else 0.0
        taken = inside[-1].at - inside[0].at if len(inside) > 1 else end - begin
        soon += persisted if number < _FILLED else 0.0
        table.rows.append(
            {
                "slice": number + 1,
                "from": Samples((float(begin - edges[0]),), "s"),
                "acknowledged rows/s": Samples(
                    (float(counts[number]) * _ROWS / (end - begin),), "/s"
                ),
                "persisted rows/s": Samples((persisted / taken,), "/s"),
                "resident memory": Samples((float(resident[-1]),), "B"),
            }
        )
    middle = max(1.0, float(np.median(resident[2:_FILLED])))
    growth = Samples((max(resident[-3:]) / middle,), "x")
    if soon:  # otherwise it ended while buffers filled for the first time
        table.targets.append(
            Target("sustained, memory of the last slices, of the third to fifth", 1.2, growth, True)
        )
    return table


def _latencies(loads: list[_Load]) -> Table:
    table = Table(
        "sustained-latencies",
        "Sustained: time to the acknowledgement at 80 % of that rate, persists running",
        ["rows/s", "p50", "p99", "p99.9", "p99 of p50"],
        notes=["from the moment at which a batch was due, not from that at which it was sent"],
    )
    p50, p99, p999 = (
        Samples(tuple(percentile(load.written.latencies, share) for load in loads), "s")
        for share in (0.5, 0.99, 0.999)
    )
    table.rows.append(
        {
            "rows/s": Samples(tuple(load.written.rows_per_s for load in loads), "/s"),
            "p50": p50,
            "p99": p99,
            "p99.9": p999,
            "p99 of p50": p99.over(p50),
        }
    )
    table.targets.append(Target("p99 at 80 % with persists, of p50", 5.0, p99.over(p50), True))
    return table
