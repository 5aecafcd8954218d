"""The blocking client. Threads may share one.

A method converts its arguments to a body of the protocol and the daemon's results to values.
:mod:`.connection` makes the call and retries idempotent ones under the client's
:class:`RetryPolicy`. A :class:`Writer` repeats writes, exactly once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self, cast

import msgspec
import pyarrow as pa

from . import arguments
from .checkpoints import (
    Checkpoint,
    ListedCheckpoint,
    StoredCheckpoint,
    checked,
    partition_name,
)
from .cluster import ClusterConnection, names_several, sole
from .copying import TableCopy
from .credentials import ConnectionOptions
from .errors import InvalidRequest, Unimplemented, of_older_daemon
from .inputs import Data
from .retry import RetryPolicy
from .route import OneDaemon
from .sql import Parameters, sql_ticket
from .sql_stream import SqlStream, opened
from .streams import QueryStream
from .sync_stream import SyncStream
from .wire import (
    AckLevel,
    Filter,
    Missing,
    OriginState,
    Persisted,
    QueryRequest,
    Scope,
    TableDescription,
    TableSummary,
    TimestampUnit,
    WriteResult,
    check_bytes,
    encode_schema,
    given,
)
from .writer import Calls, WhoWrites, Writer, Writers

DEFAULT_ENDPOINT = "grpc://127.0.0.1:8082"


class Client:
    """A client of one daemon, or of several that write to one store. Connects at the first call.

    Args:
        endpoint: The Flight port, as ``grpc://HOST:PORT``, ``grpc+tls://HOST:PORT`` or
            ``HOST:PORT``. For several daemons: a list, text with commas, or
            ``dns+grpc://NAME:PORT`` for all addresses of a name (:mod:`ingester.client.cluster`).
        timeout_s: Timeout of calls other than queries, and of a writer's answers.
        retry: How long to retry transient errors; ``NEVER`` disables retries.
        options: TLS trust (``tls_ca``), client certificate, and token.

    A client belongs to its process. gRPC does not work on both sides of a fork: in a forked child
    every call raises :class:`Forked`. Start processes with
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
            named = cast(str, sole(endpoint))  # other types are refused there
            self._connection = OneDaemon(named, timeout_s, retry, options)
        self._about = (timeout_s, retry, options)
        self.endpoint = self._connection.endpoint
        self._writers = Writers(self._connection)

    def close(self) -> None:
        """Close the client. Open writers and streams continue until they end."""
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
        """A client for each daemon, for calls that concern one, such as status. Close them all."""
        timeout_s, retry, options = self._about
        return [
            Client(one.endpoint, timeout_s=timeout_s, retry=retry, options=options)
            for one in self._connection.each()
        ]

    # ------------------------------------------------------------------------------------- writing

    def sync(self, namespace: str, origin: str, *, ack: AckLevel | None = None) -> SyncStream:
        """A replication stream of an origin: changes of rows in transactions.

        Args:
            ack: As for :meth:`writer`, for each transaction.
        """
        names = arguments.text("namespace", namespace), arguments.text("origin", origin)
        arguments.ack_level(ack)
        return SyncStream(self._connection.one(*names), self._connection.retry, *names, ack)

    def copy(
        self,
        namespace: str,
        table: str,
        primary_key: Sequence[str],
        copy_id: str | None = None,
        *,
        schema: pa.Schema | None = None,
    ) -> TableCopy:
        """A copy that replaces a whole table atomically; use it in ``with``.

        Args:
            primary_key: The primary key of the new table.
            copy_id: Identifies the copy (1 to 128 bytes); made up by default.
            schema: The columns, if the copy may get no rows. By default those of the first batch.
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
        ack: AckLevel | None = None,
    ) -> WriteResult:
        """Write data; returns once all of it is acknowledged: durable and visible.

        Args:
            data: A RecordBatch is one operation: visible whole or not at all. A reader or iterable
                of RecordBatches makes one operation of each. A Table, a pandas or Polars DataFrame,
                a dict of columns, a list of dicts, or any object with ``__arrow_c_stream__`` or
                ``__arrow_c_array__`` is one operation if it fits 16 MiB, else several. Data without
                rows writes nothing. Integers are converted if the table's type can hold them, and
                times to the table's zone.
            origin, first_sequence, exactly_once, ack: As for :meth:`writer`. With
                ``first_sequence``, data that makes several batches is refused unless the caller
                divided it.

        Raises:
            InvalidRequest: A type clash, a bad name, or a batch over the daemon's limit. Earlier
                operations of the same call may have been applied; the message says how many rows,
                and ``details`` have ``rows`` and ``batches``.
            Unavailable: Refused until the retry policy gave up.
            Unreachable, TimedOut, UnknownOutcome: Some batches may have been applied.
        """
        who = WhoWrites(origin, first_sequence, exactly_once, ack=ack)
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
        ack: AckLevel | None = None,
    ) -> WriteResult:
        """Delete rows by key; returns once no query finds a row with one of these keys.

        Args:
            keys: The columns of the primary key, in a form of :meth:`write`. Unknown keys are fine.
            origin, first_sequence, exactly_once, ack: As for :meth:`writer`.

        Raises:
            NotFound: The table does not exist.
            InvalidRequest: The table has no primary key, or these are not its columns.
            ClientError: As for :meth:`write`.
        """
        who = WhoWrites(origin, first_sequence, exactly_once, ack=ack)
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
        ack: AckLevel | None = None,
    ) -> Writer:
        """A pipelined writer of batches of ``schema``; close it, or use it in ``with``.

        Args:
            origin: Identifies the writer. A newer writer of the same origin and table ends the
                older one. By default the client makes an origin up; with ``exactly_once=False``
                there is none, and a lost connection with unanswered batches raises UnknownOutcome.
            first_sequence: The sequence of the first batch of ``origin``. Pass it to repeat what an
                earlier process may have written; the daemon recognises duplicates. Default: one
                after the daemon's last sequence of this origin.
            max_unanswered: The most unanswered batches (default 512). The daemon's limit is
                ``flight.max_unanswered``.
            keep_until_durable: Keep each batch in memory until the daemon reports it in files
                (about ``persist.max_age``), and send it again if the daemon lost it: after the loss
                of its disk, or if one of several daemons stays unreachable. Needs an origin.
                Closing does not wait for files, but checks that daemons have the rest.
            deletes: The batches are keys whose rows are deleted.
            numbers_rows: A batch's sequence is the number of its last row, and ``first_sequence``
                that of the first row. Repeated rows may then be divided into other batches, if a
                batch ends at each mark that :meth:`origins` reports for the table. After a lost
                connection, the first row that is sent again goes alone.
            ack: When a batch is acknowledged: ``"disk"``, on the daemon's disk; ``"store"``, in
                object storage, so that it survives the loss of the machine. At least the table's
                level, which is the default.

        Raises:
            ClientError: The daemon cannot be asked for the last sequence of ``origin``.
        """
        who = WhoWrites(origin, first_sequence, exactly_once, keep_until_durable, numbers_rows, ack)
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
        """The rows of one snapshot, which has everything acknowledged before the call.

        Args:
            columns: The columns, in this order; all by default.
            filter: Text as for ``ingester query``, ``"host = 'h1' and v > 3"``, or a list of terms,
                ``[("host", "=", "h1"), ("v", ">", 3)]``, or a list of such lists, one of which
                must hold.
            limit: The maximum number of rows.
            scope: ``all``, ``version`` (implied by ``version``) or ``buffered``.
            version: A manifest version.
            table_version: A version of the table, as pushes make them. Versions other than the
                current one have only files.
            timeout_s: Timeout of the whole answer; none by default.
            missing: With several daemons, ``allow`` answers without the buffered rows of
                unreachable ones and lists their endpoints as ``missing`` in the schema's metadata;
                ``error`` raises instead.

        Raises:
            NotFound: The table does not exist.
            InvalidRequest: An unknown column or a bad filter.
            Unavailable: Refused for now; ``stale`` names a newer version in ``details``.
        """
        request = QueryRequest(
            namespace, table, columns, filter, limit, scope, version, table_version
        )
        arguments.one_of("missing", missing, ("error", "allow"))
        check_bytes(filter, lambda: self.schema(namespace, table))
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
        """The same rows as a stream of batches, which is also an Arrow stream. Use ``with``."""
        request = QueryRequest(
            namespace, table, columns, filter, limit, scope, version, table_version
        )
        arguments.one_of("missing", missing, ("error", "allow"))
        check_bytes(filter, lambda: self.schema(namespace, table))
        return self._connection.stream_rows(request, missing)

    def sql(
        self,
        statement: str,
        parameters: Parameters | None = None,
        *,
        namespace: str | None = None,
        timeout_s: float | None = None,
        missing: Missing = "error",
    ) -> pa.Table:
        """The answer to one SQL statement, of one snapshot of all tables that it names.

        Tables are ``namespace.table``, and ``namespace."table@v42"`` in version 42.

        Args:
            parameters: Values of ``?`` and ``$1`` as a list, of ``$name`` as a dict, or of either
                as a RecordBatch of one row. A value that cannot be sent exactly is refused.
            namespace: The namespace of tables that are named without one.
            timeout_s: Timeout of the whole answer; none by default. It is not tried again.
            missing: With several daemons, ``allow`` answers without the buffered rows of daemons
                that are unreachable or not in ``sql.peers``, and lists their endpoints as
                ``missing`` in the schema's metadata.

        Raises:
            InvalidRequest: Invalid SQL, an unknown table or column, or a limit of ``[sql]``; with
                several daemons also a daemon that is not in ``sql.peers`` (``code`` is ``peers``).
            TimedOut: Not within ``timeout_s`` or the daemon's ``sql.max_time``.
            Unavailable: Refused until the retry policy gave up; ``limit`` if all workers are busy.
            Unimplemented: The daemon does not answer SQL; the message says what to install.
        """
        with self.sql_stream(
            statement, parameters, namespace=namespace, timeout_s=timeout_s, missing=missing
        ) as stream:
            return stream.read_all()

    def sql_stream(
        self,
        statement: str,
        parameters: Parameters | None = None,
        *,
        namespace: str | None = None,
        timeout_s: float | None = None,
        missing: Missing = "error",
    ) -> SqlStream:
        """The same answer as a stream of batches, which is also an Arrow stream. Use ``with``."""
        arguments.one_of("missing", missing, ("error", "allow"))
        within_s = None if timeout_s is None else arguments.seconds("timeout_s", timeout_s)
        ticket = sql_ticket(statement, parameters, namespace, missing)
        return opened(
            lambda rest_s: self._connection.sql(ticket, rest_s, missing),
            self._connection.retry,
            within_s,
        )

    def tables(self) -> list[TableSummary]:
        """All tables, by namespace and name.

        If the daemon stops or replaces its certificate during this call, pyarrow may raise a
        KeyboardInterrupt in the main thread.
        """
        return self._connection.tables()

    def schema(self, namespace: str, table: str) -> pa.Schema:
        """The table's Arrow schema. Raises NotFound."""
        return self._connection.schema(
            arguments.text("namespace", namespace), arguments.text("table", table)
        )

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
        publish: Sequence[str] | None = None,
        max_age_s: float | None = None,
        ack: AckLevel | None = None,
    ) -> TableDescription:
        """Create a table unless it exists with the same definition; its description.

        Args:
            partition_by: For example ``["day(time)", "bucket(16, host)"]``.
            timestamp_unit: ``"us"`` (default) or ``"ns"``.
            transformers: Classes at the daemon that transform batches, such as
                ``["acme.rules:Clean"]``.
            publish: The formats that the table is published in, ``["iceberg", "delta"]``; by
                default the daemon's settings decide.
            max_age_s: Age at which the table's rows are flushed, if the daemon's
                ``persist.max_age`` is longer.
            ack: The level of the table's acknowledgements, as for :meth:`writer`; by default that
                of its namespace or the daemon.

        Raises:
            InvalidRequest: The table exists with another definition, or this one is invalid.
        """
        if timestamp_unit is not None:
            arguments.one_of("timestamp_unit", timestamp_unit, ("us", "ns"))
        arguments.ack_level(ack)
        body = {
            "namespace": arguments.text("namespace", namespace),
            "table": arguments.text("table", table),
            "schema": encode_schema(arguments.schema(schema)),
            "primary_key": arguments.names("primary_key", primary_key, "['id']"),
            "partition_by": arguments.names("partition_by", partition_by, "['day(time)']"),
            "sort_by": arguments.names("sort_by", sort_by, "['host']"),
            "timestamp_unit": timestamp_unit,
            "transformers": arguments.names("transformers", transformers, "['acme.rules:Clean']"),
            "publish": arguments.names("publish", publish, "['iceberg']"),
            "max_age_s": None if max_age_s is None else arguments.seconds("max_age_s", max_age_s),
            "ack": ack,
        }
        try:
            made = self.action("create_table", given(body))[0]
        except InvalidRequest as exc:
            raise of_older_daemon(exc, ack) from exc
        return msgspec.convert(made, TableDescription)

    def persist(
        self, namespace: str | None = None, table: str | None = None, timeout_s: float = 60.0
    ) -> list[Persisted]:
        """Flush tables; the version of each in which everything acknowledged before is committed.

        Raises:
            TimedOut: Not within ``timeout_s``; the flush continues.
        """
        body = given({"namespace": namespace, "table": table, "timeout_s": timeout_s})
        # The daemon keeps the deadline; the client's is for a daemon that does not answer.
        results = self.action("persist", body, timeout_s=timeout_s + self._connection.timeout_s)
        return msgspec.convert(results, list[Persisted])

    def origins(
        self, origin: str | None = None, table: tuple[str, str] | None = None
    ) -> list[OriginState]:
        """The progress of each origin, or of one; empty if it is unknown.

        Args:
            table: Namespace and name; adds the origin's progress in this table.
        """
        return self._connection.origins(origin, table)

    def checkpoint(self, namespace: str, table: str, partition: str) -> StoredCheckpoint:
        """The state of a source partition, in the daemon's log and in files.

        Raises:
            NotFound: The table does not exist.
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
        """Store a state without rows; it is in the daemon's log when this returns.

        :meth:`Writer.write` stores a state atomically with rows.

        Args:
            shared: Bytes that many partitions have in common, stored once.

        Raises:
            NotFound: The table does not exist.
            InvalidRequest: The state exceeds a limit.
        """
        put = checked(Checkpoint(partition, state, shared))
        assert put is not None
        fields = msgspec.to_builtins(put)
        return self._checkpoint("put", namespace, table, given(fields))

    def delete_checkpoint(self, namespace: str, table: str, partition: str) -> StoredCheckpoint:
        """Delete the state of a partition, if there is one; what remains."""
        name = partition_name(partition)
        return self._checkpoint("delete", namespace, table, {"partition": name})

    def checkpoints(
        self, namespace: str | None = None, table: str | None = None
    ) -> list[ListedCheckpoint]:
        """All checkpoints, or those of a namespace or table, in order."""
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
        """The daemon's status, as ``/api/status``. Long lists are cut."""
        return self.action("status", {})[0]

    def status_list(self, name: str) -> list[dict[str, Any]]:
        """A complete list of the status: tables, origins, followers, replications or namespaces.

        It is read in pages, in the order of names. Older daemons have no pages and do not cut the
        lists of their status.
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
            Unimplemented: The daemon does not have the action.
        """
        return self._connection.act(kind, body, timeout_s)
