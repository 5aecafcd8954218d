"""Table "partitions": rows a second for tables with many partitions and batches that span many.

Every table has rows in all its partitions before the clock starts. The same streams write to each
table, in one order and then in the reverse one, each time by the client library with its defaults
and, as ``raw``, by plain Flight calls without an origin. Where a batch touches one partition, the
next batch lies in the next partition; the batches for a table with one partition are made the same
way. The batches of 500 rows are the demo's flights, by carrier and in one partition.

    make bench ARGS=partitions
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.bench.clients import Clients
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.requests import create_table, send
from tests.bench.rows import HOSTS, REGIONS, ROW_BYTES, SCHEMA, flights, in_hour
from tests.bench.samples import Samples
from tests.bench.streams import PutJob

NAME = "partitions"
_WRITERS = 8
_BATCHES = 400
"""Of all writers. Else, where the server is slow, they would send ahead for seconds."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A table, its live partitions, and how many of them a batch spans."""

    table: str
    partition_by: tuple[str, ...]
    hours: int
    partitions: int
    touched: int
    rows: int = 10_000
    """Rows of a batch."""
    flights: bool = False


def _cases(most: int) -> list[_Case]:
    many, each_host = f"{most}-1", f"{most}-100"
    carrier = ("identity(carrier)",)
    return [
        _Case("one", (), 1, 1, 1),
        _Case("100-100", ("identity(host)",), 1, 100, 100),
        _Case(each_host, ("identity(host)", "hour(time)"), most // 100, most, 100),
        _Case(many, ("hour(time)",), most, most, 1),
        _Case("flights", (), 0, 1, 1, 500, flights=True),
        _Case("carriers", carrier, 0, 16, 14, 500, flights=True),
    ]


def run(bench: Bench) -> list[Table]:
    """Measure burst rates without flushes by partitions, relative to one partition."""
    effort = bench.effort
    cases = _cases(effort.partitions)
    found: dict[tuple[_Case, bool], list[float]] = defaultdict(list)
    with Clients() as clients:
        for repeat in range(effort.repeats):
            with bench.daemon() as daemon:
                for case in cases:
                    rows = list(_a_row_in_each(case))
                    for table in (_table_of(case, shipped) for shipped in (True, False)):
                        schema, spec = rows[0].schema, case.partition_by
                        create_table(daemon.flight, table, schema=schema, partition_by=spec)
                        send(daemon.flight, table, rows)
                for case in cases if repeat % 2 else reversed(cases):
                    bench.say(f"repeat {repeat + 1} of {effort.repeats}, {case.table}")
                    for shipped in (True, False) if repeat % 2 else (False, True):
                        written = clients.write(_job(bench, daemon.flight, case, shipped=shipped))
                        found[case, shipped].append(written.rows_per_s)
    return [_table(cases, found)]


def _table_of(case: _Case, shipped: bool) -> str:
    return f"{case.table}-{'shipped' if shipped else 'raw'}"


def _job(bench: Bench, flight: str, case: _Case, *, shipped: bool) -> PutJob:
    return PutJob(
        flight=flight,
        table=_table_of(case, shipped),
        rows=case.rows,
        streams=_WRITERS,
        # In a short cell eight streams mostly start and drain.
        seconds=bench.effort.cell_s * 2,
        max_rows=min(bench.effort.cell_bytes // ROW_BYTES, _BATCHES * case.rows),
        flights=case.flights,
        hours=case.hours,
        shipped=shipped,
    )


def _a_row_in_each(case: _Case) -> Iterator[pa.RecordBatch]:
    """Rows that put one row into each partition of the case."""
    if case.flights:
        carriers = flights()["carrier"]
        firsts = [pc.index(carriers, carrier).as_py() for carrier in carriers.unique()]
        yield from flights().take(firsts).combine_chunks().to_batches()
        return
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


def _table(cases: list[_Case], found: dict[tuple[_Case, bool], list[float]]) -> Table:
    table = Table(
        NAME,
        f"Partitions: rows/s, {_WRITERS} writers, pipelined, no persists",
        [
            "rows",
            "live partitions",
            "touched by a batch",
            "rows/s",
            "of one partition",
            "raw",
            "raw of one partition",
            "of raw",
        ],
        notes=[
            "rows/s: by the client library with its defaults; raw: by plain Flight calls without"
            " an origin, so not exactly once",
            "batches of 500 rows: the demo's flights, 19 columns, by carrier; others: 5 columns",
        ],
    )
    every = {cell: Samples(tuple(values), "/s") for cell, values in found.items()}
    one = {case.flights: case for case in cases if case.partitions == 1}
    for case in cases:
        rates, raw = every[case, True], every[case, False]
        of_one = rates.over(every[one[case.flights], True])
        table.add(
            rows=case.rows,
            live_partitions=case.partitions,
            touched_by_a_batch=case.touched,
            rows__s=rates,
            of_one_partition=of_one,
            raw=raw,
            raw_of_one_partition=raw.over(every[one[case.flights], False]),
            of_raw=rates.over(raw),
        )
        if case.table == "carriers":
            what = "500 rows x 19 columns into 16 partitions, of one partition"
        elif case.table == "100-100":
            what = "10,000 rows x 8 pipelined touching 100 partitions, of one partition"
        elif case.partitions > 100 and case.touched == 1:
            what = f"ingest with {case.partitions:,} live partitions, of one"
        else:
            continue
        table.targets.append(Target(what, 0.5, of_one))
    return table
