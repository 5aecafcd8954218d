"""``compact``, ``rewrite`` and ``expire``. PySpark is imported when one of them needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ingester.spark.compaction.plan import (
    TARGET_FILE_BYTES,
    CompactionReport,
    Progress,
    plan_compaction,
    plan_move,
    plan_rewrite,
)
from ingester.spark.errors import require_pyspark
from persist.manifest import CleanUp, Manifest, Retention, clean_up
from persist.parquet.encode import ZSTD, Compression
from persist.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compact(
    spark: SparkSession,
    url: str,
    namespace: str,
    table: str,
    *,
    target_file_bytes: int = TARGET_FILE_BYTES,
    filter: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> CompactionReport:
    """Make few files of many small ones, sorted, in a keyed table with each key once.

    Args:
        target_file_bytes: Of the new files. Files of at least three quarters of it stay, unless an
            earlier partition spec laid them out. A task has all rows of such a file in memory,
            decoded: some ten times as much.
        filter: Only files that may have rows like this, such as ``time >= '2026-11-21'``.
        storage_options: As for ``persist.store.open_store``.
        progress: See :data:`Progress`.

    Raises:
        PySparkMissing: ``pip install 'ingester[spark]'``.
        persist.manifest.TableNotFound: There is no such table.
        persist.store.StoreError: The store cannot be read or written; what is committed stays.
        ValueError: ``filter`` or ``target_file_bytes`` make no sense.
    """
    if target_file_bytes < 1:
        raise ValueError(f"target_file_bytes {target_file_bytes}: at least 1")
    require_pyspark()
    from ingester.spark.compaction.run import Rewriting  # it imports PySpark

    made = Rewriting(spark, url, namespace, table, dict(storage_options or {}), target_file_bytes)
    return made.run([plan_compaction], filter, progress)


def rewrite(
    spark: SparkSession,
    url: str,
    namespace: str,
    table: str,
    *,
    sort_by: Sequence[str] | None = None,
    partition_by: Sequence[str] | None = None,
    compression: str = "zstd",
    target_file_bytes: int = TARGET_FILE_BYTES,
    filter: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> CompactionReport:
    """Write all files anew, in another order, compression or partitioning; large ones are cut.

    The table's own order, in which daemons write new files, stays what it is, and so does zstd.
    Another partitioning is the table's own from then on: daemons lay rows out by it that come down
    streams which are opened after their next commit to the table. Until all files have moved the
    table has files of both, and whoever reads it has each row once. What is still to be moved is
    moved by the next :func:`compact`, or by the same call again, which moves no more than that
    where neither an order nor a compression is asked for.

    Args:
        sort_by: Columns; the table's own order by default. Not of a table with a primary key, whose
            files are in the order of the key.
        partition_by: ``["day(time)", "bucket(16, host)"]``, or ``[]`` for no partitions; as they
            are by default. Not of a table with a primary key.
        compression: Of the new files: ``zstd``, ``zstd:9``, ``gzip:6``, ``snappy``,
            ``lz4``, ``none``. It takes longer to write and, with snappy and lz4, less to read.
        filter: As :func:`compact`, as all else.

    Raises:
        WriteRefused: ``sort_by`` names no column, or the table is keyed.
        ValueError: ``compression`` is none of these; ``partition_by`` does not fit the table.
    """
    if target_file_bytes < 1:
        raise ValueError(f"target_file_bytes {target_file_bytes}: at least 1")
    asked = Compression.parse(compression)
    require_pyspark()
    from ingester.spark.compaction.run import Rewriting  # it imports PySpark

    made = Rewriting(spark, url, namespace, table, dict(storage_options or {}), target_file_bytes)
    made.sort_by = None if sort_by is None else tuple(sort_by)
    made.compression = asked
    made.rounds = 1
    if partition_by is None:
        return made.run([plan_rewrite], filter, progress)
    made.partition_by = tuple(partition_by)
    moves_only = sort_by is None and asked == ZSTD
    # A partition may get rows of many groups: its share of each is small.
    plans = [plan_move if moves_only else plan_rewrite, plan_compaction]
    return made.run(plans, filter, progress)


def expire(
    url: str,
    namespace: str,
    table: str,
    *,
    retain_s: float = 86_400.0,
    orphan_grace_s: float = 86_400.0,
    keep_versions: int = 10,
    storage_options: Mapping[str, Any] | None = None,
) -> CleanUp:
    """Let go of versions that are too old, and of files that no kept version lists.

    Needs no Spark, and no daemon; the same as ``ingester manifest gc``.

    Args:
        retain_s: Versions younger than this stay readable.
        orphan_grace_s: Files younger than this may be about to be committed, and stay.
        keep_versions: The last versions that stay, however old.

    Raises:
        persist.manifest.TableNotFound: There is no such table.
    """
    manifest = Manifest(open_store(url, **dict(storage_options or {})), namespace, table)
    retention = Retention(
        retain_s=retain_s, orphan_grace_s=orphan_grace_s, keep_versions=keep_versions
    )
    return clean_up(manifest, retention)
