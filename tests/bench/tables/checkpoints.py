"""Table "checkpoints": writes with a source's state in every batch, and writes without one.

The same code sends both to one daemon in turns, in an order that rotates from cell to cell.
Batches have sequences in both, because a source that keeps a state numbers its batches. The
state has the size of a Kafka or file source's state.
"""

from __future__ import annotations

from collections import defaultdict

from tests.bench.clients import Clients
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.rows import ROW_BYTES
from tests.bench.samples import Samples
from tests.bench.streams import PutJob

NAME = "checkpoints"
STATE_BYTES = 100
_WANTED = 0.9
"""The target share of the rate without states, for batches of at least this many rows."""
_FROM_ROWS = 1_000


def run(bench: Bench) -> list[Table]:
    """Measure rates with and without states, and their ratio."""
    effort, results = bench.effort, defaultdict[tuple[int, int, int], list[float]](list)
    cells = [(rows, writers) for rows in effort.batch_rows for writers in effort.writers]
    with Clients() as clients:
        for repeat in range(effort.repeats):
            with bench.daemon() as daemon:
                for number, (rows, writers) in enumerate(cells):
                    bench.say(f"repeat {repeat + 1} of {effort.repeats}, {rows:,} by {writers}")
                    sizes = (0, STATE_BYTES) if (number + repeat) % 2 else (STATE_BYTES, 0)
                    for state_bytes in sizes:
                        job = PutJob(
                            flight=daemon.flight,
                            table=f"r{rows}-w{writers}-{state_bytes}",
                            rows=rows,
                            streams=writers,
                            seconds=effort.cell_s,
                            max_rows=effort.cell_bytes // ROW_BYTES,
                            origin=f"source-{rows}-{writers}-{state_bytes}",
                            state_bytes=state_bytes,
                        )
                        written = clients.write(job)
                        results[rows, writers, state_bytes].append(written.rows_per_s)
    table = Table(
        "checkpoints",
        "Checkpoints: rows/s with a state in every batch, beside none",
        ["rows", "writers", "with", "without", "of without"],
        notes=[f"a state of {STATE_BYTES} bytes, one source partition a writer; no persists"],
    )
    for rows, writers in cells:
        with_one, without = (
            Samples(tuple(results[rows, writers, size]), "/s") for size in (STATE_BYTES, 0)
        )
        ratio = with_one.over(without)
        table.add(
            rows=rows, writers=writers, without=without, of_without=ratio, **{"with": with_one}
        )
        if rows >= _FROM_ROWS:
            what = f"checkpoints, {rows:,}-row batches by {writers} writers, of without"
            table.targets.append(Target(what, _WANTED, ratio))
    return [table]
