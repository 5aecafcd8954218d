"""``python -m tests.s3a``: reads a bucket by the S3A connector and by the readers without jars.

The connector comes from Maven, half a gigabyte the first time. The test uses a real S3 server, a
daemon and a Spark session. Every way to read must return the written rows.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.flight as fl
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ingester.spark import compact, read_table, register
from ingester.spark.session import local_session
from tests.drivers.daemon import Daemon
from tests.drivers.s3_server import S3Server
from tests.drivers.wire import Table, events, persist, put

URL = "s3://lake/some prefix"
TABLE: Table = ("demo", "events")
FILES = 8
ROWS = 5_000
"""In each file, and in the buffered tail."""


def hadoop_version() -> str:
    """Return the version of PySpark's Hadoop, from the name of its jar."""
    jars = Path(pyspark.__file__).parent / "jars"
    (found,) = jars.glob("hadoop-client-api-*.jar")
    return found.stem.removeprefix("hadoop-client-api-")


def main() -> int:
    """Return the exit code: 0 if all ways return the same rows."""
    parser = argparse.ArgumentParser(prog="python -m tests.s3a", description=__doc__)
    parser.add_argument("--hadoop-aws", default=hadoop_version(), help="default: %(default)s")
    version = parser.parse_args().hadoop_aws
    packages = f"org.apache.hadoop:hadoop-aws:{version}"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--packages {packages} pyspark-shell"
    began = time.monotonic()
    spark = local_session("s3a", cores=2, shuffle_partitions=2)
    print(f"{packages}: session after {time.monotonic() - began:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder, S3Server.start() as server:
        server.make_bucket("lake")
        settings = {"environment": server.environment, "store": URL, "persist__max_age": "1h"}
        with Daemon.start(Path(folder) / "data", **settings) as daemon:  # type: ignore[arg-type]
            faults = _read(spark, server, daemon)
    spark.stop()
    print("\n".join(faults) or "all ways give the same rows")
    return bool(faults)


def _read(spark: SparkSession, server: S3Server, daemon: Daemon) -> list[str]:
    with fl.connect(daemon.flight) as client:
        for number in range(FILES):
            put(client, TABLE, events(number * ROWS, ROWS, days=6))
            persist(client, TABLE)
        put(client, TABLE, events(FILES * ROWS, ROWS, days=6))
    options = server.storage_options
    register(spark)
    table = (spark, URL, *TABLE)
    source = spark.read.format("ingester").option("url", URL)
    source = source.option("namespace", TABLE[0]).option("table", TABLE[1])
    for name, value in options.items():
        source = source.option(f"store_options.{name}", str(value))
    native = read_table(*table, reader="native", store_options=options)
    plan = native._jdf.queryExecution().toString()
    faults = [] if "s3a://" in plan and "FileScan parquet" in plan else ["no file scan over s3a"]
    ways: dict[str, Callable[[], DataFrame]] = {
        "native": lambda: read_table(*table, reader="native", store_options=options),
        "arrow": lambda: read_table(*table, reader="arrow", store_options=options),
        "data source": source.load,
        "native, compacted": lambda: read_table(*table, reader="native", store_options=options),
    }
    for way, frame in ways.items():
        if way.endswith("compacted"):
            compact(spark, URL, *TABLE, store_options=options)
        faults += _check(way, frame, FILES * ROWS)
    both = partial(read_table, *table, endpoint=daemon.flight, store_options=options)
    return faults + _check("native and buffered", both, (FILES + 1) * ROWS)


def _check(way: str, frame: Callable[[], DataFrame], rows: int) -> list[str]:
    began = time.monotonic()
    found = tuple(frame().agg(F.count("*"), F.sum("i"), F.count_distinct("i")).collect()[0])
    print(f"{way}: {found[0]:,} rows, {time.monotonic() - began:.1f} s", flush=True)
    wanted = (rows, sum(range(rows)), rows)
    return [] if found == wanted else [f"{way}: {found}, wanted {wanted}"]


if __name__ == "__main__":
    sys.exit(main())
