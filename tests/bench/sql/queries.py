"""Two data sets and ten queries over each: the benchmark's rows, and the demo's flights.

Both have a small second table to join with. The queries run unchanged in DuckDB; Spark names the
type of instants differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from tests.bench.rows import HOSTS, batches_of, flights

BATCH_ROWS = 10_000
ROWS = "rows"
FLIGHTS = "flights"


@dataclass(frozen=True, slots=True)
class DataSet:
    """Tables by name, made when asked for, and queries by kind.

    Attributes:
        name: what the result calls it.
        tables: functions that make each table's batches; the first table is the large one.
        queries: the SQL of each kind of query.
        partition_by: of the large table.
    """

    name: str
    tables: dict[str, Callable[[], list[pa.RecordBatch]]]
    queries: dict[str, str]
    partition_by: str


def data_set(name: str, rows: int) -> DataSet:
    """Return a data set by its name; ``rows`` is the number of rows of ``events``."""
    return _flights() if name == FLIGHTS else _rows(rows)


def _rows(rows: int) -> DataSet:
    return DataSet(
        ROWS,
        {
            "events": partial(batches_of, rows, BATCH_ROWS, seed=0),
            "hosts": partial(_numbered, "host", "rack", HOSTS),
        },
        {
            "point": f"SELECT * FROM events WHERE {_one_row(rows)}",
            "range": "SELECT count(*), max(temperature) FROM events"
            " WHERE time >= TIMESTAMPTZ '2026-11-21 12:00:00+00:00'"
            " AND time < TIMESTAMPTZ '2026-11-21 13:00:00+00:00'",
            "few groups": "SELECT region, count(*), avg(load) FROM events"
            " GROUP BY region ORDER BY region",
            "many groups": "SELECT host, date_trunc('minute', time), avg(load) AS mean FROM events"
            " GROUP BY host, date_trunc('minute', time) ORDER BY mean DESC LIMIT 10",
            "join": "SELECT rack, avg(load) FROM events JOIN hosts USING (host)"
            " GROUP BY rack ORDER BY rack",
            "window": "SELECT max(step) FROM (SELECT load - lag(load)"
            " OVER (PARTITION BY host ORDER BY time) AS step FROM events)",
            "distinct": "SELECT count(DISTINCT temperature) FROM events",
            "top-k": "SELECT * FROM events ORDER BY load DESC LIMIT 100",
            "string filter": "SELECT count(*), avg(temperature) FROM events"
            " WHERE region = 'iad' AND host LIKE 'host-1%'",
            "average": "SELECT avg(load), avg(temperature) FROM events",
        },
        "day(time)",
    )


def _one_row(rows: int) -> str:
    batches = batches_of(rows, BATCH_ROWS, seed=0)
    [row] = batches[len(batches) // 2].slice(0, 1).to_pylist()
    return f"host = '{row['host']}' AND time = TIMESTAMPTZ '{row['time'].isoformat()}'"


def _flights() -> DataSet:
    return DataSet(
        FLIGHTS,
        {
            "flights": lambda: flights().to_batches(max_chunksize=BATCH_ROWS),
            "carriers": lambda: _numbered("carrier", "fleet", flights()["carrier"].unique()),
        },
        {
            "point": "SELECT * FROM flights WHERE carrier = 'UA' AND flight = 1545"
            " AND time_hour = TIMESTAMPTZ '2013-01-01 10:00:00+00:00'",
            "range": "SELECT count(*), max(arr_delay) FROM flights"
            " WHERE time_hour >= TIMESTAMPTZ '2013-06-01 00:00:00+00:00'"
            " AND time_hour < TIMESTAMPTZ '2013-06-15 00:00:00+00:00'",
            "few groups": "SELECT carrier, count(*), avg(dep_delay) FROM flights"
            " GROUP BY carrier ORDER BY carrier",
            "many groups": "SELECT tailnum, dest, avg(arr_delay) AS mean FROM flights"
            " GROUP BY tailnum, dest ORDER BY mean DESC NULLS LAST LIMIT 10",
            "join": "SELECT fleet, avg(distance) FROM flights JOIN carriers USING (carrier)"
            " GROUP BY fleet ORDER BY fleet",
            "window": "SELECT max(step) FROM (SELECT dep_delay - lag(dep_delay)"
            " OVER (PARTITION BY tailnum ORDER BY time_hour) AS step FROM flights)",
            "distinct": "SELECT count(DISTINCT tailnum) FROM flights",
            "top-k": "SELECT * FROM flights ORDER BY arr_delay DESC NULLS LAST LIMIT 100",
            "string filter": "SELECT count(*), avg(arr_delay) FROM flights"
            " WHERE dest = 'LAX' AND origin LIKE 'J%'",
            "average": "SELECT avg(dep_delay), avg(arr_delay) FROM flights",
        },
        "month(time_hour)",
    )


def _numbered(key: str, group: str, values: pa.Array) -> list[pa.RecordBatch]:
    """Return a table that assigns each value to one of ten groups."""
    groups = pa.array([number % 10 for number in range(len(values))])
    return [pa.RecordBatch.from_arrays([values, groups], names=[key, group])]
