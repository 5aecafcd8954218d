"""The demo's tables as Spark reads and sums them up. pyspark is imported only when called."""

import pyarrow as pa

from .streaming import NAMESPACE, TARGETS
from .totals import spark_totals


def totals_by_spark(store_url: str, schema: pa.Schema) -> dict[str, dict[str, int]]:
    """Each table's totals over the columns of ``schema``, from a Spark session of its own."""
    from ingester.spark import read_table
    from ingester.spark.session import local_session

    spark = local_session("ingester demo")
    try:
        expressions = [f"{sql} as `{name}`" for name, sql in spark_totals(schema).items()]
        found = {}
        for target in TARGETS:
            frame = read_table(spark, store_url, NAMESPACE, target.table)
            row = frame.selectExpr(*expressions).first()
            assert row is not None, "a sum without groups is one row"
            found[target.table] = {name: int(value) for name, value in row.asDict().items()}
        return found
    finally:
        spark.stop()
