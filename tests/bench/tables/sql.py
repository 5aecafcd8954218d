"""Tables "sql…": ten queries by the daemon, compared with DuckDB, and what a heavy query costs.

The same rows are first in buffers and then in files. DuckDB has them as an Arrow table in its
memory and reads the same Parquet files. Each query is asked of both in turns. In a full run Spark
reads the files too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.requests import NAMESPACE, create_table, persist, send
from tests.bench.samples import Samples
from tests.bench.sql.asking import Asker
from tests.bench.sql.beside import beside, limits, round_trips
from tests.bench.sql.plain_duckdb import Answered, PlainDuckDB
from tests.bench.sql.plain_spark import PlainSpark
from tests.bench.sql.queries import DataSet, data_set
from tests.drivers.daemon import Daemon

NAME = "sql"
_COLUMNS = ["rows", "query", "daemon", "DuckDB", "of DuckDB"]
_WANTED = {"files": 1.5, "buffers": 2.0}
_TOGETHER = "all ten"
Ask = Callable[[str], Answered]


def run(bench: Bench) -> Iterator[Table]:
    """Measure queries of buffers, of files, and what SQL costs others."""
    buffers = Table("sql-buffers", "SQL: rows in buffers; DuckDB: Arrow tables", [*_COLUMNS])
    files = Table("sql-files", "SQL: rows in files; DuckDB: the same Parquet", [*_COLUMNS])
    with ExitStack() as stack:
        daemon = stack.enter_context(bench.daemon())
        asker = stack.enter_context(Asker(daemon))
        spark = stack.enter_context(PlainSpark()) if bench.effort.sql_spark else None
        if spark is not None:
            files.columns += ["Spark", "of Spark"]
        duckdb = stack.enter_context(PlainDuckDB())
        for name in bench.effort.sql_data:
            data = data_set(name, bench.effort.sql_rows)
            parties: dict[str, Ask] = {"daemon": asker.ask, "DuckDB": duckdb.ask}
            _fill(daemon, data)
            duckdb.use_arrow(name, bench.effort.sql_rows)
            _compare(bench, buffers, "buffers", data, parties)
            found = {table: _persisted(daemon, table) for table in data.tables}
            duckdb.use_files(found)
            if spark is not None:
                spark.use_files(found)
                parties["Spark"] = spark.ask
            _compare(bench, files, "files", data, parties)
        yield buffers
        yield files
        yield round_trips(bench, daemon)
        yield beside(bench, daemon)
    yield limits(bench)


def _fill(daemon: Daemon, data: DataSet) -> None:
    """Write all rows; they stay in buffers."""
    partition_by = [data.partition_by]
    for table, make in data.tables.items():
        batches = make()
        create_table(daemon.flight, table, schema=batches[0].schema, partition_by=partition_by)
        send(daemon.flight, table, batches)
        partition_by = []


def _persisted(daemon: Daemon, table: str) -> list[Path]:
    """Flush a table and return its files."""
    persist(daemon, table)
    return sorted((daemon.data_dir / "store" / NAMESPACE / table).rglob("*.parquet"))


def _compare(
    bench: Bench, table: Table, place: str, data: DataSet, parties: Mapping[str, Ask]
) -> None:
    """Ask every query of every party in turns and add a row for each and one for all."""
    taken: dict[str, dict[str, tuple[float, ...]]] = {}
    for kind, query in data.queries.items():
        bench.say(f"{data.name} in {place}: {kind}")
        taken[kind] = _in_turns(bench.effort.sql_repeats, query, parties)
    taken[_TOGETHER] = {
        party: tuple(map(sum, zip(*(each[party] for each in taken.values()), strict=True)))
        for party in parties
    }
    for kind, by_party in taken.items():
        seconds = {party: Samples(each, "s") for party, each in by_party.items()}
        ratios = {f"of {party}": seconds["daemon"].over(seconds[party]) for party in parties}
        del ratios["of daemon"]
        table.rows.append({"rows": data.name, "query": kind, **seconds, **ratios})
        if kind == _TOGETHER:
            what = f"ten queries of {data.name} in {place}, of DuckDB's seconds"
            target = Target(what, _WANTED[place], ratios["of DuckDB"], below=True)
            table.targets.append(target)


def _in_turns(repeats: int, query: str, parties: Mapping[str, Ask]) -> dict[str, tuple[float, ...]]:
    """Return the seconds of each party, after one warm-up each, in an order that alternates."""
    seconds: dict[str, tuple[float, ...]] = dict.fromkeys(parties, ())
    for repeat in range(repeats + 1):
        rows = set()
        for party in parties if repeat % 2 else reversed(list(parties)):
            answered = parties[party](query)
            rows.add(answered.rows)
            if repeat:
                seconds[party] += (answered.seconds,)
        if len(rows) > 1:
            raise AssertionError(f"answers of {sorted(rows)} rows: {query}")
    return seconds
