"""Table "durability": the cost of each durability promise of the log.

Three daemons that differ only in ``wal.fsync``, cell by cell in turns. Only with "commit" does
an acknowledged row survive a power cut.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack

from tests.bench.clients import Clients, Written
from tests.bench.effort import Bench
from tests.bench.report import Table
from tests.bench.rows import ROW_BYTES
from tests.bench.samples import Samples, percentile
from tests.bench.streams import PutJob

NAME = "durability"
_MODES = ("commit", "interval", "off")
_CELLS = (("rate", 10_000, 8, True), ("each waits", 1, 8, False), ("one waits", 1, 1, False))


def run(bench: Bench) -> list[Table]:
    """Measure rates of large batches and latencies of small ones for each mode."""
    effort = bench.effort
    found: dict[tuple[str, str], list[Written]] = defaultdict(list)
    with Clients() as clients, ExitStack() as stack:
        daemons = {mode: stack.enter_context(bench.daemon(wal__fsync=mode)) for mode in _MODES}
        for repeat in range(effort.heavy_repeats):
            for name, rows, writers, pipelined in _CELLS:
                bench.say(f"repeat {repeat + 1} of {effort.heavy_repeats}, {name}")
                for mode in _MODES:
                    job = PutJob(
                        flight=daemons[mode].flight,
                        table=f"r{rows}-w{writers}",
                        rows=rows,
                        streams=writers,
                        seconds=effort.cell_s,
                        max_rows=effort.cell_bytes // ROW_BYTES,
                        pipelined=pipelined,
                    )
                    found[mode, name].append(clients.write(job))
    return [_table(found)]


def _table(found: dict[tuple[str, str], list[Written]]) -> Table:
    table = Table(
        NAME,
        "Durability: by wal.fsync",
        [
            "fsync",
            "10,000 x 8, rows/s",
            "of off",
            "1 x 8 waiting, batches/s",
            "p99",
            "1 x 1 waiting, p50",
        ],
    )
    rates = {
        mode: Samples(tuple(w.rows_per_s for w in found[mode, "rate"]), "/s") for mode in _MODES
    }
    for mode in _MODES:
        eight, one = found[mode, "each waits"], found[mode, "one waits"]
        table.rows.append(
            {
                "fsync": mode,
                "10,000 x 8, rows/s": rates[mode],
                "of off": rates[mode].over(rates["off"]),
                "1 x 8 waiting, batches/s": Samples(
                    tuple(w.batches / w.seconds for w in eight), "/s"
                ),
                "p99": Samples(tuple(percentile(w.latencies, 0.99) for w in eight), "s"),
                "1 x 1 waiting, p50": Samples(
                    tuple(percentile(w.latencies, 0.5) for w in one), "s"
                ),
            }
        )
    return table
