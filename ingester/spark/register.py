"""A session learns the data source; see :mod:`ingester.spark.source.source`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingester.spark.errors import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make ``format("ingester")`` known to a session, and let it push filters.

    Sets ``spark.sql.python.filterPushdown.enabled``, which the option ``pushdown`` needs and which
    is off by default; Spark 4.0 does not know it.

    Raises:
        PySparkMissing: ``pip install 'ingester[spark]'``.
    """
    require_pyspark()
    from ingester.spark.read.arrow_scan import parallelism  # everything below imports PySpark
    from ingester.spark.source.source import IngesterSource
    from ingester.spark.versions import PUSHES_FILTERS

    # Planning runs in a process of its own, which does not know the session.
    facts = {"parallelism": parallelism(spark)}
    if PUSHES_FILTERS:
        spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(type(IngesterSource.__name__, (IngesterSource,), facts))
