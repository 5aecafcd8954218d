"""Table "visible": the time from a row's write until another client has read it.

The reader begins after the acknowledgement and queries exactly the new row. A missing row is an
error of the daemon, not a slow result. Both are clients of the library, with its defaults.
"""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

from ingester.client import Client
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.rows import SCHEMA, make_batches
from tests.bench.samples import Samples, percentile

NAME = "visible"


def run(bench: Bench) -> list[Table]:
    """Measure the seconds to the acknowledgement, and until a second client has the row."""
    table = Table(
        NAME,
        "One row, written by one client, then read by another",
        ["until", "p50", "p99"],
    )
    found: list[tuple[np.ndarray, np.ndarray]] = []
    with bench.daemon() as daemon:
        for repeat in range(bench.effort.repeats):
            bench.say(f"repeat {repeat + 1} of {bench.effort.repeats}")
            found.append(_round_trips(daemon.flight, f"t{repeat}", bench.effort.round_trips))
    for index, until in enumerate(("acknowledged", "read by the second client")):
        p50, p99 = (
            Samples(tuple(percentile(each[index], share) for each in found), "s")
            for share in (0.5, 0.99)
        )
        table.add(until=until, p50=p50, p99=p99)
        if index:
            what = "one row, acknowledged and read by another client, p50"
            table.targets.append(Target(what, 0.003, p50, below=True))
    return [table]


def _round_trips(flight: str, table: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    acknowledged, visible = [], []
    with (
        Client(flight) as writing,
        Client(flight) as reading,
        writing.writer("bench", table, SCHEMA) as writer,
    ):
        warm_up = min(20, count)
        for number, batch in enumerate(_numbered(count + warm_up)):
            began = time.monotonic()
            writer.write(batch).result()
            acknowledged.append(time.monotonic() - began)
            rows = reading.query("bench", table, filter=f"load = {number}").num_rows
            visible.append(time.monotonic() - began)
            if rows != 1:
                raise AssertionError(f"row {number} was acknowledged, a reader found {rows} of it")
    return np.array(acknowledged[warm_up:]), np.array(visible[warm_up:])


def _numbered(count: int) -> list[pa.RecordBatch]:
    """Batches of one row, with its number in the column ``load``."""
    index = SCHEMA.get_field_index("load")
    return [
        batch.set_column(index, SCHEMA.field(index), pa.array([float(number)]))
        for number, batch in enumerate(make_batches(1, count, seed=0))
    ]
