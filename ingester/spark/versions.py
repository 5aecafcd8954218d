"""Differences between PySpark 4.0 and later versions that the data source depends on.

    4.1    streaming writes of Arrow batches; rows without columns, which 4.0 loses
    4.2    a stream's reader is told where a batch begins and how large it may become

An API newer than 4.0 is imported from here. Where a version lacks it, an equivalent stands in, or a
flag lets the caller refuse the option (``make spark-versions`` runs the tests on each version).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkTypeError
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ingester.spark.errors import WriteRefused

NAME = f"PySpark {pyspark.__version__}"

LIMITS_BATCHES = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark passes a batch's start and limit when it asks for the end; from 4.2."""

COUNTS_BARE_ROWS = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)
"""Whether rows without columns are counted; from 4.1."""

_NAMES_ZONE = "timezone" in inspect.signature(to_arrow_schema).parameters

if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 passes Arrow batches to any writer that is a ``DataSourceArrowWriter``."""


if TYPE_CHECKING or LIMITS_BATCHES:
    from pyspark.sql.streaming.datasource import ReadAllAvailable as ReadAllAvailable
    from pyspark.sql.streaming.datasource import ReadLimit as ReadLimit
    from pyspark.sql.streaming.datasource import ReadMaxBytes as ReadMaxBytes
    from pyspark.sql.streaming.datasource import ReadMaxFiles as ReadMaxFiles
    from pyspark.sql.streaming.datasource import ReadMaxRows as ReadMaxRows
    from pyspark.sql.streaming.datasource import (
        SupportsTriggerAvailableNow as SupportsTriggerAvailableNow,
    )
else:

    @dataclass(frozen=True)
    class ReadLimit:
        """Limit of one batch."""

    class ReadAllAvailable(ReadLimit):
        """No limit."""

    @dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):
        """Limit in bytes."""

        max_bytes: int

    @dataclass(frozen=True)
    class ReadMaxFiles(ReadLimit):
        """Limit in files."""

        max_files: int

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):
        """Limit in rows."""

        max_rows: int

    class SupportsTriggerAvailableNow:
        """Marks a stream whose end is fixed at its first ``latestOffset``."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark's JVM uses for rows of this schema.

    Raises:
        WriteRefused: Spark cannot convert a column's type, such as an interval of months.
    """
    for field in schema.fields:
        try:
            _converted(StructType([field]))
        except PySparkTypeError as exc:
            raise WriteRefused(
                f"column {field.name!r} has type {field.dataType.simpleString()}, which Spark"
                " cannot convert to Arrow: cast it, for example to string"
            ) from exc
    return _converted(schema)


def _converted(schema: StructType) -> pa.Schema:
    if _NAMES_ZONE:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # always UTC, whatever the session's time zone
