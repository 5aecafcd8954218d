"""The rows that a daemon has acknowledged and that a manifest version's files lack.

Law of this file: asked for one version V, each daemon gives exactly what V's files lack of its own
rows, so V and the answers of all daemons that write the table hold each row once. A daemon that
has forgotten so old a V says ``stale``; then V, and every answer for it, is of no use.

The rows are in the driver's memory, like any that ``createDataFrame`` is given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl

from ingester.spark.errors import RequestRefused, TailStale, TailUnavailable

if TYPE_CHECKING:
    from ingester.client.connection_options import ConnectionOptions
    from ingester.client.credentials import Credentials


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
    """The rows that the daemon holds beyond a version, in log order and its own types.

    Args:
        endpoint: ``grpc://host:port``, as a client of the daemon is told it.
        version: Of the manifest of ``table_version``, which the table has to be at.
        columns: Of the table; None for all, also those that are newer than the version.
        connection: Whom to trust, and by which token to come in.
        among: All daemons that are asked for this version.

    Returns:
        Batches that each lie in one partition; in a keyed table with a column ``_op``. The schema's
        metadata says whose they are.

    Raises:
        RequestRefused: ``endpoint`` is none, or ``connection`` does not go with it.
        TailStale: The version is too old for a tail.
        TailUnavailable: The daemon cannot be reached, or cannot answer now.
        pyarrow.ArrowKeyError, pyarrow.ArrowInvalid: It knows no such table or version.
    """
    question: dict[str, Any] = {
        "namespace": namespace,
        "table": table,
        "scope": "buffered",
        "version": version,
    }
    if table_version != 1:
        question["table_version"] = table_version
    if columns is not None:
        question["columns"] = list(columns)
    address, credentials = _checked(endpoint, connection)
    tls = credentials.tls_arguments()
    if among is not None and among.hostname is not None and address.startswith("grpc+tls://"):
        tls["override_hostname"] = among.hostname
    with _refusals(endpoint), fl.connect(address, **tls) as client:
        ticket = fl.Ticket(json.dumps(question).encode())
        reader = client.do_get(ticket, credentials.call_options())
        rows = reader.read_all()
    taken = int((rows.schema.metadata or {}).get(b"taken_version", 0))
    if taken > version and among is not None and len(among.endpoints) > 1:
        # The other daemon may have told the same rows for this version, or neither of them.
        message = f"an origin moved in version {taken}, after version {version}: ask again"
        raise TailStale(endpoint, message, "stale")
    return rows


def daemon_of(tail: pa.Table) -> bytes:
    """What tells the daemon that has sent a tail from all others: some have two endpoints."""
    told: dict[bytes, bytes] = tail.schema.metadata or {}
    return told.get(b"ingester_id", b"") + b" " + told.get(b"incarnation", b"")


def store_of(tail: pa.Table) -> str:
    """The id of the store that a tail is of; empty where a daemon of before does not say."""
    told: dict[bytes, bytes] = tail.schema.metadata or {}
    return told.get(b"store", b"").decode()


class Daemons(NamedTuple):
    """The daemons to ask, and the name that their certificates have, if not their own."""

    endpoints: Sequence[str]
    hostname: str | None


def daemons_of(endpoint: str | Sequence[str], connection: ConnectionOptions | None) -> Daemons:
    """The daemons that a caller names, as ``ingester.client.Client`` takes them.

    Raises:
        RequestRefused: None is named.
        TailUnavailable: A DNS name cannot be looked up.
    """
    from ingester.client import arguments
    from ingester.client.cluster.addresses import addresses_of, names_several, resolved, sole
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


def _checked(endpoint: str, connection: ConnectionOptions | None) -> tuple[str, Credentials]:
    # Not on top: executors load this module, and have nothing to do with a daemon.
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
def _refusals(endpoint: str) -> Iterator[None]:
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
