"""A cluster with two worker processes, and the package shipped as a wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.flight as fl
import pytest

from persist.manifest import Manifest
from persist.store import open_store
from tests.drivers.wire import Table, events, persist, put

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).with_name("cluster_job.py")


def build_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("ingester-*.whl")
    # Spark adds only files named ``.zip`` to the workers' path; a wheel is a zip file.
    return wheel.rename(wheel.with_suffix(".zip"))


def test_failing_and_slow_tasks_on_a_cluster_write_each_row_once(
    client: fl.FlightClient, url: str, table: Table, tmp_path: Path
) -> None:
    for first in (0, 100, 200):
        put(client, table, events(first, 100, days=3))
        persist(client, table)
    wheel = build_wheel(tmp_path / "wheel")
    # The working directory is elsewhere, because the package could be imported from here.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(JOB), str(wheel), url, *table],
        cwd=tmp_path,
        env=environment | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    total = sum(range(300))
    assert told["before"] == [total] * 3
    assert told["written"] == told["compacted"] == [2 * total] * 3
    assert told["files"][0] > told["files"][1] == 3
    assert told["executors"]
    assert all(".zip" in file for file in (told["driver"], *told["executors"]))
    assert "this task was lost" in done.stderr
    assert Manifest(open_store(url), *table).load().rows == 600
