"""The S3A connector that a session was started with, if any, and whether it fits its Hadoop.

Law of this file: the connector's jar and Hadoop's own must be of one version; others fail somewhere
in the middle, with a class or a method that is missing, so they are refused before.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import SparkSession

from ingester.spark.errors import ReaderUnsuitable

_JAR = re.compile(r"hadoop-aws-([0-9][^/]*?)\.jar$")


def setting(spark: SparkSession) -> str:
    """The setting with which this Spark is started so that it has the connector."""
    try:
        return _setting(_hadoop(spark))
    except Exception:  # no JVM behind a Connect session
        return _setting("<the version of Spark's Hadoop>")


def _setting(hadoop: str) -> str:
    return f"spark.jars.packages=org.apache.hadoop:hadoop-aws:{hadoop}"


def _hadoop(spark: SparkSession) -> str:
    jvm: Any = spark._jvm
    return str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())


def has_file_system(spark: SparkSession, scheme: str) -> bool:
    """True where the session can open URLs of a scheme, such as ``s3a``.

    Raises:
        ReaderUnsuitable: the connector is of another version than Hadoop.
    """
    try:
        jvm: Any = spark._jvm
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        found = jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, configuration)
        source = found.getProtectionDomain().getCodeSource()
    except Exception:  # no JVM behind a Connect session; no such class in this one
        return False
    if source is not None:
        check_version(str(source.getLocation().getPath()), _hadoop(spark))
    return True


def check_version(jar: str, hadoop: str) -> None:
    """Refuse a connector whose jar's name has another version than Hadoop; others have none.

    Raises:
        ReaderUnsuitable: with the coordinates that fit.
    """
    version = _JAR.search(jar)
    if version and version[1] != hadoop:
        raise ReaderUnsuitable(
            f"this Spark session has hadoop-aws {version[1]} beside Hadoop {hadoop}; start it with"
            f" {_setting(hadoop)}"
        )
