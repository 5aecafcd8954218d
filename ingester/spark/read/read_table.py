"""``read_table``: which version, which rows, which reader.

Law of this file: a DataFrame is a fixed set of rows. Its version and its buffered rows are taken
when ``read_table`` is called, not when Spark runs: every row acknowledged before the call is in it
once, if all daemons that write the table are named.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from ingester.spark.errors import (
    RequestRefused,
    RowsMissing,
    TailStale,
    TailUnavailable,
    require_pyspark,
)
from ingester.spark.read.tail import Daemons, daemon_of, daemons_of, read_tail, store_of
from persist.manifest import Manifest, TableState, check_kept, version_as_of
from persist.store import ObjectStore, StoreDenied, StoreMark, open_store, read_mark
from persist.table import TableDefinition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ingester.client.connection_options import ConnectionOptions
    from ingester.spark.read.scan import Reader

# A version is stale only if loading it took longer than the daemon's query.tail_retain.
ATTEMPTS = 5


# Its length is what its users read.
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
    storage_options: Mapping[str, Any] | None = None,
    reader: Reader = "auto",
    connection: ConnectionOptions | None = None,
    allow_missing_endpoints: bool = False,
) -> DataFrame:
    """A table's rows at one manifest version, and with ``endpoint`` those not yet in files.

    The columns are the table's, then those of its partition spec (``time_day``, ``zip_key``, …):
    filters on these skip whole folders. Timestamps with a time zone are ``TimestampType``, those
    without ``TimestampNTZType``; nanoseconds are rounded down to microseconds; unsigned integers
    have the next larger type, ``uint64`` is ``decimal(20, 0)``.

    Args:
        url: The store, ``file:///var/lib/ingester/store`` or ``s3://bucket/prefix``.
        version: A manifest version that is kept; the newest by default.
        table_version: A version of the table as a whole, as pushes make them; the one that counts
            by default. Not with ``endpoint``: daemons have rows of that one alone.
        as_of: Instead of a version a moment, the newest version of then: a datetime with a time
            zone, or ISO 8601 with one, ``2026-11-21T15:00:00Z``. By the store's clock.
        endpoint: The daemon that writes the table, ``grpc://host:port``, or all of them: a list,
            text with commas, or ``dns+grpc://name:port``. Their buffered rows of that version are
            read now and held by the driver. In a table with a primary key they replace the rows of
            files, and deletes remove them.
        columns: Of the answer, in this order; all by default. Worth saying with the ``arrow``
            reader, which Spark cannot tell what a query needs.
        filter: Which rows, in the words of ``ingester query``: ``time >= '2026-11-21' and v > 3``.
            What ``where()`` cannot do for Spark's own reader: files that can have none of them are
            left out by what the manifest knows, such as days by a condition on ``time``.
        storage_options: As for ``persist.store.open_store``.
        reader: ``native`` is Spark's own Parquet reader. It needs a Hadoop file system for the
            URL; Spark brings the one for ``file://``, and S3A (for ``s3://``) where the session was
            started with ``hadoop-aws``. ``arrow`` needs no jar: executors read with s3fs and
            pyarrow, and nothing is pruned. ``auto`` is ``native`` where possible.
        connection: Whom to trust at ``endpoint``, and by which token to come in, as
            ``ingester.client.ConnectionOptions(tls_ca="ca.pem", token_file="token")``.
        allow_missing_endpoints: Read without the buffered rows of daemons that are away, as long as
            one is there. Which those are says a warning, :class:`RowsMissing`.

    Raises:
        PySparkMissing: ``pip install 'ingester[spark]'``.
        ReaderUnsuitable: ``native`` was asked for and is not possible.
        TailStale: This ``version`` is too old for ``endpoint``; ask for the newest.
        TailUnavailable: A daemon cannot be reached, or cannot answer now; of several, rows that it
            alone has would be missing.
        persist.manifest.TableNotFound, persist.manifest.VersionNotKept,
            persist.manifest.MomentNotKept, persist.manifest.TableVersionNotKept: No such table, or
            version.
        ValueError: ``as_of`` is no moment, or there is a ``version``, too; ``filter`` is none;
            ``endpoint`` is of another store than ``url``.
        persist.store.StoreError: The store cannot be read.
    """
    require_pyspark()
    from ingester.spark.read.scan import TableScan  # everything below imports PySpark

    if reader not in ("auto", "native", "arrow"):
        raise RequestRefused(f"reader {reader!r} is none of auto, native, arrow")
    options = dict(storage_options or {})
    store = open_store(url, **options)
    if table_version is not None:
        if endpoint is not None:
            raise RequestRefused("table_version beside endpoint: daemons have one version's rows")
        check_kept(store, namespace, table, table_version)
    manifest = Manifest(store, namespace, table, table_version)
    if as_of is not None:
        version = version_as_of(manifest, _moment(as_of, version))
    state = manifest.load(version)
    tails: list[pa.Table] = []
    if endpoint is not None:
        asked = _Asked(columns, filter, connection, allow_missing_endpoints)
        endpoints = daemons_of(endpoint, connection)
        pinned = version is not None
        manifest, state, tails = _with_tails(manifest, state, endpoints, asked, pinned=pinned)
    return TableScan(spark, manifest, options, reader).frame(state, tails, columns, filter)


def _moment(as_of: datetime | str, version: int | None) -> datetime:
    if version is not None:
        raise RequestRefused("version and as_of: one of them says what to read")
    if isinstance(as_of, datetime):
        return as_of
    try:
        return datetime.fromisoformat(as_of)
    except ValueError as exc:
        raise RequestRefused(f"as_of {as_of!r} is no time in ISO 8601") from exc


def _with_tails(
    manifest: Manifest,
    state: TableState,
    endpoints: Daemons,
    asked: _Asked,
    *,
    pinned: bool,
) -> tuple[Manifest, TableState, list[pa.Table]]:
    """A version and, of the same version, what each daemon adds to it."""
    name = (manifest.namespace, manifest.table)
    for attempt in range(1, ATTEMPTS + 1):
        needed = asked.of_daemons(state)
        try:
            tails = _tails(manifest, state.version, needed, endpoints, asked)
        except TailStale:
            if pinned or attempt == ATTEMPTS:
                raise
            # Anew: the table may have been switched.
            manifest = Manifest(manifest.store, *name)
            state = manifest.load()
        else:
            return manifest, state, tails
    raise AssertionError("the last attempt returns or raises")


def _tails(
    manifest: Manifest,
    version: int,
    columns: Sequence[str] | None,
    endpoints: Daemons,
    asked: _Asked,
) -> list[pa.Table]:
    """Every daemon's tail of a version. Who is away is left out with a warning, if that is allowed.

    Raises:
        TailStale, TailUnavailable: as :func:`read_table`.
        RequestRefused: A daemon writes to another store than the one that is read.
    """
    tails: dict[bytes, pa.Table] = {}
    away: list[TailUnavailable] = []
    about = (manifest.namespace, manifest.table, version, columns, manifest.table_version)
    mark = _mark_of(manifest.store)
    for each in endpoints.endpoints:
        try:
            tail = read_tail(each, *about, asked.connection, endpoints)
            _check_store(manifest.store, mark, each, store_of(tail))
            tails.setdefault(daemon_of(tail), tail.replace_schema_metadata(None))
        except TailUnavailable as exc:
            if not exc.is_away or not asked.allow_missing:
                raise
            away.append(exc)
    if away and not tails:
        raise away[0]
    if away:
        told = "; ".join(map(str, away))
        warnings.warn(RowsMissing([exc.endpoint for exc in away], told), stacklevel=4)
    return [*tails.values()]


def _mark_of(store: ObjectStore) -> StoreMark | None:
    try:
        return read_mark(store)
    except StoreDenied:
        return None  # of a reader who may see the table alone


def _check_store(store: ObjectStore, mark: StoreMark | None, endpoint: str, told: str) -> None:
    """Raise RequestRefused where a daemon says another store than that of the files."""
    if mark is not None and told and told != mark.id:
        raise RequestRefused(
            f"{endpoint} writes to store {told}, and the files are read from {store.url}, which is"
            f" store {mark.id}: name the daemons of that store as endpoint, or the store of the"
            " daemons as url"
        )


class _Asked(NamedTuple):
    columns: Sequence[str] | None
    filter: str | None
    connection: ConnectionOptions | None
    allow_missing: bool

    def of_daemons(self, state: TableState) -> list[str] | None:
        """Columns, those of the filter, the key, and what partition columns are made from.

        None for all: some may be newer than the version, and then the answer shows them.
        """
        if self.columns is None:
            return None
        from ingester.spark.read.filter_option import said

        definition = TableDefinition.of_state(state)
        try:
            looked_at = said(self.filter, definition).columns
        except ValueError:
            return None
        named = [name for name in (*self.columns, *looked_at) if name not in definition.spec.names]
        if not all(name in definition.schema.names for name in named):
            return None
        needed = [*named, *definition.primary_key, *definition.spec.columns]
        return list(dict.fromkeys(needed))
