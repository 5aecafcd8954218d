"""Table "readers": many concurrent readers of the same buffers, with and without writers.

Every reader gets every row that existed when it asked. The writers write to another table at a
given pace, so that the readers' table stays the same.
"""

from __future__ import annotations

import threading

from tests.bench.clients import Clients, Written
from tests.bench.effort import Bench
from tests.bench.report import Table
from tests.bench.requests import fill, ticket
from tests.bench.samples import Samples, percentile
from tests.bench.sampling import PeakMemory
from tests.bench.scans import ScanJob, ScanResult
from tests.bench.streams import PutJob
from tests.drivers.daemon import Daemon

NAME = "readers"
_BATCH_ROWS = 10_000
_WRITERS = 8
_WRITES_PER_S = 10.0
"""By each writer: 800,000 rows/s together."""


def run(bench: Bench) -> list[Table]:
    """Measure the rate of all readers together, the slowest reader's first batch, and memory."""
    rows = bench.effort.reader_rows
    table = Table(
        NAME,
        f"Readers: each reads {rows:,} rows of buffers",
        ["readers", "beside", "rows/s", "slowest first batch", "memory above", "ack p50",
         "ack p99"],
        notes=[
            f"writers: {_WRITERS} of them, {_WRITES_PER_S:g} batches of {_BATCH_ROWS:,} rows a"
            " second each, to another table",
            "memory above: the peak of resident memory over what was there before",
        ],
    )  # fmt: skip
    with Clients() as reading, Clients(2) as writing, bench.daemon() as daemon:
        fill(daemon, "read", rows, _BATCH_ROWS)
        for readers in bench.effort.readers:
            for beside in ("nothing", "writers"):
                bench.say(f"{readers} readers beside {beside}")
                results, memory, latencies = [], [], []
                for _ in range(bench.effort.repeats):
                    before, peak = daemon.resident_bytes, PeakMemory(daemon.pid)
                    job = ScanJob(daemon.flight, ticket("read"), readers)
                    if beside == "nothing":
                        result = reading.scan(job)
                    else:
                        result, written = _beside(daemon, reading, writing, job)
                        latencies.append(written.latencies)
                    if result.rows != rows * readers:
                        raise AssertionError(f"{result.rows} rows came to {readers} readers")
                    results.append(result)
                    memory.append(max(0.0, float(peak.bytes - before)))
                table.add(
                    readers=readers,
                    beside=beside,
                    rows__s=Samples(tuple(r.rows / r.seconds for r in results), "/s"),
                    slowest_first_batch=Samples(tuple(r.first_s for r in results), "s"),
                    memory_above=Samples(tuple(memory), "B"),
                    **{
                        f"ack_{name}": Samples(
                            tuple(percentile(each, share) for each in latencies), "s"
                        )
                        for name, share in (("p50", 0.5), ("p99", 0.99))
                        if latencies
                    },
                )
    return [table]


def _beside(
    daemon: Daemon, reading: Clients, writing: Clients, job: ScanJob
) -> tuple[ScanResult, Written]:
    """Return both results; the writers begin before the readers and end after them."""
    over = threading.Event()
    written: list[Written] = []

    def write() -> None:
        while not written or not over.is_set():
            put = PutJob(
                flight=daemon.flight,
                table="written",
                rows=_BATCH_ROWS,
                streams=_WRITERS,
                seconds=0.5,
                per_s=_WRITES_PER_S,
            )
            written.append(writing.write(put))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        result = reading.scan(job)
    finally:
        over.set()
        thread.join()
    return result, Written.together(written)
