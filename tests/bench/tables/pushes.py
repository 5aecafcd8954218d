"""Tables "pushes": a push to three regions compared with Spark's own writer, and the cost of swaps.

Spark's own writer writes the same frame to the same three places, in turns with the push, which
also makes versions, checks and swaps. For the swaps, writers with spare capacity and a sequence
of queries run while nothing happens and while versions are switched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np

from persist.store import open_store
from persist.switching import switch_version
from tests.bench.clients import Clients
from tests.bench.effort import Bench
from tests.bench.report import Table, Target
from tests.bench.requests import NAMESPACE, fill, persist
from tests.bench.samples import Samples, percentile
from tests.bench.streams import PutJob
from tests.drivers.daemon import Daemon
from tests.drivers.pushing import push_some
from tests.drivers.wire import query

NAME = "pushes"
PUSHING = ["layout", "who", "seconds", "rows/s", "of df.write.parquet"]
SWAPPING = ["beside", "batches", "p50", "p99", "longest", "queries", "failed"]
_REGIONS = ("a", "b", "c")
_WRITERS, _ROWS, _PER_S = 8, 1_000, 25.0
_BASE_ROWS = 200_000
"""Rows in files of the table that is switched, so that each version has some."""
_FIRST_S, _BETWEEN_S = 0.5, 0.5
P99_S = 0.2


def run(bench: Bench) -> list[Table]:
    """Measure the seconds of pushes next to Spark's writer, and writers' latencies during swaps."""
    tables = [measure_swaps(bench)]
    if bench.effort.push_rows:
        try:
            from ingester.spark.session import local_session

            session = local_session("ingester benchmark", cores=2, shuffle_partitions=2)
        except Exception as exc:
            said = f"skipped: {type(exc).__name__}: {str(exc).splitlines()[0]}"
            return [Table("pushes-spark", "Pushes on Spark", PUSHING, notes=[said]), *tables]
        try:
            tables.insert(0, measure_pushes(bench, session))
        finally:
            session.stop()
    return tables


def measure_pushes(bench: Bench, session: Any) -> Table:
    """Measure a push to three regions, and Spark's own writer to three places."""
    rows = bench.effort.push_rows
    table = Table("pushes-spark", f"Spark: {rows:,} rows pushed to three regions", PUSHING)
    frame = session.range(rows).selectExpr(
        "id",
        "timestamp_micros(1795219200000000 + id * 259200000000 div " + str(rows) + ") as time",
        "concat('host-', pmod(hash(id), 100)) as host",
        "rand(1) as load",
        "round(20 + 5 * randn(2), 2) as temperature",
    )
    for layout, spec in bench.effort.push_layouts:
        found: dict[str, tuple[float, ...]] = {"df.write.parquet, 3 times": (), "push": ()}
        for repeat in range(bench.effort.repeats + 1):  # the first of each warms up
            bench.say(f"push, {layout}, repeat {repeat} of {bench.effort.repeats}")
            folder = bench.new_folder()
            work = (partial(_plain, frame, folder, spec), partial(_pushed, frame, folder, spec))
            for name, each in zip(found, work, strict=True):
                began = time.perf_counter()
                each()
                if repeat:
                    found[name] += (time.perf_counter() - began,)
            rmtree(folder)
        beside = Samples(found["df.write.parquet, 3 times"], "s")
        for who, seconds in found.items():
            mine = Samples(seconds, "s")
            table.rows.append(
                {
                    "layout": layout,
                    "who": who,
                    "seconds": mine,
                    "rows/s": Samples(tuple(rows / each for each in seconds), "/s"),
                    "of df.write.parquet": beside.over(mine),
                }
            )
        what = f"speed of a push of {layout}, of df.write.parquet"
        table.targets.append(Target(what, 0.8, beside.over(Samples(found["push"], "s"))))
    table.notes.append("a push encodes rows once; df.write.parquet once for each place")
    return table


def _plain(frame: Any, folder: Path, spec: tuple[str, ...]) -> None:
    for name in _REGIONS:
        writer = frame
        if spec:
            from pyspark.sql import functions as F

            writer = frame.withColumn("time_day", F.to_date("time")).repartition("time_day")
            writer.write.partitionBy("time_day").parquet(str(folder / "plain" / name))
        else:
            writer.write.parquet(str(folder / "plain" / name))


def _pushed(frame: Any, folder: Path, spec: tuple[str, ...]) -> None:
    from ingester.spark.push import RegionSettings, push

    for name in _REGIONS:
        (folder / name).mkdir()
    regions = [RegionSettings(name, f"file://{folder / name}") for name in _REGIONS]
    push(frame, NAMESPACE, "pushed", regions=regions, partition_by=spec, sort_by=["id"])


def measure_swaps(bench: Bench) -> Table:
    """Measure writers' latencies and failed queries while versions of their table are switched."""
    swaps = bench.effort.push_swaps
    table = Table("pushes-swaps", f"{swaps} swaps under writers and queries", SWAPPING)
    p99: dict[str, Samples] = {}
    failed: dict[str, int] = {}
    with Clients(2) as clients, bench.daemon() as daemon:
        fill(daemon, "swapped", _BASE_ROWS, 10_000)
        persist(daemon, "swapped")
        seconds = _FIRST_S + swaps * _BETWEEN_S
        acts: dict[str, Callable[[], object]] = {
            "nothing": partial(time.sleep, seconds),
            "swaps": partial(_swap, daemon, swaps),
        }
        for beside, act in acts.items():
            bench.say(f"swaps: beside {beside}")
            job = PutJob(
                flight=daemon.flight,
                table="swapped",
                rows=_ROWS,
                streams=_WRITERS,
                seconds=seconds,
                per_s=_PER_S,
            )
            with _asking(daemon) as asked:
                written = clients.write(job, act)
            failed[beside] = len(asked.errors)
            table.notes += [f"beside {beside}: {error}" for error in asked.errors[:3]]
            p99[beside] = Samples((percentile(written.latencies, 0.99),), "s")
            table.rows.append(
                {
                    "beside": beside,
                    "batches": written.batches,
                    "p50": Samples((percentile(written.latencies, 0.5),), "s"),
                    "p99": p99[beside],
                    "longest": Samples((float(np.max(written.latencies)),), "s"),
                    "queries": asked.answered,
                    "failed": failed[beside],
                }
            )
    table.targets.append(Target("p99 of writers beside swaps", P99_S, p99["swaps"], below=True))
    none = Samples((float(failed["swaps"]),), "")
    table.targets.append(Target("queries that fail beside swaps", 1, none, below=True))
    return table


def _swap(daemon: Daemon, swaps: int) -> None:
    """Make versions of the table's current files and switch to them, one after another."""
    store = open_store(f"file://{daemon.data_dir / 'store'}")
    table = (NAMESPACE, "swapped")
    time.sleep(_FIRST_S)
    for number in range(swaps):
        began = time.monotonic()
        version = push_some(store, table, f"push-{number}")
        switch_version(store, *table, version)
        time.sleep(max(0.0, _BETWEEN_S - (time.monotonic() - began)))


class _Asked:
    """The queries of one period."""

    def __init__(self) -> None:
        self.answered = 0
        self.errors: list[str] = []


@contextmanager
def _asking(daemon: Daemon) -> Iterator[_Asked]:
    """Query repeatedly within the ``with`` block; each answer has all rows of one version."""
    import pyarrow.flight as fl

    asked, over = _Asked(), threading.Event()

    def ask() -> None:
        with fl.connect(daemon.flight) as client:
            while not over.is_set():
                try:
                    query(client, (NAMESPACE, "swapped"), columns=["load"])
                except Exception as exc:
                    asked.errors.append(f"{type(exc).__name__}: {exc}"[:200])
                else:
                    asked.answered += 1

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        over.set()
        thread.join()
