"""Tables "spark": reads, writes and compaction with Spark, compared with Spark's own files.

All parties run the same job in one session over the same files, in turns, after one warm-up
each. The baseline is Spark's own reader and writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

from persist.manifest import Manifest
from persist.store import open_store
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.requests import fill, persist
from tests.bench.rows import SCHEMA, batches_of
from tests.bench.samples import Samples
from tests.drivers.daemon import Daemon

NAME = "spark"
READING = ["job", "reader", "seconds", "rows/s", "of spark.read.parquet"]
WRITING = ["job", "who", "seconds", "rows/s", "bytes/s", "of Spark's own"]
SCANNING = ["files", "seconds", "of compacted"]
_BATCH_ROWS = 10_000
_LAKE = "bench/lake"
WANTED = {
    ("sum over all columns", "read_table"): 1.1,
    ("sum over all columns", 'format("ingester")'): 1.3,
    ("one column", 'format("ingester")'): 1.5,
    ("count", 'format("ingester")'): 1.5,
}
"""In multiples of the seconds of ``spark.read.parquet``."""


def run(bench: Bench) -> list[Table]:
    """Measure seconds by job and party; the result is only a note if Spark is missing."""
    rows = bench.effort.spark_rows
    if not rows:
        return []
    reading = Table("spark-reading", f"Spark: {rows:,} rows of files, read", READING)
    writing = Table("spark-writing", f"Spark: {rows:,} rows, written and compacted", WRITING)
    scanning = Table("spark-small-files", "Spark: a scan before and after compaction", SCANNING)
    try:
        from ingester.spark.session import local_session

        session = local_session("ingester benchmark", cores=2, shuffle_partitions=2)
    except Exception as exc:
        reading.notes.append(f"skipped: {type(exc).__name__}: {str(exc).splitlines()[0]}")
        return [reading]
    try:
        with bench.daemon() as daemon:
            fill(daemon, "lake", rows, _BATCH_ROWS)
            persist(daemon, "lake")
            measure_reading(bench, reading, session, daemon, rows)
            measure_writing(bench, writing, session, daemon, rows)
            measure_small_files(bench, scanning, session, daemon)
    finally:
        session.stop()
    return [reading, writing, scanning]


def measure_reading(bench: Bench, table: Table, session: Any, daemon: Daemon, rows: int) -> None:
    """Fill the table in: seconds by job and reader for a table ``lake`` that is in files."""
    from ingester.spark import read_table, register
    from tests.bench.ready_rows import FORMAT as READY
    from tests.bench.ready_rows import register_ready_rows

    register(session)
    register_ready_rows(session)
    url = _url(daemon)
    files = [f"file://{path}" for path in _files(daemon, "lake")]
    jobs: dict[str, tuple[str | None, list[str]]] = {
        "sum over all columns": (
            None,
            ["count(*)", *(f"max({name})" for name in (*SCHEMA.names, "time_day"))],
        ),
        "one column": ("load", ["count(*)", "sum(load)"]),
        "count": ("", ["count(*)"]),
    }
    for job, (columns, asked) in jobs.items():
        named = {} if columns is None else {"columns": columns}
        counted = job == "count"
        source = session.read.format("ingester").options(**{"count": "true"} if counted else named)
        ready = session.read.format(READY).options(**named)
        # Both of Spark's own readers derive the day from the files' folder.
        plain = session.read.option("basePath", f"{url}/{_LAKE}/v1/data")
        readers: dict[str, Callable[[], Any]] = {
            "spark.read.parquet": partial(plain.parquet, *files),
            "read_table": partial(read_table, session, url, "bench", "lake"),
            'format("ingester")': partial(source.load, f"{url}/{_LAKE}"),
            "a data source of ready rows": partial(ready.load, f"{url}/{_LAKE}"),
        }
        work = {
            name: partial(
                _asked,
                reader,
                ["sum(count)"] if counted and name == 'format("ingester")' else asked,
                rows,
            )
            for name, reader in readers.items()
        }
        seconds = _in_turns(bench, job, work)
        beside = Samples(seconds["spark.read.parquet"], "s")
        for name, taken in seconds.items():
            mine = Samples(taken, "s")
            ratio = mine.over(beside)
            table.rows.append(
                {
                    "job": job,
                    "reader": name,
                    "seconds": mine,
                    "rows/s": Samples(tuple(rows / each for each in taken), "/s"),
                    "of spark.read.parquet": ratio,
                }
            )
            if (wanted := WANTED.get((job, name))) is not None:
                what = f"{name}, {job}, of spark.read.parquet"
                table.targets.append(Target(what, wanted, ratio, True))
    table.notes.append("columns are said to the data source; Spark tells it of none, nor of counts")
    table.notes.append("ready rows: no file is read, so no data source in Python can be faster")


def measure_writing(bench: Bench, table: Table, session: Any, daemon: Daemon, rows: int) -> None:
    """Fill the table in: a copy of ``lake`` through the sink, and a rewrite of all its files."""
    from ingester.spark import read_table, rewrite

    url, own = _url(daemon), str(bench.new_folder() / "own")
    first = Manifest(open_store(url), "bench", "lake").head()
    lake = read_table(session, url, "bench", "lake", first).drop("time_day")
    nbytes = sum(path.stat().st_size for path in _files(daemon, "lake"))

    def plain() -> None:
        lake.write.mode("overwrite").parquet(own)

    def sink() -> None:
        lake.write.format("ingester").mode("append").save(f"{url}/{_LAKE}")

    written = _in_turns(bench, "write", {"df.write.parquet": plain, "our sink, sorted": sink})
    _add(table, "copy of the table", written, rows, nbytes)

    state = Manifest(open_store(url), "bench", "lake").load()
    paths = [f"{url}/{_LAKE}/v1/{path}" for path in state.files]

    def sorted_by_spark() -> None:
        frame = session.read.parquet(*paths)
        frame.sortWithinPartitions("region", "host", "time").write.mode("overwrite").parquet(own)

    anew = {
        "Spark reads, sorts, writes": _seconds(sorted_by_spark),
        "rewrite": _seconds(partial(rewrite, session, url, "bench", "lake")),
    }
    _add(table, "all files anew", anew, state.rows, state.bytes)
    rmtree(own, ignore_errors=True)


def measure_small_files(bench: Bench, table: Table, session: Any, daemon: Daemon) -> None:
    """Fill the table in: a scan of many small files, before and after compaction."""
    from ingester.spark import compact, read_table

    url, number = _url(daemon), bench.effort.spark_small_files
    fill(daemon, "small", 1, 1)
    persist(daemon, "small")
    rows = read_table(session, url, "bench", "lake").drop("time_day").limit(number * 10)
    # Stop after the tenth row, which is more than nine: a task per file would take minutes.
    nine = next(iter(batches_of(9, 9, seed=0))).nbytes
    writer = rows.repartition(2).write.format("ingester").option("target_file_bytes", nine)
    writer.mode("append").save(f"{url}/bench/small")
    reader = partial(read_table, session, url, "bench", "small")
    scan = partial(_asked, reader, ["count(*)", "sum(load)"], number * 10 + 1)
    taken = {}
    for what in ("small files", "compacted"):
        files = len(Manifest(open_store(url), "bench", "small").load().files)
        taken[what, files] = _in_turns(bench, f"scan of {files:,} files", {"scan": scan})["scan"]
        if what == "small files":
            bench.say(f"compaction of {files:,} files")
            compact(session, url, "bench", "small")
    least = Samples(list(taken.values())[-1], "s")
    for (_, files), seconds in taken.items():
        mine = Samples(seconds, "s")
        table.rows.append({"files": files, "seconds": mine, "of compacted": mine.over(least)})


def _url(daemon: Daemon) -> str:
    return f"file://{daemon.data_dir / 'store'}"


def _files(daemon: Daemon, table: str) -> list[Path]:
    return sorted((daemon.data_dir / "store" / "bench" / table).rglob("*.parquet"))


def _asked(reader: Callable[[], Any], asked: list[str], rows: int) -> None:
    """Time a query from the first call: listing the files is part of reading a table."""
    found = reader().selectExpr(*asked).collect()[0]
    if found[0] != rows:
        raise AssertionError(f"{found[0]} rows, {rows} are there")


def _seconds(work: Callable[[], object]) -> tuple[float, ...]:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began,)


def _in_turns(
    bench: Bench, what: str, work: Mapping[str, Callable[[], object]]
) -> dict[str, tuple[float, ...]]:
    """Return the seconds of each party, after one warm-up each."""
    seconds: dict[str, tuple[float, ...]] = dict.fromkeys(work, ())
    for repeat in range(bench.effort.repeats + 1):
        bench.say(f"{what}, repeat {repeat} of {bench.effort.repeats}")
        for name, each in work.items():
            taken = _seconds(each)
            if repeat:
                seconds[name] += taken
    return seconds


def _add(
    table: Table, job: str, seconds: Mapping[str, tuple[float, ...]], rows: int, nbytes: int
) -> None:
    """Add the rows of a job; the first party is Spark itself."""
    own = Samples(next(iter(seconds.values())), "s")
    for name, taken in seconds.items():
        mine = Samples(taken, "s")
        table.rows.append(
            {
                "job": job,
                "who": name,
                "seconds": mine,
                "rows/s": Samples(tuple(rows / each for each in taken), "/s"),
                "bytes/s": Samples(tuple(nbytes / each for each in taken), "B/s"),
                "of Spark's own": mine.over(own),
            }
        )
