"""Table "beside": what a flush costs concurrent writers.

Writers with spare capacity write to one table while another, large table is flushed. The
baseline is the same writers with about as many batches while nothing else runs. Batches answered
after the flush do not count. Latencies count from the time a batch was due.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from tests.bench.clients import Clients
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.requests import fill, persist
from tests.bench.rows import ROW_BYTES
from tests.bench.samples import Samples, percentile
from tests.bench.streams import PutJob
from tests.drivers.daemon import Daemon

NAME = "beside"
_WRITERS = 8
_ROWS = 1_000
_PER_S = 25.0
"""Batches of each writer: 200,000 rows/s together, a tenth of what two processors can flush."""
_PERSISTED_PER_S = 2_500_000
"""About the rate of a flush: the baseline runs for as long."""

Seconds = npt.NDArray[np.float64]
Act = Callable[[], object]


def run(bench: Bench) -> list[Table]:
    """Measure latencies without and with a flush, and their ratio."""
    rows = bench.effort.beside_rows
    table = Table(
        NAME,
        f"Beside a persist: {_WRITERS} writers, {_PER_S:g} batches of {_ROWS:,} rows a second each",
        ["beside", "batches", "p50", "p99", "p99.9", "p99 of quiet"],
        notes=[f"a persist: {rows:,} rows ({rows * ROW_BYTES >> 20} MiB) of another table"],
    )
    found: dict[str, list[Seconds]] = {"nothing": [], "a persist": []}
    with Clients(2) as clients, bench.daemon() as daemon:
        for repeat in range(bench.effort.repeats):
            bench.say(f"repeat {repeat + 1} of {bench.effort.repeats}")
            name = f"t{repeat}"
            fill(daemon, name, rows, 10_000)
            persist_s = rows / _PERSISTED_PER_S
            acts: dict[str, tuple[float, Act]] = {
                "nothing": (persist_s, partial(time.sleep, persist_s)),
                # The flush may take longer than estimated; little of it is missed then.
                "a persist": (2 * persist_s, partial(persist, daemon, name)),
            }
            for beside, (writing_s, act) in acts.items():
                found[beside].append(_latencies(daemon, clients, writing_s, act))
    p99: dict[str, Samples] = {}
    for beside, latencies in found.items():
        p50, p99[beside], p999 = (
            Samples(tuple(percentile(each, share) for each in latencies), "s")
            for share in (0.5, 0.99, 0.999)
        )
        table.rows.append(
            {
                "beside": beside,
                "batches": sum(map(len, latencies)),
                "p50": p50,
                "p99": p99[beside],
                "p99.9": p999,
                "p99 of quiet": p99[beside].over(p99["nothing"]),
            }
        )
    ratio = p99["a persist"].over(p99["nothing"])
    table.targets.append(Target("p99 of writers while a persist runs", 2.0, ratio, below=True))
    return [table]


def _latencies(daemon: Daemon, clients: Clients, writing_s: float, act: Act) -> Seconds:
    """Return the latencies of batches answered between the start and the end of an act."""
    job = PutJob(
        flight=daemon.flight,
        table="written",
        rows=_ROWS,
        streams=_WRITERS,
        seconds=max(writing_s, 3 / _PER_S),
        per_s=_PER_S,
    )
    times: list[float] = []

    def timed() -> None:
        times.append(time.monotonic())
        act()
        # The smallest form's flush may be too short for any batch.
        times.append(max(time.monotonic(), times[0] + 2 / _PER_S))

    written = clients.write(job, timed)
    began, ended = times
    return written.latencies[(written.answered >= began) & (written.answered <= ended)]
