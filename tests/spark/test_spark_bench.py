"""The benchmark of Spark tables runs; its numbers are not checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from tests.bench.effort import FORMS, Bench
from tests.bench.report import Table
from tests.bench.requests import fill, persist
from tests.bench.tables.pushes import measure_pushes
from tests.bench.tables.spark import (
    READING,
    SCANNING,
    WRITING,
    measure_reading,
    measure_small_files,
    measure_writing,
)
from tests.drivers.daemon import Daemon


def test_all_jobs_find_all_rows_and_stand_beside_each_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Bench(FORMS["smoke"], tmp_path / "work", tmp_path, lambda text: None)
    reading, writing, scanning = (
        Table("spark", "Spark", columns) for columns in (READING, WRITING, SCANNING)
    )
    with Daemon.start(tmp_path / "data", persist__max_age="1h") as daemon:
        rows = fill(daemon, "lake", 20_000, 10_000)
        persist(daemon, "lake")
        measure_reading(bench, reading, spark, daemon, rows)
        measure_writing(bench, writing, spark, daemon, rows)
        measure_small_files(bench, scanning, spark, daemon)
    assert [row["reader"] for row in reading.rows] == [
        *("spark.read.parquet", "read_table", 'format("ingester")', "a data source of ready rows"),
    ] * 3
    assert len(reading.targets) == 4
    assert [row["who"] for row in writing.rows] == [
        *("df.write.parquet", "our sink, sorted", "Spark reads, sorts, writes", "rewrite"),
    ]
    before, after = (int(str(row["files"])) for row in scanning.rows)
    assert before > after
    assert all(target.measured.median > 0 for target in reading.targets)


def test_a_push_is_measured_beside_three_writes(spark: SparkSession, tmp_path: Path) -> None:
    effort = replace(FORMS["smoke"], push_rows=1000)
    table = measure_pushes(Bench(effort, tmp_path / "work", tmp_path, lambda text: None), spark)
    assert [row["who"] for row in table.rows] == ["df.write.parquet, 3 times", "push"]
    assert table.targets[0].measured.median > 0
