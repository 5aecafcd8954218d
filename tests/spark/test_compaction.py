"""compact, rewrite and expire keep all rows and reduce the number of files while daemons run."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from ingester.spark import WriteRefused, compact, expire, read_table, rewrite
from ingester.spark.compaction import api as compaction
from ingester.spark.compaction.runner import SparkRunner
from persist.compaction import (
    CompactionReport,
    FileGroup,
    InProcess,
    RewriteTask,
    Rewriting,
    Rewritten,
    plan_compaction,
)
from persist.manifest import Manifest, TableNotFound, verify
from persist.store import open_store
from persist.table import TableDefinition
from tests.drivers.column_numbers import check_numbers
from tests.drivers.wire import Table, create, events, persist, put, query

pytestmark = pytest.mark.spark


def small_files(client: fl.FlightClient, table: Table, times: int, days: int = 2) -> None:
    for number in range(times):
        put(client, table, events(100 * number, 100, days=days))
        persist(client, table)


def numbers(client: fl.FlightClient, table: Table) -> list[int]:
    return sorted(query(client, table, columns=["i"])["i"].to_pylist())


def test_small_files_become_few_sorted_ones(
    spark: SparkSession, client: fl.FlightClient, url: str, store: Path, table: Table
) -> None:
    small_files(client, table, 6, days=3)
    manifest = Manifest(open_store(url), *table)
    seen: list[tuple[int, int]] = []
    before = manifest.load()
    report = compact(
        spark, url, *table, progress=lambda _report, done, planned: seen.append((done, planned))
    )
    after = manifest.load()
    assert (report.files_before, report.files_after, report.rows) == (18, 3, 600)
    assert (report.bytes_before, report.bytes_after) == (before.bytes, after.bytes)
    assert (report.version, report.commits, report.left) == (before.version + 1, 1, 0)
    assert seen == [(3, 3)]
    assert len(after.files) == 3
    for path, add in after.files.items():
        assert add.kind == "rewrite"
        rows = pq.read_table(store / table[0] / table[1] / "v1" / path)
        assert rows.num_rows == add.rows == 200
        assert rows.equals(rows.sort_by([("host", "ascending"), ("time", "ascending")]))
    assert numbers(client, table) == list(range(600))
    assert read_table(spark, url, *table).count() == 600
    # A compacted table is left unchanged.
    again = compact(spark, url, *table)
    assert (again.files_before, again.version) == (0, report.version)
    assert verify(manifest).findings == ()
    assert check_numbers(manifest) == (3, 0)


def test_a_filter_leaves_other_days_alone(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    small_files(client, table, 3, days=4)
    report = compact(spark, url, *table, filter="time >= '2026-11-23'")
    assert (report.files_before, report.files_after) == (6, 2)
    with pytest.raises(ValueError, match="unknown column 'nothing'"):
        compact(spark, url, *table, filter="nothing = 1")
    with pytest.raises(ValueError, match="target_file_bytes is 0"):
        compact(spark, url, *table, target_file_bytes=0)
    with pytest.raises(TableNotFound):
        compact(spark, url, table[0], "absent")


def test_rows_stay_as_they_are_while_the_daemon_writes(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    keyed = (table[0], f"{table[1]}_keyed")
    create(client, keyed, events(0, 1).schema, primary_key=["i"], partition_by=[])
    small_files(client, table, 4)
    small_files(client, keyed, 4)
    ended = threading.Event()
    rounds = 0

    def write() -> None:
        nonlocal rounds
        while not ended.is_set():
            put(client, table, events(1000 + 20 * rounds, 20, days=2))
            put(client, keyed, events(7 * rounds % 400, 50, days=2))
            persist(client, table)
            persist(client, keyed)
            rounds += 1

    writing = threading.Thread(target=write)
    writing.start()
    reports: list[CompactionReport] = []
    try:
        # The target is small, so that files of the keyed table are rewritten too.
        while len(reports) < 6 or rounds < 6:
            for one in (table, keyed):
                reports.append(compact(spark, url, *one, target_file_bytes=100_000))
    finally:
        ended.set()
        writing.join()
    assert sum(report.files_before for report in reports) > 8
    assert numbers(client, table) == [*range(400), *range(1000, 1000 + 20 * rounds)]
    assert numbers(client, keyed) == sorted(
        {*range(400), *(7 * n % 400 + m for n in range(rounds) for m in range(50))}
    )
    for one in (table, keyed):
        files = read_table(spark, url, *one).collect()
        assert sorted(row.i for row in files) == numbers(client, one)
        assert verify(Manifest(open_store(url), *one)).findings == ()


def test_both_runners_make_the_same_files(
    spark: SparkSession, client: fl.FlightClient, url: str, store: Path, table: Table
) -> None:
    small_files(client, table, 5, days=3)
    manifest = Manifest(open_store(url), *table)
    state = manifest.load()
    task = RewriteTask(manifest.root, TableDefinition.of_state(state), 4_000, "test")
    groups = plan_compaction(state, 1 << 20)
    assert len(groups) == 3

    def facts(found: list[Rewritten]) -> list[tuple[object, ...]]:
        folder = store / table[0] / table[1] / "v1"
        return [
            (one.group.files, add.partition, add.rows, add.stats, (folder / add.path).read_bytes())
            for one in found
            for add in one.adds
        ]

    here = facts(InProcess(manifest.store, 1 << 30)(task, groups))
    assert here == facts(SparkRunner(spark, url, {})(task, groups))
    assert len(here) > len(groups)


def test_groups_that_conflict_are_planned_again(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    small_files(client, table, 3, days=3)
    runner, others = SparkRunner(spark, url, {}), list[CompactionReport]()

    def overtaken(task: RewriteTask, groups: Sequence[FileGroup]) -> list[Rewritten]:
        results = runner(task, groups)
        if not others:  # another compaction commits just before ours
            others.append(compact(spark, url, *table, filter="time < '2026-11-22'"))
        return results

    manifest = Manifest(open_store(url), *table)
    report = Rewriting(manifest, overtaken, 1 << 20).run([plan_compaction])
    assert others[0].files_before == 3
    assert (report.conflicts, report.left) == (1, 0)
    assert (report.files_before, report.files_after) == (6, 2)
    assert numbers(client, table) == list(range(300))
    assert len(manifest.load().files) == 3


def test_all_files_are_written_in_another_order(
    spark: SparkSession, client: fl.FlightClient, url: str, store: Path, table: Table
) -> None:
    small_files(client, table, 2)
    report = rewrite(spark, url, *table, sort_by=["v"])
    assert (report.files_before, report.files_after) == (4, 2)
    for path in Manifest(open_store(url), *table).load().files:
        values = pq.read_table(store / table[0] / table[1] / "v1" / path)["v"].to_pylist()
        assert values == sorted(values)
    assert rewrite(spark, url, *table).files_after == 2
    with pytest.raises(WriteRefused, match="no column 'nothing'"):
        rewrite(spark, url, *table, sort_by=["nothing"])
    keyed = (table[0], f"{table[1]}_keyed")
    create(client, keyed, events(0, 1).schema, primary_key=["i"])
    put(client, keyed, events(0, 10))
    persist(client, keyed)
    with pytest.raises(WriteRefused, match="in key order"):
        rewrite(spark, url, *keyed, sort_by=["v"])
    assert rewrite(spark, url, *keyed).rows == 10


@pytest.mark.parametrize("compression", ["zstd:19", "gzip:9", "snappy", "lz4", "none"])
def test_files_in_another_compression_are_read_by_all(
    spark: SparkSession,
    client: fl.FlightClient,
    url: str,
    store: Path,
    table: Table,
    compression: str,
) -> None:
    small_files(client, table, 2)
    rewrite(spark, url, *table, compression=compression)
    state = Manifest(open_store(url), *table).load()
    for path in state.files:
        footer = pq.read_metadata(store / table[0] / table[1] / "v1" / path)
        codec = footer.row_group(0).column(0).compression.lower()
        assert codec == {"none": "uncompressed"}.get(compression, compression.partition(":")[0])
    assert numbers(client, table) == list(range(200))
    for reader in ("native", "arrow"):
        frame = read_table(spark, url, *table, reader=reader)
        assert sorted(row.i for row in frame.collect()) == list(range(200))


@pytest.mark.parametrize(
    ("compression", "why"),
    [
        ("lzo", "'lzo': none of zstd, gzip, snappy, lz4, none"),
        ("zstd:99", "'zstd:99': levels of zstd are 1 to 22"),
        ("snappy:1", "'snappy:1': levels of snappy are none"),
        ("gzip:", "'gzip:': levels of gzip are 1 to 9"),
    ],
)
def test_a_compression_that_not_all_readers_have_is_refused(
    spark: SparkSession, url: str, compression: str, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        rewrite(spark, url, "n", "t", compression=compression)


def test_old_versions_expire_with_their_files(
    spark: SparkSession, client: fl.FlightClient, url: str, store: Path, table: Table
) -> None:
    small_files(client, table, 4)
    compact(spark, url, *table)
    folder = store / table[0] / table[1] / "v1" / "data"
    assert len(list(folder.rglob("*.parquet"))) == 10
    done = expire(url, *table, retain_s=0, orphan_grace_s=0, keep_versions=1)
    assert done.data.files == 8
    assert len(list(folder.rglob("*.parquet"))) == 2
    assert sorted(row.i for row in read_table(spark, url, *table).collect()) == list(range(400))


def test_the_job_reports_and_exits_by_what_it_did(
    spark: SparkSession, client: fl.FlightClient, url: str, table: Table
) -> None:
    namespace = f"job_{table[1]}"
    small_files(client, (namespace, "a"), 2, days=1)
    small_files(client, (namespace, "b"), 1, days=1)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ingester.spark.compact", *arguments]
        # In a user's shell PYSPARK_PYTHON is not set; our own session has set it.
        shell = {name: text for name, text in os.environ.items() if name != "PYSPARK_PYTHON"}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=200, env=shell
        )

    done = run(url, namespace, "--json")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["table"], first["files_before"], first["files_after"]) == ("a", 2, 1)
    assert (second["table"], second["files_before"]) == ("b", 0)
    assert f"{namespace}/a: 1 of 1 groups" in done.stderr
    assert done.returncode == 0
    absent = run(url, namespace, "absent")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert f"table {namespace}/absent does not exist" in absent.stderr


def test_the_job_rewrites_in_the_order_and_compression_that_it_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The job is run as a file, because an import of the module would hide the function of that
    # name.
    job_file = runpy.run_path(str(Path(compaction.__file__).parents[1] / "compact.py"))
    asked_of, job_of = job_file["asked_of"], job_file["job_of"]
    table = ["file:///lake", "n", "t"]
    assert job_of(asked_of(table)) is compact
    job = job_of(asked_of([*table, "--rewrite", "--sort-by", "v,i", "--compression", "gzip:9"]))
    assert isinstance(job, partial)
    assert job.func is rewrite
    asked = {"sort_by": ["v", "i"], "partition_by": None, "compression": "gzip:9"}
    assert job.keywords == asked
    fields = ["day(time)", "bucket(16, host)"]
    for given in (fields, []):
        job = job_of(asked_of([*table, "--rewrite", "--partition-by", *given]))
        assert isinstance(job, partial)
        assert job.keywords["partition_by"] == given
    for wrong, told in (
        (["--target-file-bytes", "many"], "'many' is not a whole number"),
        (["--sort-by", "v"], "need --rewrite"),
        (["--partition-by"], "need --rewrite"),
        (["--rewrite", "--compression", "gzip:10"], "levels of gzip"),
    ):
        with pytest.raises(SystemExit) as left:
            asked_of([*table, *wrong])
        assert left.value.code == 2
        assert told in capsys.readouterr().err
