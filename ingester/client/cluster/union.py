"""A query of several daemons: the files of one version, and what each daemon has after it.

    describe at all ──▶ version V, keyed or not
      without a primary key   V's files from one daemon, and the tail of V from each daemon
      with a primary key      the owner's answer, which alone has rows that are in no file;
                              V's files if there is no owner
      of a version            files only, from any daemon

Each daemon's tail has exactly the rows that V's files lack, as a snapshot taken after the call: the
answer has everything acknowledged before it, each row once. An unreachable daemon may have rows
that no other daemon knows: that is an error, or it is reported as missing.

Rows of an origin that moves between two daemons during the query could come from both or from
neither. Both daemons report the version since which they have the origin or omit its rows
(``taken_version``); if that is later than V, all are asked again.

Batches come from the daemons in turn, so that none waits longer than ``query.client_timeout`` while
another is read. A column that one answer lacks is null there.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from ingester.conversion import converted

from .. import lifetime
from ..connection import Connection
from ..errors import ClientError, InvalidRequest, Unavailable, Unreachable
from ..streams import QueryStream, ReadState
from ..wire import Missing, QueryRequest, SnapshotInfo, encode
from .asking import Answers, Asking
from .daemons import different

ATTEMPTS = 6
_TOLD = (
    "ingester_id",
    "incarnation",
    "epoch",
    "store",
    "snapshot_sequence",
    "manifest_version",
    "table_version",
)


class Newest(NamedTuple):
    """The table at the daemon that knows its newest version."""

    version: int
    table_version: int
    keyed: bool
    owner: str | None
    """The id of the daemon that takes a keyed table's writes, or None."""
    endpoint: str | None


class Union:
    """Queries of the daemons of one client. Any thread."""

    def __init__(self, asking: Asking, lacking: str) -> None:
        """``lacking`` is the error's text for what an answer without a daemon would lack."""
        self._asking = asking
        self._lacking = lacking

    def stream(
        self, request: QueryRequest, missing: Missing, within_s: float | None
    ) -> QueryStream:
        """The answer as a stream; each daemon's part within ``within_s``."""
        body = msgspec.json.decode(request.ticket())
        scope = body.get("scope", "all")
        if scope == "version":
            return self._files(request, (), within_s)
        stale = Unavailable("origins kept moving between daemons: try again")
        for _ in range(ATTEMPTS):
            newest, gone = self._newest(request, missing)
            if request.table_version not in (None, newest.table_version):
                return self._files(request, gone, within_s)
            if newest.keyed and scope == "all":
                return self._of_owner(request, newest, missing, gone, within_s)
            try:
                found = self._with_tails(request, newest, missing, gone, within_s)
            except Unavailable as exc:
                if exc.code != "stale":
                    raise
                stale = exc
                continue
            if found is not None:
                return found
        raise stale

    def _newest(self, request: QueryRequest, missing: Missing) -> tuple[Newest, Sequence[str]]:
        body = {"namespace": request.namespace, "table": request.table}

        def described(one: Connection) -> dict[str, Any]:
            return one.act("describe_table", body, once=True)[0]

        answers = self._asking.all_of(described, missing, self._lacking)
        found = max(answers.by_endpoint.values(), key=_place)
        owner = found.get("owner") or {}
        table_version, version = _place(found)
        keyed = bool(found.get("primary_key"))
        told = owner.get("ingester_id"), owner.get("endpoint")
        newest = Newest(version, table_version, keyed, *told)
        return newest, answers.missing

    def _files(
        self, request: QueryRequest, gone: Sequence[str], within_s: float | None
    ) -> QueryStream:
        """The answer of any daemon, which is the same everywhere."""
        return self._asking.any_of(
            (request.namespace, request.table),
            lambda one: one.stream(request.ticket(), within_s),
            besides=gone,
        )

    def _files_of(
        self, newest: Newest, request: QueryRequest, gone: Sequence[str], within_s: float | None
    ) -> QueryStream:
        """The files of the newest known version, from any daemon."""
        fields = {"version": newest.version, "table_version": newest.table_version}
        files = msgspec.structs.replace(request, scope="version", **fields)
        return UnionStream([self._files(files, gone, within_s)], request, gone)

    def _of_owner(
        self,
        request: QueryRequest,
        newest: Newest,
        missing: Missing,
        gone: Sequence[str],
        within_s: float | None,
    ) -> QueryStream:
        """The answer of a keyed table's owner, identified by its id.

        Without an owner, all rows are in the files of the newest version. A daemon's own answer
        would not do: it may not have seen that version yet.

        Raises:
            Unreachable: The client does not know the owner.
        """
        if newest.owner is None:
            return self._files_of(newest, request, gone, within_s)
        opened: list[QueryStream] = []
        ticket = request.ticket()
        try:
            answers = self._asking.all_of(
                lambda one: _noted(opened, one.stream(ticket, within_s)),
                missing,
                self._lacking,
                gone,
            )
            _check_one_store(answers.by_endpoint)
            owners = [s for s in opened if s.snapshot.ingester_id == newest.owner]
            if not owners and not answers.missing:
                raise Unreachable(
                    f"daemon {newest.owner!r} at {newest.endpoint} takes the writes of"
                    f" {request.namespace}/{request.table} and is not among the client's daemons:"
                    " name it as well"
                )
            if not owners:  # it is unreachable
                _close(opened)
                return self._files_of(newest, request, answers.missing, within_s)
            chosen = owners[0]
            _close([stream for stream in opened if stream is not chosen])
            return UnionStream([chosen], request, answers.missing)
        except BaseException:
            _close(opened)
            raise

    def _with_tails(
        self,
        request: QueryRequest,
        newest: Newest,
        missing: Missing,
        gone: Sequence[str],
        within_s: float | None,
    ) -> QueryStream | None:
        """The tails of all daemons and the version's files; None if an origin has moved.

        Daemons in ``gone`` are not asked, because an answer has no timeout by default.
        """
        replace = msgspec.structs.replace
        version = newest.version if request.version is None else request.version
        at = replace(request, version=version, table_version=newest.table_version)
        tail = replace(at, scope="buffered").ticket()
        opened: list[QueryStream] = []
        try:
            tails: Answers[QueryStream] = self._asking.all_of(
                lambda one: _noted(opened, one.stream(tail, within_s)),
                missing,
                self._lacking,
                gone,
            )
            _check_one_store(tails.by_endpoint)
            streams = _of_each_daemon([*tails.by_endpoint.values()])
            taken = [stream.snapshot.taken_version or 0 for stream in streams]
            if max(taken, default=0) > version:
                _close(opened)
                return None
            if request.scope == "all":
                streams.append(self._files(replace(at, scope="version"), tails.missing, within_s))
            return UnionStream(streams, request, tails.missing)
        except BaseException:
            _close(opened)
            raise


def _check_one_store(answers: Mapping[str, QueryStream]) -> None:
    """Raise InvalidRequest if two daemons answer from different stores."""
    said = {endpoint: stream.snapshot.store for endpoint, stream in answers.items()}
    error = different({endpoint: store for endpoint, store in said.items() if store})
    if error is not None:
        raise error


def _of_each_daemon(streams: Sequence[QueryStream]) -> list[QueryStream]:
    """One stream per daemon; a daemon may have two endpoints, for IPv4 and IPv6."""
    found: dict[tuple[str | None, str | None], QueryStream] = {}
    for stream in streams:
        daemon = (stream.snapshot.ingester_id, stream.snapshot.incarnation)
        if found.setdefault(daemon, stream) is not stream:
            stream.close()
    return list(found.values())


def _place(table: dict[str, Any]) -> tuple[int, int]:
    return table.get("table_version") or 1, table.get("manifest_version") or 0


def _noted(opened: list[QueryStream], stream: QueryStream) -> QueryStream:
    opened.append(stream)
    return stream


def _close(streams: Sequence[QueryStream]) -> None:
    for stream in streams:
        stream.close()


class UnionStream(QueryStream):
    """The streams of several daemons as one. Its snapshot has those of its parts."""

    def __init__(
        self, streams: Sequence[QueryStream], request: QueryRequest, missing: Sequence[str]
    ) -> None:
        """``missing`` are the endpoints of daemons that were left out."""
        self._streams = list(streams)
        self._left: int | None = request.limit
        parts = tuple(stream.snapshot for stream in streams)
        self.snapshot = SnapshotInfo(
            manifest_version=parts[-1].manifest_version,
            table_version=parts[-1].table_version,
            store=parts[-1].store,
            missing=tuple(missing),
            parts=parts,
        )
        if len(parts) == 1:
            self.snapshot = _with(parts[0], missing)
        self.schema = _schema([stream.schema for stream in streams], self.snapshot)
        self._turn = itertools.count()
        self._state = ReadState.NEW

    def read_raw(self) -> tuple[pa.RecordBatch, bytes | None] | None:
        """The next batch of one of the daemons, with its undecoded source."""
        if not self._begin_read():
            return None
        try:
            return self._next()
        except ClientError:
            self._end(ReadState.ENDED)
            raise

    def _next(self) -> tuple[pa.RecordBatch, bytes | None] | None:
        while self._streams and self._left != 0:
            stream = self._streams[next(self._turn) % len(self._streams)]
            item = stream.read_raw()
            if item is None:
                self._streams.remove(stream)
                continue
            rows, source = item
            if self._left is not None:
                rows = rows.slice(0, self._left)
                self._left -= rows.num_rows
            return _aligned(rows, self.schema), source
        self._end(ReadState.ENDED)
        return None

    def _end(self, state: ReadState) -> None:
        self._enter(state)
        for stream in self._streams:
            stream.close()
        self._streams = []

    def close(self) -> None:
        """Cancel the rest of the answer."""
        if lifetime.alive():
            self._end(ReadState.CLOSED)


def _with(snapshot: SnapshotInfo, missing: Sequence[str]) -> SnapshotInfo:
    fields = {name: getattr(snapshot, name) for name in snapshot.__struct_fields__}
    return SnapshotInfo(**fields | {"missing": tuple(missing)})


def _schema(schemas: Sequence[pa.Schema], snapshot: SnapshotInfo) -> pa.Schema:
    """All columns of all answers, with the moment of the answer in the metadata."""
    whole = pa.unify_schemas(
        [schema.remove_metadata() for schema in schemas], promote_options="permissive"
    )
    told = {name: str(value) for name in _TOLD if (value := getattr(snapshot, name)) is not None}
    if snapshot.missing:
        told["missing"] = encode(list(snapshot.missing)).decode()
    return whole.with_metadata(told)


def _aligned(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if rows.schema.equals(schema):
        return rows.replace_schema_metadata(schema.metadata)
    columns = [
        _same_values(rows.column(field.name), field)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _same_values(column: pa.Array, field: pa.Field) -> pa.Array:
    """The column in the type that holds those of all answers."""
    try:
        return converted(column, field.type)
    except pa.ArrowException as exc:
        raise InvalidRequest(
            f"column {field.name!r}: one daemon has {column.type}, and together they have"
            f" {field.type}: {exc}; query the daemons one by one"
        ) from exc
