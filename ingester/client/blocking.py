"""The blocking client: one method per thing the daemon does. Threads may share one client.

A call turns its arguments into a body of the protocol and the daemon's results into values.
:mod:`.connection` makes it: errors are those of :mod:`.errors`, and calls that change nothing, or
the same thing again, are retried under the client's :class:`RetryPolicy`. Writes are retried by
their :class:`Writer`, exactly once; :mod:`.opening` says under which origin.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import pyarrow as pa

from .connection import Connection
from .opening import WhoWrites, Writers
from .reading import QueryStream
from .retry import RetryPolicy
from .splitting import Data
from .sync import SyncStream
from .wire import (
    OriginState,
    Persisted,
    Request,
    TableDescription,
    TableSummary,
    WriteResult,
    encode_schema,
    given,
)
from .writer import Writer

DEFAULT_ENDPOINT = "grpc://127.0.0.1:8082"


class Client:
    """A connection to one daemon. Nothing is sent before the first call.

    Args:
        endpoint: ``grpc://HOST:PORT``, ``grpc+tls://HOST:PORT`` or ``HOST:PORT``.
        timeout_s: how long a call that is not a query may take, and how long the daemon may owe a
            writer an answer.
        retry: for how long to retry what a retry may help; ``retry.NEVER`` for not at all.
    """

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        timeout_s: float = 30.0,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 (frozen)
    ) -> None:
        self._connection = Connection(endpoint, timeout_s, retry)
        self.endpoint = self._connection.endpoint
        self._writers = Writers(self._connection)

    def close(self) -> None:
        """Drop the connection. Open writers and streams end as if it was lost."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------- writing

    def sync(self, namespace: str, origin: str) -> SyncStream:
        """A replication stream of an origin: changes of rows, in transactions."""
        return SyncStream(self._connection, self._connection.retry, namespace, origin)

    def write(
        self,
        namespace: str,
        table: str,
        data: Data,
        *,
        origin: str | None = None,
        first_sequence: int | None = None,
        exactly_once: bool = True,
    ) -> WriteResult:
        """What was acknowledged, once all of it is on disk at the daemon and visible.

        Args:
            data: a Table (chunks over 16 MiB are cut into several operations), a RecordBatch (one
                operation), or an iterable of RecordBatches of one schema. Empty ones are skipped.
            origin, first_sequence, exactly_once: as for :meth:`writer`.

        Raises:
            InvalidRequest: a type clash, a bad name, a batch over the daemon's limit.
            Unavailable: refused until the retry policy gave up.
            Unreachable, TimedOut, UnknownOutcome: some batches may have been applied.
        """
        who = WhoWrites(origin, first_sequence, exactly_once)
        return self._writers.write_all(namespace, table, data, who)

    def delete(
        self,
        namespace: str,
        table: str,
        keys: Data,
        *,
        origin: str | None = None,
        first_sequence: int | None = None,
        exactly_once: bool = True,
    ) -> WriteResult:
        """What was acknowledged, once no query finds a row with one of these keys any more.

        Args:
            keys: the columns of the table's primary key; else as ``data`` of :meth:`write`. Keys
                that the table does not have are fine.
            origin, first_sequence, exactly_once: as for :meth:`writer`.

        Raises:
            NotFound: no such table.
            InvalidRequest: the table has no primary key, or these are not its columns.
            ClientError: as :meth:`write`.
        """
        who = WhoWrites(origin, first_sequence, exactly_once)
        return self._writers.write_all(namespace, table, keys, who, deletes=True)

    def writer(
        self,
        namespace: str,
        table: str,
        schema: pa.Schema,
        *,
        origin: str | None = None,
        first_sequence: int | None = None,
        max_unanswered: int | None = None,
        exactly_once: bool = True,
        keep_until_durable: bool = False,
        deletes: bool = False,
        numbers_rows: bool = False,
    ) -> Writer:
        """A pipelined writer of batches of ``schema``; close it, or use it in ``with``.

        Args:
            origin: who writes. At most one writer at a time per origin and table: a newer one
                ends the older. Without one the client makes one up, unless ``exactly_once`` is
                false: then a lost connection with batches on the way raises UnknownOutcome.
            first_sequence: the first batch's sequence; pass it to repeat what an earlier process
                may have written: batches the daemon has already are answered as duplicates.
                Default: one after the last that the daemon knows of this origin.
            max_unanswered: batches that may wait for their answer (default 512); the daemon's own
                limit is ``flight.max_unanswered``.
            keep_until_durable: hold on to every batch, in memory, until the daemon says that it is
                in object storage (about ``persist.max_age``), and send again what a daemon does not
                have that takes its place, or comes back with an empty disk. Needs an origin.
            deletes: the batches are keys, and their rows are deleted.
            numbers_rows: a batch's sequence is the number of its last row, and ``first_sequence``
                that of the first row. Rows may then come in other batches when they come again,
                if one ends at each of the marks that :meth:`origins` tells of the table.

        Raises:
            ClientError: with an ``origin`` but no ``first_sequence`` the daemon is asked.
        """
        who = WhoWrites(origin, first_sequence, exactly_once, keep_until_durable, numbers_rows)
        return self._writers.open(
            namespace, table, schema, who, max_unanswered=max_unanswered, deletes=deletes
        )

    # ------------------------------------------------------------------------------------- reading

    def query(
        self,
        namespace: str,
        table: str,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # the name that pyarrow.parquet's readers would have it
        limit: int | None = None,
        *,
        scope: str = "all",
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> pa.Table:
        """The rows of one snapshot as a table; everything acknowledged before the call is in it.

        Args:
            columns: which, in this order; default all.
            filter: ``[("host", "=", "h1"), ("v", ">", 3)]``, or a list of such lists of which one
                must hold; :func:`ingester.client.filter_text.parse_filter` makes one from text.
            limit: at most so many rows.
            scope: ``all``, ``version`` (implied by ``version``) or ``buffered``.
            version: a manifest version.
            timeout_s: for the whole answer; default none.

        Raises:
            NotFound: no such table. InvalidRequest: no such column, a bad filter.
            Unavailable: refused for now; ``stale`` names a newer version in ``details``.
        """
        request = Request(namespace, table, columns, filter, limit, scope, version)
        return self._connection.read(request.ticket(), timeout_s)

    def query_stream(
        self,
        namespace: str,
        table: str,
        columns: Sequence[str] | None = None,
        filter: Any = None,
        limit: int | None = None,
        *,
        scope: str = "all",
        version: int | None = None,
    ) -> QueryStream:
        """The same rows as :meth:`query`, batch by batch, in little memory. Use it in ``with``."""
        request = Request(namespace, table, columns, filter, limit, scope, version)
        return self._connection.stream(request.ticket())

    def tables(self) -> list[TableSummary]:
        """All tables, by namespace and name."""
        return self._connection.tables()

    def schema(self, namespace: str, table: str) -> pa.Schema:
        """The table's Arrow schema. Raises NotFound."""
        return self._connection.schema(namespace, table)

    # ------------------------------------------------------------------------------------- actions

    def describe(self, namespace: str, table: str) -> TableDescription:
        """The table's columns, keys, partitions and sizes. Raises NotFound."""
        results = self.action("describe_table", {"namespace": namespace, "table": table})
        return msgspec.convert(results[0], TableDescription)

    def create_table(
        self,
        namespace: str,
        table: str,
        schema: pa.Schema,
        *,
        primary_key: Sequence[str] | None = None,
        partition_by: Sequence[str] | None = None,
        sort_by: Sequence[str] | None = None,
        timestamp_unit: str | None = None,
    ) -> TableDescription:
        """The description of the table, made or found with the same definition.

        Args:
            partition_by: as ``["day(time)", "bucket(16, host)"]``.
            timestamp_unit: ``"us"`` (default) or ``"ns"``.

        Raises:
            InvalidRequest: the table exists with another definition, or this one is not possible.
        """
        body = {
            "namespace": namespace,
            "table": table,
            "schema": encode_schema(schema),
            "primary_key": None if primary_key is None else list(primary_key),
            "partition_by": None if partition_by is None else list(partition_by),
            "sort_by": None if sort_by is None else list(sort_by),
            "timestamp_unit": timestamp_unit,
        }
        return msgspec.convert(self.action("create_table", given(body))[0], TableDescription)

    def persist(
        self, namespace: str | None = None, table: str | None = None, timeout_s: float = 60.0
    ) -> list[Persisted]:
        """Per table, the version in which everything acknowledged before the call is committed.

        Raises:
            TimedOut: not within ``timeout_s``; the work goes on.
        """
        body = given({"namespace": namespace, "table": table, "timeout_s": timeout_s})
        # The daemon keeps the deadline; ours is for a daemon that does not answer at all.
        results = self.action("persist", body, timeout_s=timeout_s + self._connection.timeout_s)
        return msgspec.convert(results, list[Persisted])

    def origins(
        self, origin: str | None = None, table: tuple[str, str] | None = None
    ) -> list[OriginState]:
        """How far each origin has come, or the one named (empty when it is not known).

        Args:
            table: namespace and name; how far the one named has come in it, too.
        """
        return self._connection.origins(origin, table)

    def status(self) -> dict[str, Any]:
        """What ``/api/status`` has."""
        return self.action("status", {})[0]

    def action(
        self, kind: str, body: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> list[dict[str, Any]]:
        """The JSON results of any action of the daemon.

        Raises:
            Unimplemented: the daemon does not have it.
        """
        return self._connection.act(kind, body, timeout_s)
