"""The data source, as users have it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from ingester.spark import register
from tests.integration.wire import Table


def load(spark: SparkSession, url: str, table: Table, **options: object) -> DataFrame:
    """A batch read of a table."""
    register(spark)
    named = {name: str(value) for name, value in options.items()}
    return spark.read.format("ingester").options(**named).load(f"{url}/{table[0]}/{table[1]}")
