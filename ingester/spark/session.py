"""Spark sessions: a local one for demos and tests, and the data source registered with any.

The local session listens on the loopback only, leaves nothing in the working directory, logs errors
only, and uses UTC (``tests/spark/test_session.py``).
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ingester.spark.errors import require_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The JVM logs during startup, before a log level can be set from here.
_QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
# Spark would log that it sets this logger to WARN.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


def local_session(
    app_name: str, *, cores: int | None = None, shuffle_partitions: int = 8
) -> SparkSession:
    """A new local session, or this process's existing one.

    Args:
        cores: Concurrent tasks; by default one per core of the machine.

    Raises:
        PySparkMissing: ``pip install '.[spark]'``.
    """
    require_pyspark()
    from pyspark.sql import SparkSession

    scratch = Path(tempfile.mkdtemp(prefix="ingester-spark-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    quiet = scratch / "log4j2.properties"
    quiet.write_text(_QUIET)
    # Workers run this Python, not the `python3` on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet.as_uri()}",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
    }
    builder = SparkSession.builder.appName(app_name).master(f"local[{cores or '*'}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def register(spark: SparkSession) -> None:
    """Register ``format("ingester")`` with a session.

    Raises:
        PySparkMissing: ``pip install '.[spark]'``.
    """
    require_pyspark()
    from ingester.spark.read.arrow_scan import parallelism  # imports PySpark
    from ingester.spark.source.source import IngesterSource

    # Planning runs in a separate process, which has no session.
    facts = {"parallelism": parallelism(spark)}
    spark.dataSource.register(type(IngesterSource.__name__, (IngesterSource,), facts))
