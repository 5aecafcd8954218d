"""The blocking client: one method per thing the daemon does. Threads may share one client.

A call turns its arguments into a body of the protocol and the daemon's results into values.
:mod:`.connection` makes it, and repeats what changes nothing, or the same thing again, under the
client's :class:`RetryPolicy`. Writes are repeated by their :class:`Writer`, exactly once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self, cast

import msgspec
import pyarrow as pa

from . import arguments
from .calls import Calls, Missing, OneDaemon
from .checkpoints.checkpoint import (
    Checkpoint,
    ListedCheckpoint,
    StoredCheckpoint,
    checked,
    partition_name,
)
from .cluster import ClusterConnection, names_several, sole
from .connection_options import ConnectionOptions
from .copying import TableCopy
from .errors import Unimplemented
from .inputs import Data
from .query_stream import QueryStream
from .retry import RetryPolicy
from .sync_stream import SyncStream
from .wire import (
    Filter,
    OriginState,
    Persisted,
    QueryRequest,
    Scope,
    TableDescription,
    TableSummary,
    TimestampUnit,
    WriteResult,
    encode_schema,
    given,
)
from .writer import Writer
from .writers import WhoWrites, Writers

DEFAULT_ENDPOINT = "grpc://127.0.0.1:8082"


class Client:
    """A connection to one daemon, or to all that write to a store. Nothing is sent at first.

    Args:
        endpoint: ``grpc://HOST:PORT``, ``grpc+tls://HOST:PORT`` or ``HOST:PORT``: the Flight port.
            Or those of several daemons: a list, text with commas, or ``dns+grpc://NAME:PORT`` for
            all addresses that a name has (:mod:`ingester.client.cluster`).
        timeout_s: how long a call that is not a query may take, and how long the daemon may owe a
            writer an answer.
        retry: for how long to retry what a retry may help; ``retry.NEVER`` for not at all.
        options: whom the client trusts (``tls_ca``), its own certificate, its token.

    A client belongs to the process that it was made in: gRPC does not work on both sides of a
    fork, so in a child every call raises :class:`Forked`. Start processes with
    ``multiprocessing.get_context("spawn")`` and make a client in each.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        timeout_s: float = 30.0,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 (frozen)
        options: ConnectionOptions | None = None,
    ) -> None:
        self._connection: Calls
        if names_several(endpoint):
            self._connection = ClusterConnection(endpoint, timeout_s, retry, options)
        else:
            named = cast(str, sole(endpoint))  # whatever else it is, is refused there
            self._connection = OneDaemon(named, timeout_s, retry, options)
        self._about = (timeout_s, retry, options)
        self.endpoint = self._connection.endpoint
        self._writers = Writers(self._connection)

    def close(self) -> None:
        """Drop the connection. Open writers and streams go on until it is lost or they end."""
        self._connection.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client belongs to its process: make one in each")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def daemons(self) -> list["Client"]:
        """A client of each daemon, for what is of one: its status, its log. Close them all."""
        timeout_s, retry, options = self._about
        return [
            Client(one.endpoint, timeout_s=timeout_s, retry=retry, options=options)
            for one in self._connection.each()
        ]

    # ------------------------------------------------------------------------------------- writing

    def sync(self, namespace: str, origin: str) -> SyncStream:
        """A replication stream of an origin: changes of rows, in transactions."""
        names = arguments.text("namespace", namespace), arguments.text("origin", origin)
        return SyncStream(self._connection.one(*names), self._connection.retry, *names)

    def copy(
        self,
        namespace: str,
        table: str,
        primary_key: Sequence[str],
        copy_id: str | None = None,
        *,
        schema: pa.Schema | None = None,
    ) -> TableCopy:
        """A copy of a whole table, whose rows become the table at once; use it in ``with``.

        Args:
            primary_key: of the table as the copy makes it.
            copy_id: tells copies of a table apart (1 to 128 bytes); made up by default.
            schema: the columns of a copy that may get no rows. The first batch says them, too.
        """
        key = arguments.names("primary_key", primary_key, "['id']")
        names = arguments.text("namespace", namespace), arguments.text("table", table)
        return TableCopy(self._connection.one(*names), names, key or (), copy_id, schema)

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
        """The result, once all of it is acknowledged: on disk at the daemon, and visible.

        Args:
            data: a RecordBatch, which is one operation: visible whole or not at all; a reader or an
                iterable of RecordBatches of one schema, each of which is one; or a Table, a pandas
                or Polars DataFrame, a dict of columns, a list of dicts, or whatever has
                ``__arrow_c_stream__`` or ``__arrow_c_array__``: one operation if it fits 16 MiB,
                else cut into several of about that size. Without rows nothing is written.
                Integers that the table's type can hold, and times in another zone, are converted.
            origin, first_sequence, exactly_once: as for :meth:`writer`; with ``first_sequence``
                what would be cut is refused.

        Raises:
            InvalidRequest: a type clash, a bad name, a batch over the daemon's limit. Where several
                operations are made, those before it may have been applied: then the message says
                how many rows that are, and ``details`` have ``rows`` and ``batches``.
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
        """The result, once no query finds a row with one of these keys any more.

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
            first_sequence: the first batch's sequence, of an ``origin``; pass it to repeat what an
                earlier process may have written: what the daemon has already is a duplicate.
                Default: one after the last that the daemon knows of this origin.
            max_unanswered: batches that may wait for their answer (default 512); the daemon's own
                limit is ``flight.max_unanswered``.
            keep_until_durable: hold on to every batch, in memory, until the daemon says that it is
                in object storage (about ``persist.max_age``), and send again what is lost with a
                daemon: one that comes back with an empty disk, or of several one that stays away.
                Needs an origin. Closing does not wait for files: it sees that a daemon has what is
                in none.
            deletes: the batches are keys, and their rows are deleted.
            numbers_rows: a batch's sequence is the number of its last row, and ``first_sequence``
                that of the first row. Rows may then come in other batches when they come again,
                if one ends at each of the marks that :meth:`origins` tells of the table. When the
                connection is lost, the first row of what is sent again goes alone.

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
        filter: Filter | None = None,
        limit: int | None = None,
        *,
        scope: Scope = "all",
        version: int | None = None,
        table_version: int | None = None,
        timeout_s: float | None = None,
        missing: Missing = "error",
    ) -> pa.Table:
        """The rows of one snapshot as a table; everything acknowledged before the call is in it.

        Args:
            columns: which, in this order; default all.
            filter: ``[("host", "=", "h1"), ("v", ">", 3)]``, or a list of such lists of which one
                must hold; :func:`ingester.client.filter_parser.parse_filter` makes one from text.
            limit: at most so many rows.
            scope: ``all``, ``version`` (implied by ``version``) or ``buffered``.
            version: a manifest version.
            table_version: of the table as a whole, as pushes make them; another than the one that
                counts has its files alone.
            timeout_s: for the whole answer; default none.
            missing: of several daemons, ``allow`` answers without the buffered rows of those that
                are away, and names their endpoints as ``missing`` in the schema's metadata; with
                ``error`` there is no such answer.

        Raises:
            NotFound: no such table. InvalidRequest: no such column, a bad filter.
            Unavailable: refused for now; ``stale`` names a newer version in ``details``.
        """
        request = QueryRequest(
            namespace, table, columns, filter, limit, scope, version, table_version
        )
        arguments.one_of("missing", missing, ("error", "allow"))
        return self._connection.rows(request, timeout_s, missing)

    def query_stream(
        self,
        namespace: str,
        table: str,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,
        limit: int | None = None,
        *,
        scope: Scope = "all",
        version: int | None = None,
        table_version: int | None = None,
        missing: Missing = "error",
    ) -> QueryStream:
        """The same rows, batch by batch, in little memory; an Arrow stream, too. Use ``with``."""
        request = QueryRequest(
            namespace, table, columns, filter, limit, scope, version, table_version
        )
        arguments.one_of("missing", missing, ("error", "allow"))
        return self._connection.stream_rows(request, missing)

    def tables(self) -> list[TableSummary]:
        """All tables, by namespace and name.

        If the daemon stops or replaces its certificate during this call, pyarrow may raise a
        KeyboardInterrupt in the main thread.
        """
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
        timestamp_unit: TimestampUnit | None = None,
        transformers: Sequence[str] | None = None,
    ) -> TableDescription:
        """The description of the table, made or found with the same definition.

        Args:
            partition_by: as ``["day(time)", "bucket(16, host)"]``.
            timestamp_unit: ``"us"`` (default) or ``"ns"``.
            transformers: the daemon's classes that batches go through, as ``["acme.rules:Clean"]``.

        Raises:
            InvalidRequest: the table exists with another definition, or this one is not possible.
        """
        if timestamp_unit is not None:
            arguments.one_of("timestamp_unit", timestamp_unit, ("us", "ns"))
        body = {
            "namespace": arguments.text("namespace", namespace),
            "table": arguments.text("table", table),
            "schema": encode_schema(arguments.schema(schema)),
            "primary_key": arguments.names("primary_key", primary_key, "['id']"),
            "partition_by": arguments.names("partition_by", partition_by, "['day(time)']"),
            "sort_by": arguments.names("sort_by", sort_by, "['host']"),
            "timestamp_unit": timestamp_unit,
            "transformers": arguments.names("transformers", transformers, "['acme.rules:Clean']"),
        }
        return msgspec.convert(self.action("create_table", given(body))[0], TableDescription)

    def persist(
        self, namespace: str | None = None, table: str | None = None, timeout_s: float = 60.0
    ) -> list[Persisted]:
        """The version of each table in which everything acknowledged before is committed.

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
        """The progress of each origin, or of the one named (empty when it is not known).

        Args:
            table: namespace and name; how far the one named has come in it, too.
        """
        return self._connection.origins(origin, table)

    def checkpoint(self, namespace: str, table: str, partition: str) -> StoredCheckpoint:
        """The state of a source partition: what the daemon's log has, and what is in files.

        Without a state where none was put. Raises NotFound: no such table.
        """
        return self._checkpoint("get", namespace, table, {"partition": partition_name(partition)})

    def put_checkpoint(
        self,
        namespace: str,
        table: str,
        partition: str,
        state: bytes,
        shared: bytes | None = None,
    ) -> StoredCheckpoint:
        """The stored state, put without rows: it is in the daemon's log when this returns.

        With rows it goes by :meth:`Writer.write`, whose stream keeps an order of its own.

        Args:
            shared: bytes that many partitions have in common, stored once.

        Raises:
            NotFound: no such table. InvalidRequest: beyond the limits.
        """
        put = checked(Checkpoint(partition, state, shared))
        assert put is not None
        fields = msgspec.to_builtins(put)
        return self._checkpoint("put", namespace, table, given(fields))

    def delete_checkpoint(self, namespace: str, table: str, partition: str) -> StoredCheckpoint:
        """What is left: a partition without a state. One that is not there is fine."""
        name = partition_name(partition)
        return self._checkpoint("delete", namespace, table, {"partition": name})

    def checkpoints(
        self, namespace: str | None = None, table: str | None = None
    ) -> list[ListedCheckpoint]:
        """All checkpoints, or those of a namespace or a table, by these and their partition."""
        results = self.action("checkpoints", given({"namespace": namespace, "table": table}))
        listed = msgspec.convert(results, list[ListedCheckpoint])
        return sorted(listed, key=lambda each: (each.namespace, each.table, each.partition))

    def _checkpoint(
        self, what: str, namespace: str, table: str, fields: Mapping[str, Any]
    ) -> StoredCheckpoint:
        names = {
            "namespace": arguments.text("namespace", namespace),
            "table": arguments.text("table", table),
        }
        (result,) = self.action(f"checkpoint_{what}", {**names, **fields})
        return msgspec.convert(result, StoredCheckpoint)

    def status(self) -> dict[str, Any]:
        """The daemon's status, as ``/api/status`` has it: of long lists it has the top."""
        return self.action("status", {})[0]

    def status_list(self, name: str) -> list[dict[str, Any]]:
        """All of one of the status's lists: tables, origins, followers, replications
        or namespaces.

        They come by pages, in the order of their names. Of a daemon that has no pages yet they are
        those of its status, which is not cut there.
        """
        found: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None:
            try:
                (page,) = self.action("status_list", {"list": name, "after": after})
            except Unimplemented:
                return list(self.status().get(name, []))
            found.extend(page["items"])
            after = page["next"]
        return found

    def action(
        self, kind: str, body: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> list[dict[str, Any]]:
        """The JSON results of any action of the daemon.

        Raises:
            Unimplemented: the daemon does not have it.
        """
        return self._connection.act(kind, body, timeout_s)
