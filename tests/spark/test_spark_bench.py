"""The benchmark's table of Spark, in the session that is there; its numbers mean nothing."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.bench.asking import fill, persist
from tests.bench.effort import FORMS, Bench
from tests.bench.report import Table
from tests.bench.tables.spark import COLUMNS, measure
from tests.daemon import Daemon


def test_both_readers_find_all_rows_and_stand_beside_each_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Bench(FORMS["smoke"], tmp_path / "work", tmp_path, lambda text: None)
    table = Table("spark", "Spark", COLUMNS)
    with Daemon.start(tmp_path / "data", persist__max_age="1h") as daemon:
        rows = fill(daemon, "lake", 20_000, 10_000)
        persist(daemon, "lake")
        measure(bench, table, spark, daemon, rows)
    assert [row["reader"] for row in table.rows] == ["spark.read.parquet", "read_table"]
    [target] = table.targets
    assert target.measured.median > 0
