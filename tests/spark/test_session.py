"""Imports of ingester.spark, its error without PySpark, and the listeners of a local session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ingester.spark import ReaderUnsuitable
from ingester.spark.read.native import check_version, s3a_options
from tests.s3a.__main__ import hadoop_version

ROOT = Path(__file__).resolve().parents[2]
LISTENING = "0A"
LOOPBACK = {
    "0100007F",
    "0000000000000000FFFF00000100007F",
    "00000000000000000000000001000000",
}


def python(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def test_without_pyspark_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from ingester.spark import read_table, PySparkMissing\n"
        "from ingester.spark.session import local_session\n"
        "read = lambda: read_table(None, 'file:///x', 'n', 't')\n"
        "for call in (read, lambda: local_session('x')):\n"
        "    try: call()\n"
        "    except PySparkMissing as exc: print(exc)"
    )
    lines = python(code).splitlines()
    assert len(lines) == 2
    assert all("pip install '.[spark]'" in line for line in lines)


@pytest.mark.parametrize("job", ["compact", "push"])
def test_a_job_without_pyspark_says_what_to_install(tmp_path: Path, job: str) -> None:
    config = tmp_path / "regions.toml"
    config.write_text(f'[regions.here]\nurl = "file://{tmp_path}"\n')
    arguments = {
        "compact": [f"file://{tmp_path}", "n", "t"],
        "push": ["--config", str(config), "n", "t", "--parquet", "x.parquet"],
    }[job]
    code = (
        "import runpy, sys; sys.modules['pyspark'] = None\n"
        f"sys.argv = {[job, *arguments]!r}\n"
        f"runpy.run_module('ingester.spark.{job}', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "pip install" in done.stderr


def test_executors_load_neither_trio_nor_the_daemon() -> None:
    code = (
        "import sys, json, ingester.spark.read.scan, ingester.spark.read.arrow_scan\n"
        "import ingester.spark.session\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = json.loads(python(code))
    ours = {name for name in loaded if name.split(".")[0] in ("ingester", "wal", "trio")}
    below = ("ingester.spark", "ingester.schema", "ingester.errors", "ingester.shown_text")
    assert {name for name in ours if not name.startswith(below)} == {"ingester"}


@pytest.mark.spark
def test_a_local_session_listens_on_the_loopback_alone(spark: SparkSession) -> None:
    assert spark._jvm is not None
    pid = spark._jvm.ProcessHandle.current().pid()
    folder = Path(f"/proc/{pid}")
    sockets = set()
    for descriptor in (folder / "fd").iterdir():
        target = os.readlink(descriptor)
        if target.startswith("socket:["):
            sockets.add(target[len("socket:[") : -1])
    addresses = set()
    for name in ("tcp", "tcp6"):
        for line in (folder / "net" / name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in sockets:
                addresses.add(fields[1].partition(":")[0])
    assert addresses
    assert addresses <= LOOPBACK


def test_storage_options_become_the_connectors() -> None:
    given = {
        "endpoint_url": "http://h:9000",
        "key": "k",
        "secret": "s",
        "token": "t",
        "region": "r",
    }
    assert s3a_options(given) == {
        "fs.s3a.endpoint": "http://h:9000",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": "k",
        "fs.s3a.secret.key": "s",
        "fs.s3a.session.token": "t",
        "fs.s3a.endpoint.region": "r",
    }
    assert s3a_options({}) == {}
    assert list(s3a_options({"anon": True})) == ["fs.s3a.aws.credentials.provider"]


@pytest.mark.parametrize("folder", ["/jars/", "/a%20b/org.apache.hadoop_"])
def test_a_connector_of_another_version_is_refused_with_the_one_that_fits(folder: str) -> None:
    check_version(f"{folder}hadoop-aws-3.5.0.jar", "3.5.0")
    check_version("/jars/another-file-system.jar", "3.5.0")
    refused = r"hadoop-aws 3\.4\.1-x but Hadoop 3\.5\.0; .*org.apache.hadoop:hadoop-aws:3\.5\.0"
    with pytest.raises(ReaderUnsuitable, match=refused):
        check_version(f"{folder}hadoop-aws-3.4.1-x.jar", "3.5.0")


def test_the_connector_that_the_documents_name_fits_the_locked_spark() -> None:
    assert (
        f"org.apache.hadoop:hadoop-aws:{hadoop_version()}`"
        in (ROOT / "docs" / "spark.md").read_text()
    )
