"""Tables "memory-…": resident memory of buffered rows, of a flush, and of an idle daemon.

Memory is what the kernel reports for the process (VmRSS, VmHWM); buffered bytes are those of the
Arrow batches that were sent. Each number is from a daemon that did nothing else before.
"""

from __future__ import annotations

import time

from tests.bench.clients import Clients
from tests.bench.effort import Bench, cpu_seconds
from tests.bench.report import Table, Target
from tests.bench.requests import persist
from tests.bench.rows import ROW_BYTES, make_batches
from tests.bench.samples import Samples
from tests.bench.sampling import PeakMemory
from tests.bench.streams import PutJob
from tests.drivers.daemon import Daemon

NAME = "memory"
_PLUS = 250e6
"""The daemon's own allowance, in addition to a multiple of the rows."""


def run(bench: Bench) -> list[Table]:
    """Measure buffered rows by the size of their batches, then their flush, then an idle daemon."""
    buffered = Table(
        "memory-buffered",
        "Memory: rows in buffers, and a persist of all of them",
        ["rows per batch", "rows", "Arrow bytes", "resident", "above 1.0 x", "of allowed",
         "peak of persist", "of buffered", "after it"],
        notes=[
            "allowed: 1.3 x the Arrow bytes and 250 MB",
            "peak of persist, of buffered: less what the empty daemon had, buffers included",
        ],
    )  # fmt: skip
    for rows in bench.effort.memory_batch_rows:
        bench.say(f"batches of {rows:,} rows")
        _add_buffered(bench, buffered, rows)
    return [buffered, _idle(bench)]


def _add_buffered(bench: Bench, table: Table, batch_rows: int) -> None:
    [batch] = make_batches(batch_rows, 1, seed=0)
    share = bench.effort.memory_bytes
    with Clients() as clients, bench.daemon() as daemon:
        empty = daemon.resident_bytes
        job = PutJob(
            flight=daemon.flight,
            table="buffered",
            rows=batch_rows,
            streams=4,
            seconds=bench.effort.memory_fill_s,
            max_rows=share // (batch.nbytes // batch_rows),
        )
        rows = clients.write(job).rows
        arrow = rows * batch.nbytes / batch_rows
        resident = _settled(daemon)
        peak = PeakMemory(daemon.pid)
        persist(daemon, "buffered")
        of_persist = float(peak.bytes)
        after = _settled(daemon)
    of_buffered = Samples(((of_persist - empty) / arrow,), "x")
    allowed = Samples((resident / (1.3 * arrow + _PLUS),), "x")
    table.rows.append(
        {
            "rows per batch": batch_rows,
            "rows": rows,
            "Arrow bytes": Samples((arrow,), "B"),
            "resident": Samples((resident,), "B"),
            "above 1.0 x": Samples((max(0.0, resident - arrow),), "B"),
            "of allowed": allowed,
            "peak of persist": Samples((of_persist,), "B"),
            "of buffered": of_buffered,
            "after it": Samples((after,), "B"),
        }
    )
    what = f"{batch_rows:,}-row batches"
    table.targets.append(
        Target(f"resident memory of {what}, of 1.3 x and 250 MB", 1.0, allowed, below=True)
    )
    if batch_rows * ROW_BYTES > 1 << 15:
        table.targets.append(Target(f"memory of a persist, {what}", 2.2, of_buffered, below=True))


def _settled(daemon: Daemon) -> float:
    """Return resident memory once freed memory is returned: the daemon keeps it for a moment."""
    time.sleep(1.0)
    return float(daemon.resident_bytes)


def _idle(bench: Bench) -> Table:
    table = Table("memory-idle", "At rest", ["seconds", "of a core", "resident"])
    seconds = bench.effort.idle_s
    bench.say(f"{seconds:g} s at rest")
    with bench.daemon() as daemon:
        time.sleep(min(1.0, seconds))  # Some imports follow the ready line.
        before = cpu_seconds(daemon.pid)
        time.sleep(seconds)
        share = Samples(((cpu_seconds(daemon.pid) - before) / seconds,), "x")
        resident = Samples((float(daemon.resident_bytes),), "B")
    table.add(seconds=Samples((seconds,), "s"), of_a_core=share, resident=resident)
    table.targets += [
        Target("at rest, of a core", 0.01, share, below=True),
        Target("at rest, resident memory", 200e6, resident, below=True),
    ]
    return table
