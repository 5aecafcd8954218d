"""Rows of files and buffered rows of the same table, put together.

Law of this file: both have the same columns in the same order. In a table without a primary key no
row is in both, so they are added up. In a keyed one the buffered row wins, and a buffered delete
takes the row away.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ingester.spark.read.types import spark_schema

OPERATION = "_op"
# Sent to every executor instead of shuffling the files' rows, as far as it is small.
_BROADCAST_BYTES = 32 * 1024 * 1024


def quoted(name: str) -> str:
    """A column's name as Spark's expressions take it, whatever is in it."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def local_rows(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Rows that the driver holds, as a DataFrame with the same columns."""
    return spark.createDataFrame(table, spark_schema(list(table.schema)))


def added(spark: SparkSession, files: DataFrame, tail: pa.Table) -> DataFrame:
    """The rows of both; for tables without a primary key."""
    return files if tail.num_rows == 0 else files.union(local_rows(spark, tail))


def merged(
    spark: SparkSession, files: DataFrame, tail: pa.Table, primary_key: Sequence[str]
) -> DataFrame:
    """The last state of each key.

    Args:
        tail: In write order, with a column ``_op``; where a key comes again its last row counts.
    """
    if tail.num_rows == 0:
        return files
    tail = last_of_each_key(tail, primary_key)
    # No column of a table begins with '_', so these meet none.
    aliases = [f"_key_{index}" for index in range(len(primary_key))]
    keys = local_rows(spark, tail.select(list(primary_key)).rename_columns(aliases))
    if tail.nbytes <= _BROADCAST_BYTES:
        keys = F.broadcast(keys)
    same = [
        F.col(quoted(name)) == F.col(quoted(alias))
        for name, alias in zip(primary_key, aliases, strict=True)
    ]
    older = files.join(keys, same, "left_anti")
    kept = tail.filter(pc.equal(tail[OPERATION], "upsert")).drop_columns([OPERATION])
    return added(spark, older, kept)


def last_of_each_key(rows: pa.Table, primary_key: Sequence[str]) -> pa.Table:
    """The last of each set of rows with equal keys, in the order of the rows."""
    numbers = pa.array(range(rows.num_rows), pa.int64())
    keys = rows.select(list(primary_key)).append_column("_row", numbers)
    last = keys.group_by(list(primary_key)).aggregate([("_row", "max")])["_row_max"]
    return rows.take(last.combine_chunks().sort())
