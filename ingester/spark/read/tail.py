"""Rows that daemons have acknowledged and that a manifest version's files lack.

Asked for one version, each daemon returns exactly its own rows that the version's files lack, so
the version and the answers of all daemons that write the table hold each row once
(``tests/spark/test_tail_racing.py``). A daemon that no longer knows so old a version answers
``stale``; then the version and all answers for it are discarded.

The rows are in the driver's memory, as with ``createDataFrame``. Executors load this module but
call nothing in it, so the client is imported where it is used.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl

from ingester.spark.errors import RequestRefused, RowsMissing, TailStale, TailUnavailable
from persist.manifest import Manifest, TableState
from persist.store import ObjectStore, StoreDenied, StoreMark, read_mark
from persist.table import TableDefinition

if TYPE_CHECKING:
    from ingester.client.connection_options import ConnectionOptions
    from ingester.client.credentials import Credentials

# A version is stale only if loading it took longer than the daemon's query.tail_retain.
ATTEMPTS = 5


class Daemons(NamedTuple):
    """The daemons to ask, and the host name in their certificates if it is not their own."""

    endpoints: Sequence[str]
    hostname: str | None


@dataclass(frozen=True, slots=True)
class TailRequest:
    """Buffered rows that a read asks for.

    Attributes:
        columns: Columns of the answer; None for all.
        filter: The filter of the read, whose columns are needed too.
        allow_missing: Whether unreachable daemons are skipped with a warning.
    """

    daemons: Daemons
    columns: Sequence[str] | None = None
    filter: str | None = None
    connection: ConnectionOptions | None = None
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

    Unreachable daemons are skipped with the warning ``RowsMissing``, if the request allows it.

    Raises:
        TailStale: The version is too old.
        TailUnavailable: A daemon does not answer and may not be skipped, or none answers.
        RequestRefused: A daemon writes to another store than the manifest's.
    """
    tails: dict[bytes, pa.Table] = {}
    unreachable: list[TailUnavailable] = []
    mark = _mark_of(manifest.store)
    for endpoint in request.daemons.endpoints:
        try:
            tail = read_tail(
                endpoint,
                manifest.namespace,
                manifest.table,
                version,
                columns,
                manifest.table_version,
                request.connection,
                request.daemons,
            )
        except TailUnavailable as exc:
            if not (exc.is_unreachable and request.allow_missing):
                raise
            unreachable.append(exc)
            continue
        told: dict[bytes, bytes] = tail.schema.metadata or {}
        _check_store(manifest.store, mark, endpoint, told.get(b"store", b"").decode())
        # Two endpoints may lead to the same daemon.
        daemon = told.get(b"ingester_id", b"") + b" " + told.get(b"incarnation", b"")
        tails.setdefault(daemon, tail.replace_schema_metadata(None))
    if unreachable and not tails:
        raise unreachable[0]
    if unreachable:
        reasons = "; ".join(map(str, unreachable))
        warnings.warn(RowsMissing([exc.endpoint for exc in unreachable], reasons), stacklevel=4)
    return [*tails.values()]


def read_tail(
    endpoint: str,
    namespace: str,
    table: str,
    version: int,
    columns: Sequence[str] | None = None,
    table_version: int = 1,
    connection: ConnectionOptions | None = None,
    among: Daemons | None = None,
) -> pa.Table:
    """The rows that one daemon holds beyond a version, in log order and the table's own types.

    Args:
        endpoint: ``grpc://host:port``, as for a client.
        version: A manifest version of the table's generation ``table_version``.
        columns: None for all, including columns that are newer than the version.
        connection: TLS trust and token.
        among: All daemons that are asked for this version.

    Returns:
        Batches that each lie in one partition; in a keyed table with a column ``_op``. The schema's
        metadata identifies the daemon and its store.

    Raises:
        RequestRefused: ``endpoint`` is invalid, or ``connection`` does not match it.
        TailStale: The version is too old for a tail.
        TailUnavailable: The daemon cannot be reached, or cannot answer now.
        pyarrow.ArrowKeyError, pyarrow.ArrowInvalid: It does not know the table or the version.
    """
    ticket: dict[str, Any] = {
        "namespace": namespace,
        "table": table,
        "scope": "buffered",
        "version": version,
    }
    if table_version != 1:
        ticket["table_version"] = table_version
    if columns is not None:
        ticket["columns"] = list(columns)
    address, credentials = _checked(endpoint, connection)
    tls = credentials.tls_arguments()
    if among is not None and among.hostname is not None and address.startswith("grpc+tls://"):
        tls["override_hostname"] = among.hostname
    with _errors_of(endpoint), fl.connect(address, **tls) as client:
        encoded = fl.Ticket(json.dumps(ticket).encode())
        rows = client.do_get(encoded, credentials.call_options()).read_all()
    taken = int((rows.schema.metadata or {}).get(b"taken_version", 0))
    if taken > version and among is not None and len(among.endpoints) > 1:
        # Both daemons, or neither, may have returned the moved origin's rows for this version.
        message = f"an origin moved in version {taken}, after version {version}: ask again"
        raise TailStale(endpoint, message, "stale")
    return rows


def daemons_of(endpoint: str | Sequence[str], connection: ConnectionOptions | None) -> Daemons:
    """The daemons that a caller names, as ``ingester.client.Client`` takes them.

    Raises:
        RequestRefused: None is named.
        TailUnavailable: A DNS name cannot be looked up.
    """
    from ingester.client import arguments
    from ingester.client.cluster.daemons import addresses_of, names_several, resolved, sole
    from ingester.client.errors import InvalidRequest, Unreachable

    if not names_several(endpoint):
        return Daemons([str(sole(endpoint))], None)
    try:
        addresses = addresses_of(endpoint, arguments.options(connection).scheme)
        if addresses.name is None:
            return Daemons(addresses.endpoints, None)
        return Daemons(resolved(addresses.name), addresses.host)
    except InvalidRequest as exc:
        raise RequestRefused(str(exc)) from exc
    except Unreachable as exc:
        raise TailUnavailable(str(endpoint), str(exc)) from exc


def _mark_of(store: ObjectStore) -> StoreMark | None:
    try:
        return read_mark(store)
    except StoreDenied:
        return None  # this reader may read the table only


def _check_store(store: ObjectStore, mark: StoreMark | None, endpoint: str, store_id: str) -> None:
    # An older daemon does not send its store's id.
    if mark is not None and store_id and store_id != mark.id:
        raise RequestRefused(
            f"{endpoint} writes to store {store_id}, but url is {store.url}, which is store"
            f" {mark.id}: set endpoint to daemons of that store, or url to the daemons' store"
        )


def _checked(endpoint: str, connection: ConnectionOptions | None) -> tuple[str, Credentials]:
    from ingester.client import arguments
    from ingester.client.credentials import Credentials
    from ingester.client.errors import InvalidRequest

    try:
        options = arguments.options(connection)
        address = arguments.endpoint(endpoint, options.scheme)
        credentials = Credentials(address, options)
        credentials.tls_arguments(), credentials.call_options()
        return address, credentials
    except InvalidRequest as exc:
        raise RequestRefused(str(exc)) from exc


@contextmanager
def _errors_of(endpoint: str) -> Iterator[None]:
    try:
        yield
    except (fl.FlightError, OSError) as exc:
        from ingester.client.errors import clean_message

        extra = getattr(exc, "extra_info", None)
        try:
            details = json.loads(extra) if extra else {}
        except ValueError:
            details = {}
        code = details.get("code")
        message = details.get("message") or clean_message(str(exc))
        if code == "stale":
            raise TailStale(endpoint, message, code) from exc
        raise TailUnavailable(endpoint, message, code) from exc
