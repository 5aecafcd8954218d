"""The files of a manifest version through Spark's own vectorised Parquet reader.

Law of this file: exactly the files given are read, whatever else lies beside them; nothing about
them is guessed: schema, partition columns and their types are all said. A file that is missing or
broken fails the read, whatever the session ignores otherwise.

Two things that Spark does to names need care. It takes ``* ? [ ] { } \\`` in a path for patterns,
so they are escaped (they can only be in the store's URL: folders are percent-encoded). And it
decodes a folder's percent signs byte by byte, as Latin-1, so that ``é`` arrives as ``Ã©``: names
and text that are not ASCII are decoded once more, which leaves pruning by them intact.
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

from ingester.spark.read.columns import Columns
from ingester.spark.read.merge import quoted
from ingester.spark.read.nan_statistics import not_skipped
from ingester.spark.read.s3a import has_file_system
from ingester.spark.read.types import spark_schema
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
_setting = threading.Lock()


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
    with _setting:
        before = {name: spark.conf.get(name) for name in wanted}
        try:
            for name, value in wanted.items():
                spark.conf.set(name, value)
            yield
        finally:
            for name, old in before.items():
                spark.conf.set(name, str(old))
