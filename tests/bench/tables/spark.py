"""Table "spark": reading a table's files through ``read_table``, beside Spark's own reader.

Law of this file: one session, one folder of files, the same job over both: a sum over two columns,
so that rows are read and not only counted. In turns, after one of each to warm up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.bench.asking import fill, persist
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.samples import Samples
from tests.daemon import Daemon

NAME = "spark"
COLUMNS = ["reader", "seconds", "rows/s", "of spark.read.parquet"]
_BATCH_ROWS = 10_000


def run(bench: Bench) -> list[Table]:
    """Seconds of a query over all rows, by reader; nothing but a note where Spark is missing."""
    rows = bench.effort.spark_rows
    if not rows:
        return []
    table = Table(
        NAME,
        f"Spark: a sum over {rows:,} rows of files",
        COLUMNS,
    )
    try:
        from ingester.spark.session import local_session

        session = local_session("ingester benchmark", cores=2, shuffle_partitions=2)
    except Exception as exc:
        table.notes.append(f"skipped: {type(exc).__name__}: {str(exc).splitlines()[0]}")
        return [table]
    try:
        with bench.daemon() as daemon:
            fill(daemon, "lake", rows, _BATCH_ROWS)
            persist(daemon, "lake")
            measure(bench, table, session, daemon, rows)
    finally:
        session.stop()
    return [table]


def measure(bench: Bench, table: Table, session: Any, daemon: Daemon, rows: int) -> None:
    """Fill the table in: seconds by reader of a table ``lake`` that is in files."""
    from ingester.spark import read_table

    url = f"file://{daemon.data_dir / 'store'}"
    files = [f"file://{path}" for path in (daemon.data_dir / "store").rglob("*.parquet")]
    readers: dict[str, Callable[[], Any]] = {
        "spark.read.parquet": partial(session.read.parquet, *files),
        "read_table": partial(read_table, session, url, "bench", "lake"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    for repeat in range(bench.effort.repeats + 1):
        bench.say(f"repeat {repeat} of {bench.effort.repeats}")
        for name, reader in readers.items():
            began = time.perf_counter()
            # From the first call on: which files there are is a part of reading a table.
            found = reader().selectExpr("count(*)", "sum(load)", "sum(temperature)").collect()[0]
            if repeat:
                seconds[name].append(time.perf_counter() - began)
            if found[0] != rows:
                raise AssertionError(f"{name}: {found[0]} rows, {rows} are there")
    beside = Samples(tuple(seconds["spark.read.parquet"]), "s")
    for name, taken in seconds.items():
        mine = Samples(tuple(taken), "s")
        table.rows.append(
            {
                "reader": name,
                "seconds": mine,
                "rows/s": Samples(tuple(rows / each for each in taken), "/s"),
                "of spark.read.parquet": mine.over(beside),
            }
        )
    ratio = Samples(tuple(seconds["read_table"]), "s").over(beside)
    table.targets.append(Target("read_table, seconds of spark.read.parquet", 1.1, ratio, True))
