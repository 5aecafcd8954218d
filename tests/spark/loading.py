"""Batch reads through the data source, as users call it."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from ingester.spark import register
from ingester.spark.versions import LIMITS_BATCHES
from tests.drivers.wire import Table

limits_batches = pytest.mark.skipif(not LIMITS_BATCHES, reason="Spark before 4.2 has no limits")


def load(spark: SparkSession, url: str, table: Table, **options: object) -> DataFrame:
    """Read a table through the data source."""
    register(spark)
    named = {name: str(value) for name, value in options.items()}
    return spark.read.format("ingester").options(**named).load(f"{url}/{table[0]}/{table[1]}")
