"""``read_table``: a fixed set of rows.

Version and buffered rows are taken when ``read_table`` is called, not when Spark runs. If all
daemons that write the table are named, every row acknowledged before the call is in the DataFrame
exactly once (``tests/spark/test_tail_racing.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ingester.spark.errors import RequestRefused, require_pyspark
from ingester.spark.read.tail import TailRequest, connected, with_tails
from persist.manifest import Manifest, check_kept, version_as_of
from persist.store import open_store
from persist.store.option_names import accepts_earlier_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ingester.client.credentials import ConnectionOptions
    from ingester.spark.read.scan import Reader


# Longer than 40 lines because of its documentation.
@accepts_earlier_name
def read_table(
    spark: SparkSession,
    url: str,
    namespace: str,
    table: str,
    version: int | None = None,
    *,
    table_version: int | None = None,
    as_of: datetime | str | None = None,
    endpoint: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    store_options: Mapping[str, Any] | None = None,
    reader: Reader = "auto",
    connection: ConnectionOptions | None = None,
    allow_missing_endpoints: bool = False,
) -> DataFrame:
    """A table's rows at one manifest version; with ``endpoint`` also those not yet in files.

    The columns are the table's, then those of its partition spec (``time_day``, ``zip_key``, …):
    filters on these skip whole folders. Timestamps with a time zone are ``TimestampType``, those
    without ``TimestampNTZType``; nanoseconds are rounded down to microseconds; unsigned integers
    have the next larger type, ``uint64`` is ``decimal(20, 0)``.

    Args:
        url: The store, ``file:///var/lib/ingester/store`` or ``s3://bucket/prefix``.
        version: A manifest version that is kept; the newest by default.
        table_version: A generation of the table, as pushes make them; the current one by default.
            Not with ``endpoint``: daemons hold rows of the current generation only.
        as_of: Instead of ``version``, a moment whose newest version is read: a datetime with a time
            zone, or ISO 8601 with one, ``2026-11-21T15:00:00Z``. By the store's clock.
        endpoint: The daemon that writes the table, ``grpc://host:port``, or all of them: a list,
            text with commas, or ``dns+grpc://name:port``. Their buffered rows beyond the version
            are read now and held by the driver. In a table with a primary key they replace rows of
            files, and deletes remove rows.
        columns: Columns of the answer, in this order; all by default. Reduces what the ``arrow``
            reader reads, as Spark cannot tell it which columns a query needs.
        filter: Rows to read, in the language of ``ingester query``:
            ``time >= '2026-11-21' and v > 3``. Unlike ``where()`` it prunes files by the manifest,
            for example days by a condition on ``time``.
        store_options: As for ``persist.store.open_store``.
        reader: ``native`` is Spark's own Parquet reader. It needs a Hadoop file system for the
            URL; Spark includes the one for ``file://``, and S3A (for ``s3://``) needs a session
            started with ``hadoop-aws``. ``arrow`` needs no jar: executors read with s3fs and
            pyarrow, and Spark's filters prune nothing. ``auto`` is ``native`` where possible.
        connection: TLS trust and token for ``endpoint``, as
            ``ingester.client.ConnectionOptions(tls_ca="ca.pem", token_file="token")``.
        allow_missing_endpoints: Read without the buffered rows of unreachable daemons, as long as
            one answers. The warning :class:`RowsMissing` names the others.

    Raises:
        PySparkMissing: ``pip install '.[spark]'``.
        ReaderUnsuitable: ``native`` was requested and is not possible.
        TailStale: This ``version`` is too old for ``endpoint``; read the newest.
        TailUnavailable: A daemon cannot be reached, or cannot answer now; its rows would be
            missing.
        persist.manifest.TableNotFound, persist.manifest.VersionNotKept,
            persist.manifest.MomentNotKept, persist.manifest.TableVersionNotKept: No such table or
            version.
        ValueError: ``as_of`` is not a moment, or is given together with ``version``; ``filter`` is
            invalid; ``endpoint`` writes to another store than ``url``.
        persist.store.StoreError: The store cannot be read.
    """
    require_pyspark()
    from ingester.spark.read.scan import TableScan  # imports PySpark

    if reader not in ("auto", "native", "arrow"):
        raise RequestRefused(f"reader {reader!r} is not one of auto, native, arrow")
    options = dict(store_options or {})
    store = open_store(url, **options)
    if table_version is not None:
        if endpoint is not None:
            raise RequestRefused(
                "table_version and endpoint: daemons hold rows of the current generation only"
            )
        check_kept(store, namespace, table, table_version)
    manifest = Manifest(store, namespace, table, table_version)
    if as_of is not None:
        version = version_as_of(manifest, _moment(as_of, version))
    state = manifest.load(version)
    tails: list[pa.Table] = []
    if endpoint is not None:
        pinned = version is not None
        with connected(endpoint, connection) as daemons:
            request = TailRequest(daemons, columns, filter, allow_missing_endpoints)
            manifest, state, tails = with_tails(manifest, state, request, pinned=pinned)
    return TableScan(spark, manifest, options, reader).frame(state, tails, columns, filter)


def _moment(as_of: datetime | str, version: int | None) -> datetime:
    if version is not None:
        raise RequestRefused("version and as_of: give only one of them")
    if isinstance(as_of, datetime):
        return as_of
    try:
        return datetime.fromisoformat(as_of)
    except ValueError as exc:
        raise RequestRefused(f"as_of {as_of!r} is not a time in ISO 8601") from exc
