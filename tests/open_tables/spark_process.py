"""Reads with a Spark and the jars of Iceberg and Delta; started by ``processes``.

The jars come from Maven, 60 MB the first time, into ``.venv/open_tables/ivy``.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pyarrow as pa
import pyspark

from tests.open_tables.processes import FOLDERS, serve

_VERSION = ".".join(pyspark.__version__.split(".")[:2])
_ICEBERG = {"4.0": "1.11.0", "4.1": "1.12.0"}
PACKAGES = (
    f"org.apache.iceberg:iceberg-spark-runtime-{_VERSION}_2.13:{_ICEBERG[_VERSION]}",
    f"io.delta:delta-spark_{_VERSION}_2.13:4.4.0",
)
_THERE = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.logging.log4j:*",
    "org.slf4j:slf4j-api",
    "org.apache.parquet:*",
    "com.fasterxml.jackson.core:*",
)
"""What Spark has itself, in the version that it needs."""


def session(catalogue: str | None = None) -> Any:
    """A session that reads both formats by path, and a REST catalogue if one is named."""
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{os.environ.get('SPARK_CORES', '2')}]")
        .config("spark.jars.packages", ",".join(PACKAGES))
        .config("spark.jars.excludes", ",".join(_THERE))
        .config("spark.jars.ivy", str(FOLDERS / "ivy"))
        .config(
            "spark.sql.extensions",
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,"
            "io.delta.sql.DeltaSparkSessionExtension",
        )
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


class Reader:
    """Reads by path, or runs a query."""

    def __init__(self) -> None:
        self._session = session()

    def read(self, request: dict[str, Any]) -> pa.Table | dict[str, Any]:
        if (asked := request.get("measure")) is not None:
            began = time.perf_counter()
            reader = self._session.read.format(request["format"])
            paths = request["paths"]
            found = reader.load(paths if request["format"] == "parquet" else paths[0])
            (row,) = found.selectExpr(*asked).toArrow().to_pylist()
            shown = {name: one if isinstance(one, int) else str(one) for name, one in row.items()}
            return {"rows": [shown], "seconds": time.perf_counter() - began}
        for name, value in request.get("conf", {}).items():
            self._session.conf.set(name, value)
        if (line := request.get("python")) is not None:
            names: dict[str, Any] = {"spark": self._session}
            exec(line, names)
            return {"rows": names["rows"].count()}
        if (query := request.get("query")) is not None:
            return {"rows": self._session.sql(query).toArrow().to_pylist()}
        version = request["version"]
        reader = self._session.read.format(request["format"])
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(request["url"]).where(request["where"]).toArrow()


if __name__ == "__main__":
    serve(Reader().read)
