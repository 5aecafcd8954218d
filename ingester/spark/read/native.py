"""Files of a manifest version read by Spark's own vectorised Parquet reader.

Exactly the given files are read, whatever lies beside them: schema, partition columns and their
types are explicit. A missing or damaged file fails the read, whatever the session ignores
otherwise.

Three things in Spark need care:

- It takes ``* ? [ ] { } \\`` in a path as patterns, so they are escaped. They can only be in the
  store's URL: folders are percent-encoded.
- It decodes percent signs of a folder byte by byte, as Latin-1, so ``é`` arrives as ``Ã©``. Names
  and text that are not ASCII are decoded a second time, which keeps pruning by them.
- It skips row groups by statistics and dictionaries. Files written before such statistics were
  omitted (see :mod:`persist.parquet.stats`) may have bounds that ignore a NaN, and in dictionaries
  it takes 0.0 and -0.0 for different numbers. A filter on an expression is not pushed down, so a
  column that may hold NaN or zero becomes an expression. For a top-level column the manifest tells:
  it has no bounds where a NaN is. It knows nothing of fields inside structs. Fields inside lists
  and maps are never pushed down.
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
from ingester.spark.read.columns import Columns, quoted, spark_schema, spark_type
from persist.exports import hadoop_url
from persist.manifest import Add

_READER = {
    # Partition values that are instants are in UTC, like everything in a manifest.
    "timeZone": "UTC",
    # Only old Spark versions wrote dates in the Julian calendar.
    "datetimeRebaseMode": "CORRECTED",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}
_DISCOVERY = "spark.sql.sources.parallelPartitionDiscovery"
# Below this many paths Spark lists files in the driver, one by one.
_LOCAL_THRESHOLD = 1_000_000
_TASKS_AT_ONCE = 256
_conf_lock = threading.Lock()


def can_read(spark: SparkSession, url: str) -> bool:
    """Whether this session has a Hadoop file system for the URL, such as S3A.

    Raises:
        ReaderUnsuitable: The S3A connector's version does not match Hadoop's.
    """
    scheme = hadoop_url(url).partition("://")[0]
    return scheme == "file" or has_file_system(spark, scheme)


def read_files(
    spark: SparkSession,
    root: str,
    adds: Sequence[Add],
    columns: Columns,
    store_options: Mapping[str, Any],
) -> DataFrame:
    """A DataFrame over the files, with the columns that ``columns.fields()`` lists.

    Args:
        root: URL of the folder that the paths of ``adds`` are relative to.
        adds: At least one.
    """
    root = hadoop_url(root)
    partition = [pa.field(_as_spark_decodes(f.name), f.type) for f in columns.partition_fields()]
    reader = spark.read.schema(spark_schema([*columns.data_fields(), *partition]))
    options = {**_READER, **s3a_options(store_options), "basePath": f"{root}/data"}
    paths = [_literal(f"{root}/{add.path}") for add in adds]
    with _discovery(spark, root):
        found = reader.options(**options).parquet(*paths)
    data = [not_skipped(f, adds) for f in columns.data_fields()]
    return found.select(*data, *_partition_columns(columns, partition, adds))


def s3a_options(store_options: Mapping[str, Any]) -> dict[str, str]:
    """Storage options of ``persist.store`` under the names of the S3A connector.

    They apply only if this is the first access to the bucket: Hadoop caches its file system.
    """
    names = {
        "endpoint_url": "fs.s3a.endpoint",
        "key": "fs.s3a.access.key",
        "secret": "fs.s3a.secret.key",
        "token": "fs.s3a.session.token",
        "region": "fs.s3a.endpoint.region",
    }
    found = {names[key]: str(value) for key, value in store_options.items() if key in names}
    if "fs.s3a.endpoint" in found:
        # Other stores may have no host name per bucket.
        found["fs.s3a.path.style.access"] = "true"
    if store_options.get("anon"):
        provider = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
        found["fs.s3a.aws.credentials.provider"] = provider
    return found


def _partition_columns(
    columns: Columns, decoded: list[pa.Field], adds: Sequence[Add]
) -> Iterator[Column]:
    for index, (field, seen) in enumerate(zip(columns.partition_fields(), decoded, strict=True)):
        column = F.col(quoted(seen.name))
        # Only where needed, to keep query plans readable.
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
    """Keep Spark from starting a job with one task per file to list the files.

    Spark reads these settings from the session only. Other listings in this session meanwhile use
    them too: no slower on local disk, and with hundreds of tasks elsewhere.
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
    """The setting that adds the S3A connector to this Spark."""
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
    """Whether the session can open URLs of a scheme such as ``s3a``.

    Raises:
        ReaderUnsuitable: The connector's version does not match Hadoop's.
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
    """Check that the S3A jar has Hadoop's version, if its name has one.

    Another version fails in the middle of a read, with a missing class or method.

    Raises:
        ReaderUnsuitable: The message has the right coordinates.
    """
    version = _JAR.search(jar)
    if version and version[1] != hadoop:
        raise ReaderUnsuitable(
            f"this Spark session has hadoop-aws {version[1]} but Hadoop {hadoop}; start it with"
            f" {_setting(hadoop)}"
        )


def not_skipped(field: pa.Field, adds: Sequence[Add]) -> Column:
    """A column of the files, as an expression if Spark's filters on it must not skip row groups."""
    name = quoted(field.name)
    column = F.col(name)
    if pa.types.is_floating(field.type):
        misleads = any(_may_hold_nan_or_zero(add, field.name) for add in adds)
        return _same(column, field.type).alias(field.name) if misleads else column
    for path, kind in _floats_in(field.type):
        inner = F.col(".".join((name, *path)))
        column = column.withField(".".join(path), _same(inner, kind)).alias(field.name)
    return column


def _same(column: Column, kind: pa.DataType) -> Column:
    return F.nanvl(column, F.lit(float("nan")).cast(spark_type(kind)))


def _may_hold_nan_or_zero(add: Add, name: str) -> bool:
    stats = add.stats.get(name)
    if stats is None or stats.nulls == add.rows:
        return False  # the file lacks the column, or has only nulls
    low: Any = stats.min
    high: Any = stats.max
    return low is None or high is None or low <= 0 <= high


def _floats_in(kind: pa.DataType) -> list[tuple[tuple[str, ...], pa.DataType]]:
    """Floating-point fields inside a struct: quoted path and type."""
    if not pa.types.is_struct(kind):
        return []
    found: list[tuple[tuple[str, ...], pa.DataType]] = []
    for field in kind:
        name = quoted(field.name)
        if pa.types.is_floating(field.type):
            found.append(((name,), field.type))
        found += [((name, *path), inner) for path, inner in _floats_in(field.type)]
    return found
