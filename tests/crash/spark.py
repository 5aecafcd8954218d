"""``python -m tests.crash.spark URL DIR``: read every table with Spark, leave its rows as Parquet.

Law of this file: Spark reads what a user's job would read, exactly the files of the manifest's
newest version; what it read is handed over by Arrow, not by Spark's own writer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.crash.reading import COLUMNS
from tests.crash.rows import NAMESPACE, TABLES


def session(folder: Path) -> Any:
    """A small session that listens on the loopback alone."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .appName("crash")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def main(store_url: str, target: Path) -> None:
    """One Parquet file per table in ``target``."""
    from ingester.spark import read_table

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(prefix="crash-spark-") as folder:
        spark = session(Path(folder))
        for table in TABLES:
            rows = read_table(spark, store_url, NAMESPACE, table.name).select(*COLUMNS).toArrow()
            pq.write_table(rows, target / f"{table.name}.parquet")
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
