"""Tables "open-…": publishing versions as Iceberg and Delta, and reading what is published.

Publishing is measured without a daemon, on a local disk, by files of the table; requests and bytes
are counted at the store. Readers scan the same files once by their metadata and once as plain
Parquet, in turns. Spark and DuckDB run in processes of their own (``tests.open_tables``).
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from persist.manifest import (
    Action,
    Add,
    Applied,
    ColumnStats,
    Manifest,
    Proposal,
    WriterIdentity,
    commit,
)
from persist.partitioning import PartitionSpec
from persist.publish.format import FORMATS
from persist.publish.publisher import Publisher
from persist.store import open_store
from persist.table import TableDefinition
from tests.bench.clients import Clients
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.requests import create_table, persist, send
from tests.bench.rows import SCHEMA, batches_of
from tests.bench.samples import Samples, percentile
from tests.bench.streams import PutJob
from tests.open_tables import processes
from tests.open_tables.engines import Place, static_table
from tests.open_tables.terms import Term, pyiceberg_expression
from tests.persist.manifest.stores import FaultyStore

NAME = "open"
_WRITER = WriterIdentity("bench", "run", 1)
_COLUMNS = 20
_COMMITS_PER_S = 10.0
_COMMITS = 20
_FIRST_DAY = dt.date(2026, 1, 1)
_FILES_OF_A_DAY = 1_000
_DAY_S = 86_400.0
_WRITERS, _BATCH_ROWS = 8, 10_000
_FLUSHES = {"persist__max_age": "500ms", "persist__queue_bytes": "8GiB"}
"""Writers at full speed; a queue that holds what flushes do not take in time."""
_DEFINITION = TableDefinition(
    pa.schema(
        [
            *((f"column_{n:02d}", pa.float64()) for n in range(_COLUMNS)),
            ("time", pa.timestamp("us", "UTC")),
        ]
    ),
    PartitionSpec.parse(["day(time)"]),
)
READING = ["engine", "job", "of", "seconds", "of parquet"]


def run(bench: Bench) -> Iterator[Table]:
    """Measure publishing, opening, writers beside it, and scans."""
    stores = [_Published(bench, files) for files in bench.effort.open_files]
    yield _publishing(bench, stores)
    yield _beside(bench)
    with ExitStack() as stack:
        engines = _engines(bench, stack)
        yield _opening(bench, stores[-1], engines)
        if engines and bench.effort.open_rows:
            yield _reading(bench, engines)


class _Published:
    """A table of many files, which exist in its manifest and metadata alone."""

    def __init__(self, bench: Bench, files: int) -> None:
        bench.say(f"a table of {files:,} files")
        self.files = files
        self.store = FaultyStore(open_store(f"file://{bench.new_folder()}"))
        self.manifest = Manifest(self.store, "bench", "open")
        self.publisher = Publisher(self.store, "bench", "open")
        self.state = commit(self.manifest, None, Proposal(_DEFINITION.actions()), _WRITER)
        self._seq = 0
        for first in range(0, files, 10_000):
            self.add(min(10_000, files - first))
        self.publish()
        self.publish_one()

    def add(self, files: int) -> None:
        """Commit files of one operation."""
        adds = [_add(self._seq + n) for n in range(1, files + 1)]
        self._seq += files
        mark: Action = Applied(_WRITER.ingester_id, _WRITER.epoch, 1, (None,), self._seq)
        self.state = commit(self.manifest, self.state, Proposal([*adds, mark]), _WRITER)

    def publish(self) -> None:
        """Publish all versions in both formats."""
        told = self.publisher.publish(FORMATS, retain_s=_DAY_S, upto=self.state)
        if any(one.refused or one.error or one.versions_behind for one in told):
            raise AssertionError(told)

    def publish_one(self) -> float:
        """Commit a file and publish it; the seconds between."""
        self.add(1)
        began = time.perf_counter()
        self.publish()
        return time.perf_counter() - began

    def places(self) -> list[Place]:
        """Where engines find the table."""
        return [Place(each, f"{self.store.url}/bench/open") for each in FORMATS]


def _add(seq: int) -> Add:
    day = (_FIRST_DAY + dt.timedelta(days=seq // _FILES_OF_A_DAY)).isoformat()
    return Add(
        path=f"data/time_day={day}/{seq:032x}.parquet",
        kind="persist",
        rows=100_000,
        bytes=4_000_000,
        spec_id=1,
        values=(day,),
        stats={
            f"column_{n:02d}": ColumnStats(min=float(n), max=n + 0.5, nulls=0)
            for n in range(_COLUMNS)
        },
        writer=_WRITER.ingester_id,
        epoch=_WRITER.epoch,
        first_seq=seq,
        last_seq=seq,
        schema_id=1,
        at="2026-11-21T00:00:00+00:00",
        footer_crc32c=seq,
    )


def _publishing(bench: Bench, stores: Sequence[_Published]) -> Table:
    """The delay of a version and its cost, at ten commits a second."""
    table = Table(
        "open-publishing",
        f"Publishing as Iceberg and Delta: {_COMMITS_PER_S:g} commits a second, {_COLUMNS} columns",
        ["live files", "publish p50", "publish p99", "objects/commit", "bytes/commit",
         "of fewest"],
        notes=["each commit adds one file; bytes are those of both formats, of all their objects"],
    )  # fmt: skip
    fewest, grown = 0.0, Samples((1.0,), "x")
    for each in stores:
        bench.say(f"publishing, {each.files:,} files")
        each.store.calls.clear()
        each.store.bytes_put = 0
        delays, manifest_bytes = [], 0
        for _ in range(bench.effort.repeats):
            due, seconds = time.monotonic(), []
            for _ in range(_COMMITS):
                before = each.store.bytes_put
                each.add(1)
                manifest_bytes += each.store.bytes_put - before
                began = time.perf_counter()
                each.publish()
                seconds.append(time.perf_counter() - began)
                due += 1 / _COMMITS_PER_S
                time.sleep(max(0.0, due - time.monotonic()))
            delays.append(seconds)
        made = bench.effort.repeats * _COMMITS
        nbytes = (each.store.bytes_put - manifest_bytes) / made
        fewest = fewest or nbytes
        p50, p99 = (
            Samples(tuple(float(percentile(np.array(one), share)) for one in delays), "s")
            for share in (0.5, 0.99)
        )
        objects = (each.store.calls["put"] + each.store.calls["create"]) / made
        grown = Samples((nbytes / fewest,), "x")
        table.add(
            live_files=each.files,
            publish_p50=p50,
            publish_p99=p99,
            objects__commit=f"{objects:.1f}",
            bytes__commit=int(nbytes),
            of_fewest=grown,
        )
        table.targets.append(Target(f"publish p99, {each.files:,} files", 1.0, p99, below=True))
    table.targets.append(Target("bytes per commit, of the smallest table", 2.0, grown, below=True))
    return table


def _beside(bench: Bench) -> Table:
    """The rate of writers with and without publishing, flushed every second."""
    seconds = bench.effort.open_writing_s
    table = Table(
        "open-writers",
        f"Publishing beside {_WRITERS} writers, {seconds:g} s each, flushes every 500 ms",
        ["published", "rows/s", "of unpublished"],
    )
    rates: dict[str, list[float]] = {"": [], "iceberg,delta": []}
    with Clients() as clients:
        for repeat in range(bench.effort.repeats):
            for formats in rates if repeat % 2 else reversed(list(rates)):
                bench.say(f"writers beside {formats or 'nothing'}, repeat {repeat + 1}")
                settings = {"publish__formats": formats} if formats else {}
                with bench.daemon(**_FLUSHES, **settings) as daemon:
                    create_table(daemon.flight, "t")
                    job = PutJob(daemon.flight, "t", _BATCH_ROWS, _WRITERS, seconds)
                    rates[formats].append(clients.write(job).rows_per_s)
    plain, mine = (Samples(tuple(each), "/s") for each in rates.values())
    ratio = mine.over(plain)
    table.add(published="no", rows__s=plain, of_unpublished=plain.over(plain))
    table.add(published="both formats", rows__s=mine, of_unpublished=ratio)
    table.targets.append(Target("rows/s of writers beside publishing", 0.97, ratio))
    return table


class _Engine(NamedTuple):
    name: str
    ask: Callable[..., dict[str, Any]]


def _engines(bench: Bench, stack: ExitStack) -> list[_Engine]:
    """DuckDB and Spark 4.1, in a form with time for them, where they are installed."""
    if not bench.effort.open_rows:
        return []
    started = [processes.duckdb(), processes.spark("4.1")]
    return [_Engine(one.name, stack.enter_context(one).ask) for one in started if one is not None]


def _opening(bench: Bench, store: _Published, engines: Sequence[_Engine]) -> Table:
    """How long it takes to open the largest table, and to find its files."""
    table = Table(
        "open-opening",
        f"Opening a published table of {store.files:,} files",
        ["engine", "format", "work", "seconds"],
        notes=[f"a day has {_FILES_OF_A_DAY:,} files; a count reads metadata alone"],
    )
    iceberg, delta = store.places()
    day = dt.datetime.combine(_FIRST_DAY, dt.time(12), dt.UTC)
    one_day = pyiceberg_expression((Term("time", "=", day),))
    rows = store.state.rows
    acts: list[tuple[str, str, str, Callable[[], object]]] = [
        ("pyiceberg", "iceberg", "open", lambda: static_table(iceberg).scan().projection()),
        ("pyiceberg", "iceberg", "find a day", lambda: _planned(iceberg, one_day)),
    ]
    for engine in (one for one in engines if one.name.startswith("spark")):
        acts += [
            (engine.name, each.format, "open and count", partial(_counted, engine, each, rows))
            for each in (iceberg, delta)
        ]
    for name, format, work, act in acts:
        bench.say(f"{name}, {format}: {work}")
        taken = []
        for _ in range(bench.effort.repeats + 1):
            began = time.perf_counter()
            act()
            taken.append(time.perf_counter() - began)
        seconds = Samples(tuple(taken[1:]), "s")
        table.add(engine=name, format=format, work=work, seconds=seconds)
        if work.startswith("open"):
            table.targets.append(Target(f"{name}, {format}: {work}", 3.0, seconds, below=True))
    return table


def _planned(place: Place, terms: object) -> None:
    files = len(list(static_table(place).scan(row_filter=terms).plan_files()))
    if not 0 < files <= _FILES_OF_A_DAY:
        raise AssertionError(f"{files} files of a day")


def _counted(engine: _Engine, place: Place, rows: int) -> None:
    answer = engine.ask(measure=["count(*)"], format=place.format, paths=[place.url])
    if next(iter(answer["rows"][0].values())) != rows:
        raise AssertionError(f"{engine.name}, {place.format}: {answer}, wanted {rows}")


def _reading(bench: Bench, engines: Sequence[_Engine]) -> Table:
    """Scans by metadata beside scans of the same files as plain Parquet."""
    rows = bench.effort.open_rows
    table = Table("open-reading", f"Open tables: {rows:,} rows of files, read", READING)
    names = [*SCHEMA.names, "n", "status"]
    jobs = {
        f"{len(names)} columns": ["count(*)", *(f"max({name})" for name in names)],
        "1 column": ["count(*)", "sum(load)"],
        "count": ["count(*)"],
    }
    with bench.daemon(publish__formats="iceberg,delta") as daemon:
        send(daemon.flight, "lake", [*map(_wider, batches_of(rows, _BATCH_ROWS, seed=0))])
        persist(daemon, "lake")
        folder = daemon.data_dir / "store" / "bench" / "lake"
        Publisher(open_store(f"file://{daemon.data_dir / 'store'}"), "bench", "lake").publish(
            FORMATS, retain_s=_DAY_S
        )
        files = sorted(map(str, (folder / "v1").rglob("*.parquet")))
        ways = {"parquet": files, "iceberg": [f"file://{folder}"], "delta": [f"file://{folder}"]}
        for engine in engines:
            for job, asked in jobs.items():
                _measure(bench, table, engine, job, asked, ways, rows)
    return table


def _wider(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with two columns of integers more."""
    numbers = np.arange(batch.num_rows, dtype=np.int64)
    more = batch.append_column("n", pa.array(numbers))
    return more.append_column("status", pa.array((numbers % 5).astype(np.int32)))


def _measure(
    bench: Bench,
    table: Table,
    engine: _Engine,
    job: str,
    asked: list[str],
    ways: dict[str, list[str]],
    rows: int,
) -> None:
    seconds: dict[str, tuple[float, ...]] = dict.fromkeys(ways, ())
    for repeat in range(bench.effort.repeats + 1):
        bench.say(f"{engine.name}, {job}, repeat {repeat}")
        for format, paths in ways.items():
            answer = engine.ask(measure=asked, format=format, paths=paths)
            if next(iter(answer["rows"][0].values())) != rows:
                raise AssertionError(f"{engine.name}, {format}: {answer}, wanted {rows} rows")
            if repeat:
                seconds[format] += (answer["seconds"],)
    plain = Samples(seconds["parquet"], "s")
    for format, taken in seconds.items():
        mine = Samples(taken, "s")
        ratio = mine.over(plain)
        table.rows.append(
            {"engine": engine.name, "job": job, "of": format, "seconds": mine, "of parquet": ratio}
        )
        if format != "parquet":
            what = f"{engine.name}, {job}, {format} of parquet"
            table.targets.append(Target(what, 1.15, ratio, below=True))
