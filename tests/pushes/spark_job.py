"""A Spark driver in its own process that pushes; its arguments are CONFIG PUSH_ID FOLDER.

The first attempt of each task fails once its own files, or another task's, are in the folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from ingester.pushes.spark import push
from ingester.pushes.spark.api import print_progress
from tests.drivers.waiting import until

TABLE = ("shop", "visits")
ROWS = 3000
COLUMNS = ("id", "concat('h', id % 7) as host", "repeat('x', 1000) as text")
FILES = "*/shop/visits/v2/data/*.parquet"

Batches = Iterator[pa.RecordBatch]


def shaken(folder: Path) -> Callable[[Batches], Batches]:
    """Return the rows, but only at a second attempt."""

    def rows(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.attemptNumber() == 0:
            until(lambda: any(folder.glob(FILES)), "a file of a task")
            raise RuntimeError("this attempt was to fail")

    return rows


def main() -> None:
    """Push, and exit with the push's result."""
    from pyspark.sql import SparkSession

    config, push_id, folder = sys.argv[1:]
    builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    # Small batches let the first rows be written before the last ones exist.
    spark = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "100").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.range(0, ROWS, 1, 2).selectExpr(*COLUMNS)
    shaky = frame.mapInArrow(shaken(Path(folder)), frame.schema)
    push(
        shaky,
        *TABLE,
        config=config,
        push_id=push_id,
        target_file_bytes=100_000,
        progress=print_progress,
    )


if __name__ == "__main__":
    main()
