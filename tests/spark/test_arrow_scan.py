"""The reader without jars: tasks of about equal size, and reads from a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.flight as fl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ingester.spark import ReaderUnsuitable, read_table
from ingester.spark.read.arrow_scan import TASK_BYTES, balanced
from persist.manifest import Add
from tests.drivers.daemon import Daemon
from tests.drivers.s3_server import S3Server
from tests.drivers.wire import Table, events, persist, put

OPEN_COST = 4 * 1024 * 1024


def add(number: int, size: int) -> Add:
    return Add(
        path=f"data/{number:06d}.parquet",
        kind="persist",
        rows=1,
        bytes=size,
        spec_id=1,
        values=(),
        stats={},
        writer="w",
        epoch=1,
        first_seq=number,
        last_seq=number,
        schema_id=1,
        at="2026-11-21T12:00:00+00:00",
    )


@given(st.lists(st.integers(0, 2 * TASK_BYTES), min_size=1), st.integers(1, 16))
def test_each_file_is_in_one_task_and_no_task_has_a_file_more_than_another(
    sizes: list[int], parallelism: int
) -> None:
    adds = [add(number, size) for number, size in enumerate(sizes)]
    groups = balanced(adds, parallelism)
    assert sorted(a.path for group in groups for a in group) == [a.path for a in adds]
    loads = [sum(a.bytes + OPEN_COST for a in group) for group in groups]
    assert max(loads) - min(loads) <= max(sizes) + OPEN_COST
    assert len(groups) == min(len(adds), max(parallelism, -(-sum(loads) // TASK_BYTES)))
    assert groups == balanced(adds, parallelism)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server.start() as server:
        server.make_bucket("lake")
        yield server


@pytest.fixture(scope="module")
def s3_daemon(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("s3")
    settings = {"environment": server.environment, "store": "s3://lake/some prefix"}
    with Daemon.start(folder / "data", persist__max_age="1h", **settings) as daemon:  # type: ignore[arg-type]
        yield daemon


@pytest.mark.spark
@pytest.mark.s3
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_bucket_is_read_without_any_jar(
    spark: SparkSession, server: S3Server, s3_daemon: Daemon, table: Table, scheme: str
) -> None:
    url = f"{scheme}://lake/some prefix"
    with fl.connect(s3_daemon.flight) as client:
        put(client, table, events(0, 300, days=6))
        version = persist(client, table)
        put(client, table, events(300, 30, days=6))

    options = server.storage_options
    files = read_table(spark, url, *table, version, store_options=options)
    total, days = files.agg(F.sum("i"), F.count_distinct("time_day")).collect()[0]
    assert (total, days, files.count()) == (sum(range(300)), 6, 300)
    assert files.rdd.getNumPartitions() == 2
    both = read_table(spark, url, *table, endpoint=s3_daemon.flight, store_options=options)
    assert sorted(row.i for row in both.collect()) == list(range(330))


@pytest.mark.spark
@pytest.mark.s3
def test_a_column_list_reads_no_more_of_the_bucket_than_it_needs(
    spark: SparkSession, server: S3Server, s3_daemon: Daemon, table: Table
) -> None:
    import numpy as np
    import pyarrow as pa

    noise = np.random.default_rng(1).bytes(2_000_000)
    blobs = pa.array([noise[at : at + 20_000] for at in range(0, len(noise), 20_000)])
    with fl.connect(s3_daemon.flight) as client:
        put(client, table, pa.record_batch({"i": range(len(blobs)), "blob": blobs}))
        persist(client, table)

    def sent_bytes(columns: list[str]) -> int:
        frame = read_table(
            spark, "s3://lake/some prefix", *table, columns=columns, store_options=options
        )
        before = len(server.requests())
        assert frame.count() == len(blobs)
        seen = server.requests()[before:]
        return sum(one["sent_bytes"] for one in seen if ".parquet" in one["target"])

    options = server.storage_options
    assert sent_bytes(["i", "blob"]) > 2_000_000
    assert sent_bytes(["i"]) < 1_000_000


@pytest.mark.spark
def test_a_session_without_the_connector_says_so(
    spark: SparkSession, server: S3Server, s3_daemon: Daemon, table: Table, tmp_path: Path
) -> None:
    with fl.connect(s3_daemon.flight) as client:
        put(client, table, events(0, 1))
        persist(client, table)
    with pytest.raises(ReaderUnsuitable, match=r"s3a://.*hadoop-aws.*arrow"):
        read_table(
            spark,
            "s3://lake/some prefix",
            *table,
            reader="native",
            store_options=server.storage_options,
        )
