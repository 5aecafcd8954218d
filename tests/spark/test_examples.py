"""The examples in deploy/examples work, also when they are killed."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql import SparkSession

from ingester.spark import read_table
from persist.manifest import Manifest
from persist.store import open_store
from tests.drivers.waiting import until
from tests.drivers.wire import Table, create, persist, put

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
BASE = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
WINDOWS = pa.schema(
    {
        "minute": pa.timestamp("us", "UTC"),
        "host": pa.string(),
        "events": pa.int64(),
        "value": pa.float64(),
    }
)


def test_the_first_hour_goes_from_top_to_bottom() -> None:
    command = [sys.executable, str(EXAMPLES / "first_hour.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    said = dict(re.findall(r"^(\d)\. (.*)$", done.stdout, re.MULTILINE))
    assert said["2"] == "written and read back: 5000 rows"
    assert said["4"] == "from the 23rd on: 2120 rows; with buffered rows: 5100"
    assert said["6"] == "after Spark's write: 10000 rows"
    assert said["7"] == "streamed: 10000 rows"
    assert re.fullmatch(r"compaction: \d+ files became 4", said["8"])


def batch_of(first: int, count: int) -> pa.RecordBatch:
    """Return one event per second; a third of them repeat a recent event."""
    draw = random.Random(first)
    numbers = [
        n - draw.randint(1, 4) if n > 4 and draw.random() < 0.3 else n
        for n in range(first, first + count)
    ]
    return pa.record_batch(
        {
            "time": pa.array([BASE + dt.timedelta(seconds=n) for n in numbers], WINDOWS[0].type),
            "id": numbers,
            "host": [f"h{n % 3}" for n in numbers],
            "value": [float(n) for n in numbers],
        }
    )


def test_a_stateful_stream_that_is_killed_gives_what_a_batch_gives(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table, tmp_path: Path
) -> None:
    namespace, events = table
    windows = (namespace, f"{events}_windows")
    create(client, windows, WINDOWS)
    for number in range(6):
        put(client, table, batch_of(200 * number, 200))
        persist(client, table)
    manifest, checkpoint = Manifest(open_store(url), *windows), tmp_path / "checkpoint"
    command = [sys.executable, str(EXAMPLES / "deduplicated_windows.py")]
    command += [url, namespace, events, windows[1], str(checkpoint)]

    with (tmp_path / "first.log").open("w") as log:
        killed = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            until(lambda: manifest.load().rows > 0, "the job has written", 200)
        finally:
            os.killpg(killed.pid, 9)
            killed.wait()
    for number in range(6, 9):
        put(client, table, batch_of(200 * number, 200))
        persist(client, table)
    put(client, table, batch_of(20_000, 5))  # an hour later: all earlier windows are closed
    persist(client, table)
    done = subprocess.run(
        [*command, "--once"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]

    sys.path.insert(0, str(EXAMPLES))
    try:
        from deduplicated_windows import (  # type: ignore[import-not-found]
            state_versions,
        )
        from deduplicated_windows import (
            windows as windows_of,
        )
    finally:
        sys.path.remove(str(EXAMPLES))
    every = read_table(spark, url, *table, filter="id < 19000")
    expected = sorted(tuple(row) for row in windows_of(every).collect())
    got = sorted(tuple(row) for row in read_table(spark, url, *windows).collect())
    assert got == expected
    assert len(expected) == 90

    shown = subprocess.run(
        [*command, "--show"], capture_output=True, text=True, check=True, timeout=60
    )
    versions = [json.loads(line) for line in shown.stdout.splitlines()]
    assert versions == state_versions(checkpoint)
    # Each committed version has one file with the id from the commit log.
    for store in {one["store"] for one in versions}:
        counted = [one["version"] for one in versions if one["store"] == store and one["counts"]]
        assert sorted(set(counted)) == list(range(1, max(counted) + 1)), store
