"""Rows that daemons have acknowledged and that a manifest version's files lack.

Asked for one version, each daemon returns exactly its own rows that the version's files lack, so
the version and the answers of all daemons that write the table hold each row once
(``tests/spark/test_tail_racing.py``). A daemon that no longer knows so old a version answers
``stale``; then the version and all answers for it are discarded.

The rows are in the driver's memory, as with ``createDataFrame``. Executors load this module but
call nothing in it, so the client is imported where it is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ingester.spark.errors import RequestRefused, RowsMissing, TailStale, TailUnavailable
from persist.manifest import Manifest, TableState
from persist.store import ObjectStore, StoreDenied, StoreMark, read_mark
from persist.table import TableDefinition

if TYPE_CHECKING:
    from ingester.client.connection import Connection
    from ingester.client.credentials import ConnectionOptions
    from ingester.client.wire import SnapshotInfo

# A version is stale only if loading it took longer than the daemon's query.tail_retain.
ATTEMPTS = 5
_TIMEOUT_S = 60.0  # of calls other than queries, none of which are made here


@dataclass(frozen=True, slots=True)
class TailRequest:
    """Buffered rows that a read asks for.

    Attributes:
        daemons: Connections to all daemons that write the table.
        columns: Columns of the answer; None for all.
        filter: The filter of the read, whose columns are needed too.
        allow_missing: Whether unreachable daemons are skipped with a warning.
    """

    daemons: Sequence[Connection]
    columns: Sequence[str] | None = None
    filter: str | None = None
    allow_missing: bool = False

    def needed_columns(self, state: TableState) -> list[str] | None:
        """Requested columns, those of the filter, the key, and the sources of partition columns.

        None for all: some may be newer than the version, and only the answer shows them.
        """
        if self.columns is None:
            return None
        from ingester.spark.read.filters import said

        definition = TableDefinition.of_state(state)
        try:
            filtered = said(self.filter, definition).columns
        except ValueError:
            return None
        named = [name for name in (*self.columns, *filtered) if name not in definition.spec.names]
        if not all(name in definition.schema.names for name in named):
            return None
        needed = [*named, *definition.primary_key, *definition.spec.columns]
        return list(dict.fromkeys(needed))


def with_tails(
    manifest: Manifest, state: TableState, request: TailRequest, *, pinned: bool
) -> tuple[Manifest, TableState, list[pa.Table]]:
    """A version, and the rows that each daemon adds to the same version.

    Args:
        pinned: Whether the version must stay; otherwise a newer one is loaded when it is stale.

    Raises:
        TailStale, TailUnavailable, RequestRefused: As :func:`tails_of`.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            tails = tails_of(manifest, state.version, request.needed_columns(state), request)
        except TailStale:
            if pinned or attempt == ATTEMPTS:
                raise
            # A new Manifest: the table may have been switched to another generation.
            manifest = Manifest(manifest.store, manifest.namespace, manifest.table)
            state = manifest.load()
        else:
            return manifest, state, tails
    raise AssertionError("the last attempt returns or raises")


def tails_of(
    manifest: Manifest, version: int, columns: Sequence[str] | None, request: TailRequest
) -> list[pa.Table]:
    """Every daemon's buffered rows beyond a version.

    In log order, in batches that each lie in one partition; in a keyed table with a column ``_op``.
    Unreachable daemons are skipped with the warning ``RowsMissing``, if the request allows it.

    Args:
        columns: None for all, including columns that are newer than the version.

    Raises:
        TailStale: The version is too old.
        TailUnavailable: A daemon does not answer and may not be skipped, or none answers.
        RequestRefused: A daemon writes to another store than the manifest's, or refuses the query.
    """
    from ingester.client.wire import QueryRequest

    generation = None if manifest.table_version == 1 else manifest.table_version
    query = QueryRequest(
        manifest.namespace,
        manifest.table,
        columns,
        scope="buffered",
        version=version,
        table_version=generation,
    ).ticket()
    tails: dict[tuple[str | None, str | None], pa.Table] = {}
    unreachable: list[TailUnavailable] = []
    mark = _mark_of(manifest.store)
    for daemon in request.daemons:
        try:
            tail, snapshot = _tail(daemon, query)
        except TailUnavailable as exc:
            if not (exc.is_unreachable and request.allow_missing):
                raise
            unreachable.append(exc)
            continue
        _check_store(manifest.store, mark, daemon.endpoint, snapshot.store)
        taken = snapshot.taken_version or 0
        if taken > version and len(request.daemons) > 1:
            # Both daemons, or neither, may have returned the moved origin's rows for this version.
            message = f"an origin moved in version {taken}, after version {version}: ask again"
            raise TailStale(daemon.endpoint, message, "stale")
        # Two endpoints may lead to the same daemon.
        tails.setdefault((snapshot.ingester_id, snapshot.incarnation), tail)
    if unreachable and not tails:
        raise unreachable[0]
    if unreachable:
        reasons = "; ".join(map(str, unreachable))
        warnings.warn(RowsMissing([exc.endpoint for exc in unreachable], reasons), stacklevel=4)
    return [*tails.values()]


@contextmanager
def connected(
    endpoint: str | Sequence[str], options: ConnectionOptions | None
) -> Iterator[list[Connection]]:
    """Connections to the daemons that a caller names, as ``ingester.client.Client`` takes them.

    Raises:
        RequestRefused: No daemon is named, or the options do not match it.
        TailUnavailable: A DNS name cannot be looked up.
    """
    from ingester.client.cluster import ClusterConnection, names_several, sole
    from ingester.client.connection import Connection
    from ingester.client.errors import InvalidRequest, Unreachable
    from ingester.client.retry import NEVER

    daemons: ClusterConnection | Connection
    try:
        if names_several(endpoint):
            daemons = ClusterConnection(endpoint, _TIMEOUT_S, NEVER, options)
            each = daemons.each()
        else:
            daemons = Connection(str(sole(endpoint)), _TIMEOUT_S, NEVER, options)
            each = [daemons]
    except InvalidRequest as exc:
        raise RequestRefused(str(exc)) from exc
    except Unreachable as exc:
        raise TailUnavailable(str(endpoint), str(exc)) from exc
    with closing(daemons):
        yield each


def _tail(daemon: Connection, query: bytes) -> tuple[pa.Table, SnapshotInfo]:
    from ingester.client.errors import ClientError, InvalidRequest, Unreachable

    try:
        with daemon.stream(query) as stream:
            schema = stream.schema.remove_metadata()
            return pa.Table.from_batches([rows for rows, _ in stream], schema), stream.snapshot
    except InvalidRequest as exc:
        raise RequestRefused(f"{daemon.endpoint}: {exc}") from exc
    except Unreachable as exc:
        raise TailUnavailable(daemon.endpoint, str(exc)) from exc
    except ClientError as exc:
        kind = TailStale if exc.code == "stale" else TailUnavailable
        raise kind(daemon.endpoint, str(exc), exc.code) from exc


def _mark_of(store: ObjectStore) -> StoreMark | None:
    try:
        return read_mark(store)
    except StoreDenied:
        return None  # this reader may read the table only


def _check_store(
    store: ObjectStore, mark: StoreMark | None, endpoint: str, store_id: str | None
) -> None:
    # An older daemon does not send its store's id.
    if mark is not None and store_id and store_id != mark.id:
        raise RequestRefused(
            f"{endpoint} writes to store {store_id}, but url is {store.url}, which is store"
            f" {mark.id}: set endpoint to daemons of that store, or url to the daemons' store"
        )
