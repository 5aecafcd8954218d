"""``python -m tests.crash.spark DIR TABLE…``: read tables with Spark, leave their rows as Parquet.

    stdin:  [{"url": "s3://…", "options": {…}}, …]       DIR/0-plain.parquet: "plain" of the first

Spark reads what a user's job would read: exactly the files of the manifest's newest version. The
rows are handed over with Arrow, not with Spark's own writer.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.crash.reading import COLUMNS
from tests.crash.rows import NAMESPACE


def session(folder: Path) -> Any:
    """A small session that listens only on the loopback address."""
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


def main(target: Path, tables: list[str], stores: list[dict[str, Any]]) -> None:
    """Write one Parquet file per store and table to ``target``."""
    from ingester.spark import read_table

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="crash-spark-") as folder:
        spark = session(Path(folder))
        for index, store in enumerate(stores):
            for table in tables:
                found = read_table(
                    spark, store["url"], NAMESPACE, table, store_options=store["options"]
                )
                pq.write_table(
                    found.select(*COLUMNS).toArrow(), target / f"{index}-{table}.parquet"
                )
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:], json.load(sys.stdin))
