"""A user's job on a cluster: it reads, writes with failing and slow tasks, compacts, prints JSON.

    python cluster_job.py ZIP URL NAMESPACE TABLE

The driver and the workers are separate processes. They import the package from the zip only,
which is the wheel.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

WHEEL, URL, NAMESPACE, TABLE = sys.argv[1:]
# The wheel comes before all packages that the environment has installed.
sys.path.insert(0, WHEEL)

import pyarrow as pa  # noqa: E402
import pyspark  # noqa: E402
from pyspark import TaskContext  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402

import ingester  # noqa: E402
from ingester.spark import compact, read_table, register  # noqa: E402

os.environ["SPARK_HOME"] = os.path.dirname(pyspark.__file__)
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # The workers' JVMs use the driver's options.
    "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
    "spark.submit.pyFiles": WHEEL,
    "spark.task.maxFailures": "4",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "0ms",
}


def unreliable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the rows, then fail in some first attempts and pause for long in others."""
    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.attemptNumber() == 0 and context.partitionId() % 3 == 1:
        raise RuntimeError("this task was lost")
    if context.attemptNumber() == 0 and context.partitionId() % 3 == 2:
        time.sleep(4)


def where(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the path of the package that an executor has imported."""
    import ingester as there

    yield pa.record_batch({"file": [str(there.__file__)]})


def counts(spark: SparkSession) -> list[int]:
    """Return the number of rows for each way of reading."""
    path = f"{URL}/{NAMESPACE}/{TABLE}"
    ways: list[DataFrame] = [
        read_table(spark, URL, NAMESPACE, TABLE, reader="native"),
        read_table(spark, URL, NAMESPACE, TABLE, reader="arrow"),
        spark.read.format("ingester").load(path),
    ]
    return [way.agg({"i": "sum"}).collect()[0][0] for way in ways]


def main() -> None:
    """Run the job and print the results."""
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("cluster job")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.addPyFile(WHEEL)
    register(spark)
    before = counts(spark)
    rows = read_table(spark, URL, NAMESPACE, TABLE).drop("time_day").repartition(6)
    lossy = rows.mapInArrow(unreliable, rows.schema)
    lossy.write.format("ingester").mode("append").save(f"{URL}/{NAMESPACE}/{TABLE}")
    written = counts(spark)
    report = compact(spark, URL, NAMESPACE, TABLE)
    package = spark.range(2).mapInArrow(where, "file string").collect()
    told = {
        "driver": str(ingester.__file__),
        "executors": sorted({row.file for row in package}),
        "before": before,
        "written": written,
        "compacted": counts(spark),
        "files": [report.files_before, report.files_after],
    }
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
