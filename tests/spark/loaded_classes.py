"""A small job that loads most classes that Spark's tests use.

``make`` runs it once and keeps the classes in ``.venv/spark.jsa``, which the JVMs of all tests map
instead of reading, checking and linking 20,000 classes each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from ingester.spark.session import local_session


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return what came."""
    yield from batches


def main() -> None:
    """Write and read files, join, aggregate and sort, with Python workers and without."""
    spark = local_session("classes", cores=2, shuffle_partitions=2)
    rows: DataFrame = spark.range(1000).selectExpr("id", "id % 7 AS k", "cast(id AS string) AS s")
    with tempfile.TemporaryDirectory() as folder:
        rows.mapInArrow(same, rows.schema).write.partitionBy("k").parquet(f"{folder}/rows")
        there = spark.read.parquet(f"{folder}/rows").where("id > 10 AND s LIKE '%1'")
        there.join(rows.groupBy("k").count(), "k").orderBy("id").collect()
    spark.stop()


if __name__ == "__main__":
    main()
