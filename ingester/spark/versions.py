"""Differences between PySpark 4.0 and later versions that the data source depends on.

    4.1    filters that Spark pushes down; streaming writes of Arrow batches; rows without columns,
           which 4.0 loses
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
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

NAME = f"PySpark {pyspark.__version__}"

PUSHES_FILTERS = hasattr(datasource, "Filter")
"""Whether Spark hands a query's filters to a Python data source; from 4.1 on."""

LIMITS_BATCHES = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark asks for a batch's end by its start and a limit; from 4.2 on."""

COUNTS_BARE_ROWS = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)
"""Whether rows that have no column arrive; from 4.1 on."""

_NAMES_ZONE = "timezone" in inspect.signature(to_arrow_schema).parameters

if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 looks at the kind of a writer for batches only, and then hands over Arrow."""


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
        """The most that one batch has."""

    class ReadAllAvailable(ReadLimit):
        """The limit of a batch that takes all that is there."""

    @dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):
        """The limit of a batch that takes so many bytes."""

        max_bytes: int

    @dataclass(frozen=True)
    class ReadMaxFiles(ReadLimit):
        """The limit of a batch that takes so many files."""

        max_files: int

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):
        """The limit of a batch that takes so many rows."""

        max_rows: int

    class SupportsTriggerAvailableNow:
        """The mark of a stream that ends where Spark's first question for its end found it."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema in which Spark's JVM takes and gives rows of this schema."""
    if _NAMES_ZONE:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # instants are in UTC there, whatever the session says
