"""Files of a manifest version read by Spark's own vectorised Parquet reader.

Exactly the given files are read, whatever lies beside them: schema, partition columns and their
types are explicit. A missing or damaged file fails the read, whatever the session ignores
otherwise.

Three things in Spark need care:

- It takes ``* ? [ ] { } \\`` in a path as patterns, so they are escaped. They can only be in the
  store's URL: folders are percent-encoded.
- It decodes percent signs of a folder byte by byte, as Latin-1, so ``é`` arrives as ``Ã©``. Names
  and text that are not ASCII are decoded a second time, which keeps pruning by them.
- It skips row groups by statistics, and files written before such statistics were omitted (see
  :mod:`persist.parquet.stats`) may have bounds that ignore a NaN. A filter on an expression is
  not pushed down, so a column that may hold NaN becomes an expression. For a top-level column the
  manifest tells: it has no bounds where a NaN is. It knows nothing of fields inside structs. Fields
  inside lists and maps are never pushed down.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ingester.spark.errors import ReaderUnsuitable
from ingester.spark.read.columns import Columns
from ingester.spark.read.types import quoted, spark_schema, spark_type
from persist.exports.spark_metadata import hadoop_url
from persist.manifest import Add

_READER = {
    # Partition values that are instants are in UTC, like everything in a manifest.
    "timeZone": "UTC",
    # Nobody but old Sparks writes dates in the Julian calendar.
    "datetimeRebaseMode": "CORRECTED",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}
_DISCOVERY = "spark.sql.sources.parallelPartitionDiscovery"
# Below this many paths Spark asks for each file's size in the driver, one by one.
_LOCAL_THRESHOLD = 1_000_000
_TASKS_AT_ONCE = 256
_conf_lock = threading.Lock()


def can_read(spark: SparkSession, url: str) -> bool:
    """True where this session has a file system for the URL, such as the S3A connector's.

    Raises:
        ReaderUnsuitable: it has one that does not fit its Hadoop.
    """
    scheme = hadoop_url(url).partition("://")[0]
    return scheme == "file" or has_file_system(spark, scheme)


def read_files(
    spark: SparkSession,
    root: str,
    adds: Sequence[Add],
    columns: Columns,
    storage_options: Mapping[str, Any],
) -> DataFrame:
    """A DataFrame over the files, with the columns that ``columns.fields()`` lists.

    Args:
        root: URL of the folder that the paths of ``adds`` are relative to.
        adds: At least one.
    """
    root = hadoop_url(root)
    partition = [pa.field(_as_spark_decodes(f.name), f.type) for f in columns.partition_fields()]
    reader = spark.read.schema(spark_schema([*columns.data_fields(), *partition]))
    options = {**_READER, **s3a_options(storage_options), "basePath": f"{root}/data"}
    paths = [_literal(f"{root}/{add.path}") for add in adds]
    with _discovery(spark, root):
        found = reader.options(**options).parquet(*paths)
    data = [not_skipped(f, adds) for f in columns.data_fields()]
    return found.select(*data, *_partition_columns(columns, partition, adds))


def s3a_options(storage_options: Mapping[str, Any]) -> dict[str, str]:
    """Storage options of ``persist.store`` as the S3A connector names them.

    They are used when this is the first to open the bucket: Hadoop then keeps its file system.
    """
    names = {
        "endpoint_url": "fs.s3a.endpoint",
        "key": "fs.s3a.access.key",
        "secret": "fs.s3a.secret.key",
        "token": "fs.s3a.session.token",
        "region": "fs.s3a.endpoint.region",
    }
    found = {names[key]: str(value) for key, value in storage_options.items() if key in names}
    if "fs.s3a.endpoint" in found:
        # Only AWS itself is sure to have a host name for each bucket.
        found["fs.s3a.path.style.access"] = "true"
    if storage_options.get("anon"):
        provider = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
        found["fs.s3a.aws.credentials.provider"] = provider
    return found


def _partition_columns(
    columns: Columns, decoded: list[pa.Field], adds: Sequence[Add]
) -> Iterator[Column]:
    for index, (field, seen) in enumerate(zip(columns.partition_fields(), decoded, strict=True)):
        column = F.col(quoted(seen.name))
        # Only where needed: a plain column is what most eyes expect in a plan.
        if pa.types.is_string(field.type) and not all(_is_ascii(add.values[index]) for add in adds):
            column = F.decode(F.encode(column, "ISO-8859-1"), "UTF-8")
        yield column.alias(field.name)


def _is_ascii(value: object) -> bool:
    return not isinstance(value, str) or value.isascii()


def _as_spark_decodes(name: str) -> str:
    return name.encode().decode("latin-1")


def _literal(path: str) -> str:
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


@contextmanager
def _discovery(spark: SparkSession, root: str) -> Iterator[None]:
    """Keep Spark from starting a job of one task per file when it lists the files.

    Spark takes these from the session alone. Who lists other files meanwhile in this session finds
    them no slower on local disk and with hundreds of tasks at once elsewhere.
    """
    if root.startswith("file:"):
        wanted = {f"{_DISCOVERY}.threshold": str(_LOCAL_THRESHOLD)}
    else:
        wanted = {f"{_DISCOVERY}.parallelism": str(_TASKS_AT_ONCE)}
    with _conf_lock:
        before = {name: spark.conf.get(name) for name in wanted}
        try:
            for name, value in wanted.items():
                spark.conf.set(name, value)
            yield
        finally:
            for name, old in before.items():
                spark.conf.set(name, str(old))


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


def not_skipped(field: pa.Field, adds: Sequence[Add]) -> Column:
    """A column of the files, such that filters on it keep the rows that Spark would keep."""
    name = quoted(field.name)
    column = F.col(name)
    if pa.types.is_floating(field.type):
        may_hold = any(_may_hold_nan(add, field.name) for add in adds)
        return _same(column, field.type).alias(field.name) if may_hold else column
    for path, kind in _floats_in(field.type):
        inner = F.col(".".join((name, *path)))
        column = column.withField(".".join(path), _same(inner, kind)).alias(field.name)
    return column


def _same(column: Column, kind: pa.DataType) -> Column:
    return F.nanvl(column, F.lit(float("nan")).cast(spark_type(kind)))


def _may_hold_nan(add: Add, name: str) -> bool:
    stats = add.stats.get(name)
    if stats is None or stats.nulls == add.rows:
        return False  # there is no such column in the file, or no value in it
    return stats.min is None or stats.max is None


def _floats_in(kind: pa.DataType) -> list[tuple[tuple[str, ...], pa.DataType]]:
    """Paths inside a struct, quoted, and what lies there."""
    if not pa.types.is_struct(kind):
        return []
    found: list[tuple[tuple[str, ...], pa.DataType]] = []
    for field in kind:
        name = quoted(field.name)
        if pa.types.is_floating(field.type):
            found.append(((name,), field.type))
        found += [((name, *path), inner) for path, inner in _floats_in(field.type)]
    return found
