"""Table "partitions": rows a second for tables with many partitions and batches that span many.

Every table has rows in all its partitions before the clock starts. The same streams write to
each table, one cell of a repeat after another. "Inside one": each batch lies in one partition,
the next batch in the next; the batches for a table with one partition are made the same way.
"Over 100": each batch has rows of a hundred partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tests.bench.clients import Clients
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.requests import create_table, send
from tests.bench.rows import HOSTS, REGIONS, ROW_BYTES, SCHEMA, in_hour
from tests.bench.samples import Samples
from tests.bench.streams import PutJob

NAME = "partitions"
_ROWS = 10_000
_WRITERS = 8


@dataclass(frozen=True, slots=True)
class _Case:
    """A table, its live partitions, and how many of them a batch spans."""

    table: str
    partition_by: tuple[str, ...]
    hours: int
    partitions: int
    touched: int


def _cases(most: int) -> list[_Case]:
    many, each_host = f"{most}-1", f"{most}-100"
    return [
        _Case("one", (), 1, 1, 1),
        _Case("100-1", ("hour(time)",), 100, 100, 1),
        _Case(many, ("hour(time)",), most, most, 1),
        _Case("100-100", ("identity(host)",), 1, 100, 100),
        _Case(each_host, ("identity(host)", "hour(time)"), most // 100, most, 100),
    ]


def run(bench: Bench) -> list[Table]:
    """Measure burst rates without flushes by partitions, relative to one partition."""
    effort = bench.effort
    cases = _cases(effort.partitions)
    found: dict[_Case, list[float]] = defaultdict(list)
    with Clients() as clients:
        for repeat in range(effort.heavy_repeats):
            with bench.daemon() as daemon:
                for case in cases:
                    create_table(daemon.flight, case.table, partition_by=case.partition_by)
                    send(daemon.flight, case.table, list(_a_row_in_each(case)))
                for case in cases:
                    bench.say(f"repeat {repeat + 1} of {effort.heavy_repeats}, {case.table}")
                    written = clients.write(_job(bench, daemon.flight, case))
                    found[case].append(written.rows_per_s)
    return [_table(found)]


def _job(bench: Bench, flight: str, case: _Case) -> PutJob:
    return PutJob(
        flight=flight,
        table=case.table,
        rows=_ROWS,
        streams=_WRITERS,
        seconds=bench.effort.cell_s,
        max_rows=bench.effort.cell_bytes // ROW_BYTES,
        hours=case.hours,
    )


def _a_row_in_each(case: _Case) -> Iterator[pa.RecordBatch]:
    """Rows that put one row into each partition of the case."""
    hosts = len(HOSTS)
    one_hour = pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(hosts, 1_795_219_200_000_000)).view(SCHEMA.field(0).type),
            HOSTS,
            pa.array([REGIONS[0]] * hosts),
            pa.array(np.zeros(hosts)),
            pa.array(np.zeros(hosts)),
        ],
        schema=SCHEMA,
    )
    if case.touched > 1 or case.hours == 1:
        yield from (in_hour(one_hour, hour) for hour in range(case.hours))
    else:
        times = one_hour.slice(0, 1)
        for first in range(0, case.hours, hosts):
            rows = [in_hour(times, first + hour) for hour in range(hosts)]
            yield pa.Table.from_batches(rows).combine_chunks().to_batches()[0]


def _table(found: dict[_Case, list[float]]) -> Table:
    table = Table(
        NAME,
        f"Partitions: rows/s, {_ROWS:,}-row batches by {_WRITERS} writers, pipelined, no persists",
        ["live partitions", "touched by a batch", "rows/s", "of one partition"],
    )
    one, *_ = (Samples(tuple(values), "/s") for values in found.values())
    for case, values in found.items():
        rates = Samples(tuple(values), "/s")
        table.add(
            live_partitions=case.partitions,
            touched_by_a_batch=case.touched,
            rows__s=rates,
            of_one_partition=rates.over(one),
        )
        if case.partitions > 100 and case.touched == 1:
            what = f"ingest with {case.partitions:,} live partitions, of one"
            table.targets.append(Target(what, 0.5, rates.over(one)))
    return table
