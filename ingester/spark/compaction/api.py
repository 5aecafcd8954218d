"""``compact``, ``rewrite`` and ``expire``. PySpark is imported when one of them needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ingester.spark.errors import WriteRefused, require_pyspark
from persist.compaction import (
    TARGET_FILE_BYTES,
    CompactionReport,
    FileSelection,
    Progress,
    RewriteRefused,
    Rewriting,
    plan_compaction,
    plan_move,
    plan_rewrite,
)
from persist.manifest import CleanUp, Manifest, Retention, clean_up
from persist.parquet.encode import ZSTD, Compression
from persist.predicate.files import may_have_matches
from persist.store import open_store
from persist.store.option_names import accepts_earlier_name
from persist.table import TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@accepts_earlier_name
def compact(
    spark: SparkSession,
    url: str,
    namespace: str,
    table: str,
    *,
    target_file_bytes: int = TARGET_FILE_BYTES,
    filter: str | None = None,
    store_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> CompactionReport:
    """Merge small files into few sorted ones; in a keyed table also drop replaced rows.

    Args:
        target_file_bytes: Size of the new files. Files of at least three quarters of it stay,
            unless an earlier partition spec laid them out. A task holds all rows of one new file in
            memory, decoded: about ten times its size.
        filter: Only files that may have matching rows, such as ``time >= '2026-11-21'``.
        store_options: As for ``persist.store.open_store``.
        progress: See :data:`Progress`.

    Raises:
        PySparkMissing: ``pip install '.[spark]'``.
        persist.manifest.TableNotFound: The table does not exist.
        persist.store.StoreError: The store cannot be read or written; committed waves stay.
        ValueError: ``filter`` or ``target_file_bytes`` is invalid.
    """
    if target_file_bytes < 1:
        raise ValueError(f"target_file_bytes is {target_file_bytes}; it must be at least 1")
    made = _rewriting(spark, (url, namespace, table), target_file_bytes, filter, store_options)
    made.progress = progress
    return made.run([plan_compaction])


@accepts_earlier_name
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
    store_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> CompactionReport:
    """Rewrite all files in another order, compression or partitioning; large files are split.

    Order and compression apply to the rewritten files only: daemons keep writing in the table's own
    order and with zstd. A new partitioning becomes the table's own. Daemons use it for streams that
    are opened after their next commit to the table. Until all files have moved the table has files
    of both layouts, and every reader sees each row once. Remaining files are moved by the next
    :func:`compact`, or by repeating the call; without ``sort_by`` and ``compression`` a repeated
    call moves only those.

    Args:
        sort_by: Columns; by default the table's own order. Not for a table with a primary key,
            whose files are in key order.
        partition_by: ``["day(time)", "bucket(16, host)"]``, or ``[]`` for no partitions; by default
            unchanged. Not for a table with a primary key.
        compression: Codec of the new files: ``zstd``, ``zstd:9``, ``gzip:6``, ``snappy``, ``lz4``,
            ``none``.
        filter: As for :func:`compact`, like all other arguments.

    Raises:
        WriteRefused: ``sort_by`` names an unknown column, or the table is keyed.
        ValueError: Invalid ``compression``, or ``partition_by`` does not fit the table.
    """
    if target_file_bytes < 1:
        raise ValueError(f"target_file_bytes is {target_file_bytes}; it must be at least 1")
    asked = Compression.parse(compression)
    made = _rewriting(spark, (url, namespace, table), target_file_bytes, filter, store_options)
    made.progress = progress
    made.sort_by = None if sort_by is None else tuple(sort_by)
    made.partition_by = None if partition_by is None else tuple(partition_by)
    made.compression = asked
    made.rounds = 1
    plans = [plan_rewrite]
    if partition_by is not None:
        moves_only = sort_by is None and asked == ZSTD
        # A partition may receive small files from many groups, so compact afterwards.
        plans = [plan_move if moves_only else plan_rewrite, plan_compaction]
    try:
        return made.run(plans)
    except RewriteRefused as exc:
        raise WriteRefused(str(exc)) from exc


def _rewriting(
    spark: SparkSession,
    table: tuple[str, str, str],
    target_file_bytes: int,
    filter_: str | None,
    store_options: Mapping[str, Any] | None,
) -> Rewriting:
    """A rewrite of a table, given as URL, namespace and name."""
    require_pyspark()
    # These import PySpark.
    from ingester.spark.compaction.runner import SparkRunner
    from ingester.spark.read.filters import said

    def wanted(definition: TableDefinition) -> FileSelection:
        return partial(may_have_matches, said(filter_, definition), definition)

    url, namespace, name = table
    options = dict(store_options or {})
    manifest = Manifest(open_store(url, **options), namespace, name)
    runner = SparkRunner(spark, manifest.store.url, options)
    return Rewriting(manifest, runner, target_file_bytes, wanted, "spark")


@accepts_earlier_name
def expire(
    url: str,
    namespace: str,
    table: str,
    *,
    retain_s: float = 86_400.0,
    orphan_grace_s: float = 86_400.0,
    keep_versions: int = 10,
    store_options: Mapping[str, Any] | None = None,
) -> CleanUp:
    """Delete expired versions and files that no retained version lists.

    Same as ``ingester manifest gc``. Needs neither Spark nor a daemon.

    Args:
        retain_s: Versions younger than this stay readable.
        orphan_grace_s: Files younger than this stay: they may be about to be committed.
        keep_versions: Number of newest versions that stay, whatever their age.

    Raises:
        persist.manifest.TableNotFound: The table does not exist.
    """
    manifest = Manifest(open_store(url, **dict(store_options or {})), namespace, table)
    retention = Retention(
        retain_s=retain_s, orphan_grace_s=orphan_grace_s, keep_versions=keep_versions
    )
    return clean_up(manifest, retention)
