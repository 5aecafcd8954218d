"""Opens the copy of one table version: from its stored state, the beginning, the tail, or a time.

A state is continued only if it is of this table, this daemon and this history of the table. If only
the selection or the sink's fingerprint differs, the copy is rebuilt beside the earlier one. Each
version has at most one sink, made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from ingester.client.connection import Connection
from ingester.client.credentials import ConnectionOptions
from ingester.client.errors import ClientError, InvalidRequest
from ingester.client.wire import Filter, check_bytes, encode, encode_filter
from ingester.followers.errors import SinkFailed, StateDamaged, StateOfAnother, table_recreated
from ingester.followers.feed import DaemonFeed, InterruptibleFeed
from ingester.followers.files import READERS, FileReading, TableFiles, selected
from ingester.followers.followed_copy import CopySource, FollowedCopy, other_daemon
from ingester.followers.place import Closing, DaemonStates, RebuildNeeded, SinkCalls, SinkPlace
from ingester.followers.sink import FollowedTable, FollowerSink, StateKey
from ingester.followers.state import CopySelection, FollowState, Ledger, decode_state
from persist.manifest import Manifest, MomentNotKept, TableNotFound, TableState, known_versions
from persist.store import ObjectStore
from persist.table import TableDefinition

Seek = Literal["beginning", "tail"] | datetime | bytes
"""Where a copy begins: ``beginning`` copies everything, ``tail`` what arrives from now on, a time
what is in no file of that time, and bytes are a state that was stored elsewhere."""
MakeSink = Callable[[FollowedTable], FollowerSink]
SinkObserver = Callable[[FollowedTable, str, float, BaseException | None], None]
BEYOND = 16
"""The number of version numbers after the last one that are searched for states: a state with such
a number belongs to an earlier table of the same name."""


@dataclass(frozen=True, slots=True)
class FollowRequest:
    """A table to follow and the selected part of it."""

    namespace: str
    table: str
    columns: tuple[str, ...] | None = None
    filter: Filter | None = None
    seek: Seek | None = None
    begin: Seek = "beginning"


def _unobserved(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """How tables are followed.

    Attributes:
        name: The follower's name at the daemon. Required only if the daemon keeps the states.
        wait_s: How long a question to the daemon waits for news.
        readers: The number of files of a table that are read at the same time.
        room: The number of batches read ahead from each file, at least one.
        connect_s: Timeout of the daemon's first answer.
        store_s: How long the store may be unreachable before a copy fails; None: no limit.
        observer: Called after each call of a sink with the table, call, seconds and error.
        connection: TLS trust and the token.
    """

    name: str = ""
    wait_s: float = 2.0
    readers: int = READERS
    room: int = 2
    connect_s: float = 30.0
    store_s: float | None = None
    observer: SinkObserver = _unobserved
    connection: ConnectionOptions = ConnectionOptions()  # noqa: RUF009 (frozen)


@dataclass(frozen=True, slots=True)
class CopyOpening:
    """The result of :func:`open_copy_of`.

    Attributes:
        begin: Where a new copy begins if ``seek`` is None.
        replaces: Readers see the copy of another version of the table.
    """

    table: FollowedTable
    selection: CopySelection
    seek: Seek | None = None
    begin: Seek = "beginning"
    replaces: bool = False


def open_copy_of(opening: CopyOpening, source: CopySource, place: SinkPlace) -> FollowedCopy:
    """The copy, ready to be advanced.

    Raises:
        StateDamaged, StateOfAnother, TableReplaced: The state cannot be continued.
        InvalidRequest: The position to seek to does not exist.
        ClientError, StoreError: The daemon or the store cannot be reached.
    """
    seek, key = opening.seek, opening.table.key(place.name)
    with place.sink.transaction():
        stored = place.states.get(key)
    data = seek if isinstance(seek, bytes) else stored
    kept: tuple[FollowState, Ledger] | None = None
    if data is not None and (seek is None or isinstance(seek, bytes)):
        kept = decode_state(data)
        _check_key(kept[0], key, _OF_STORE if seek is None else "seek to a state of this table")
    now = source.feed.ask(None, None, 0.0)
    if kept is not None:
        state, ledger = kept
        if state.ingester_id != now.ingester_id:
            raise other_daemon(state, now.ingester_id)
        return _continued(opening, source, place, state, ledger)
    new = _new_state(opening, now.ingester_id, replaces=stored is not None or opening.replaces)
    copy = FollowedCopy(opening.table, source, place, new, Ledger())
    start = opening.begin if seek is None else seek
    if start == "beginning" or isinstance(start, bytes):
        copy.begin()
    elif start == "tail":
        copy.begin_behind(source.files.version(now.version), now.position)
    else:
        copy.begin_behind(_as_of(source, start), None)
    return copy


def _continued(
    opening: CopyOpening, source: CopySource, place: SinkPlace, state: FollowState, ledger: Ledger
) -> FollowedCopy:
    copy = FollowedCopy(opening.table, source, place, state, ledger)
    try:
        copy.recover()
    except RebuildNeeded:
        copy.begin(opening.selection)
    else:
        partly_filled = state.filled is not None and not place.sink.transactional
        if partly_filled or state.selection != opening.selection:
            copy.begin(opening.selection)
    return copy


def _new_state(opening: CopyOpening, ingester_id: str, *, replaces: bool) -> FollowState:
    table = opening.table
    return FollowState(
        namespace=table.namespace,
        table=table.table,
        table_version=table.table_version,
        ingester_id=ingester_id,
        selection=opening.selection,
        version=0,
        uid="",
        replaces=replaces,
    )


_OF_STORE = (
    "a checkpoint store keeps one state for each namespace, table, table version and partition of"
    " a key"
)


def _check_key(state: FollowState, key: StateKey, help_: str = _OF_STORE) -> None:
    """Check that a state is the one of this key.

    Raises:
        StateOfAnother: It is another table's, or another version's.
    """
    found = (state.namespace, state.table, state.table_version)
    if found != (key.namespace, key.table, key.table_version):
        raise StateOfAnother(
            f"the state is of table {found[0]}/{found[1]} version {found[2]}, not of"
            f" {key.namespace}/{key.table} version {key.table_version}: {help_}"
        )


def _as_of(source: CopySource, moment: datetime) -> TableState:
    try:
        return source.files.as_of(moment)
    except (MomentNotKept, ValueError) as exc:
        raise InvalidRequest(f"seek: {exc}") from exc


@dataclass(slots=True)
class VersionCopy:
    """An open copy of one version of a table.

    Attributes:
        others: The states of other versions when it was opened.
    """

    table: FollowedTable
    feed: DaemonFeed
    place: SinkPlace
    copy: FollowedCopy
    others: Mapping[int, FollowState | None] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The table version."""
        return self.table.table_version

    @property
    def began_late(self) -> bool:
        """Whether the copy lacks rows from before it began."""
        return self.copy.state.floor is not None

    def forget(self, version: int) -> None:
        """Drop the copy of another version, whose sink is closed, with its state."""
        with self.place.sink.transaction():
            if self.place.sink.keeps_versions:
                self.place.sink.drop_version(version)
            self.place.states.delete(key_of(self.table, version, self.place.name))


class VersionCopies:
    """Opens the copies of one table's versions. One thread."""

    def __init__(
        self,
        request: FollowRequest,
        make_sink: MakeSink,
        places: tuple[Connection, ObjectStore],
        options: FollowOptions,
        closing: Closing,
    ) -> None:
        self.request = request
        self.connection, self.store = places
        self.closing = closing
        self._make_sink = make_sink
        self.options = options
        self._sinks: dict[int, SinkCalls] = {}
        self._sought = False

    def manifest(self, version: int | None = None) -> Manifest:
        """The manifest of a table version, by default of the current one."""
        return Manifest(self.store, self.request.namespace, self.request.table, version)

    def version_at_daemon(self) -> int:
        """The table version from which the daemon answers. Raises ClientError."""
        name = {"namespace": self.request.namespace, "table": self.request.table}
        (described,) = self.connection.act("describe_table", name)
        return int(described.get("table_version", 1))

    def open(self, version: int | None = None, *, is_followed: bool = True) -> VersionCopy:
        """Open the copy of a version, by default of the current one.

        The first copy of the current version honours the requested ``seek``.

        Args:
            is_followed: The version is current; otherwise the copy is prepared for a later switch.

        Raises:
            ClientError, StoreError, ManifestError: The call may be repeated.
        """
        request, options = self.request, self.options
        manifest = self.manifest(version)
        filter_ = None if request.filter is None else encode_filter(request.filter)
        name = (request.namespace, request.table)
        feed = DaemonFeed(self.connection, name, request.columns, filter_)
        table = self._table(manifest, feed)
        reading = FileReading(request.columns, filter_, options.readers, max(1, options.room))
        source = CopySource(TableFiles(manifest, reading), InterruptibleFeed(feed, self.closing))
        place = self._place(table)
        text = None if filter_ is None else encode(filter_).decode()
        selection = CopySelection(place.sink.fingerprint(), request.columns, text)
        seek = request.seek if version is None and not self._sought else None
        others = self._others(table, place, is_sought=seek is not None)
        seen = [state for state in others.values() if state is None or state.complete]
        late = all(state is not None and state.floor is not None for state in seen)
        begin = request.begin if late else "beginning"
        opening = CopyOpening(table, selection, seek, begin, replaces=bool(seen))
        copy = open_copy_of(opening, source, place)
        if seen and copy.state.complete and copy.state.floor is None:
            (copy.show_again if is_followed else copy.begin)()
        self._sought |= version is None
        return VersionCopy(table, feed, place, copy, others)

    def close(self, version: int | None = None) -> None:
        """Close the sink of a version, or all sinks. Raises the last error of a sink."""
        versions = list(self._sinks) if version is None else [version]
        error: BaseException | None = None
        for each in versions:
            sink = self._sinks.pop(each, None)
            try:
                if sink is not None:
                    sink.close()
            except BaseException as exc:
                error = exc
        if error is not None:
            raise error

    def _place(self, table: FollowedTable) -> SinkPlace:
        sink = self._sinks.get(table.table_version)
        if sink is None:
            observer = self.options.observer

            def observed(call: str, seconds: float, error: BaseException | None) -> None:
                observer(table, call, seconds, error)

            sink = SinkCalls(self._made_sink(table), observed, self.closing)
            self._sinks[table.table_version] = sink
        own = sink.own_store()
        states = DaemonStates(self.connection, self.options.name) if own is None else own
        return SinkPlace(sink, states, own is not None, self.options.name)

    def _made_sink(self, table: FollowedTable) -> FollowerSink:
        try:
            sink = self._make_sink(table)
        except ClientError:
            raise
        except Exception as exc:
            raise SinkFailed(f"no sink for {table.namespace}/{table.table}: {exc}") from exc
        if not isinstance(sink, FollowerSink):
            raise InvalidRequest(f"make_sink returned {sink!r}: expected a FollowerSink")
        return sink

    def _table(self, manifest: Manifest, feed: DaemonFeed) -> FollowedTable:
        """The table as it is now. The daemon is asked first whether it exists."""
        request = self.request
        feed.ask(None, None, 0.0)
        try:
            definition = TableDefinition.of_state(manifest.load())
        except TableNotFound as exc:
            raise InvalidRequest(
                f"table {request.namespace}/{request.table} exists at the daemon but not in the"
                f" store {self.store.url}: name the daemon's store"
            ) from exc
        check_columns(definition, request.columns)
        check_bytes(request.filter, lambda: definition.schema)
        feed.table_version = manifest.table_version
        return FollowedTable(
            request.namespace,
            request.table,
            manifest.table_version,
            selected(definition.schema, request.columns),
            definition.primary_key,
            request.columns,
            request.filter,
        )

    def _others(
        self, table: FollowedTable, place: SinkPlace, *, is_sought: bool
    ) -> dict[int, FollowState | None]:
        """The states of other versions; None for an unreadable one.

        Raises:
            TableReplaced: A state is of a version that the table does not have, and no ``seek`` was
                requested.
            StateOfAnother: The store returned the state of another key.
        """
        found: dict[int, FollowState | None] = {}
        known = {table.table_version, *known_versions(self.store, table.namespace, table.table)}
        upto, states = max(known) + BEYOND, place.states
        versions: Iterable[int] = range(1, upto + 1)
        if isinstance(states, DaemonStates):
            # Each question to the daemon reads the store: one listing instead of one per version.
            versions = states.versions(key_of(table, upto, place.name), upto)
        with place.sink.transaction():
            for version in versions:
                key = key_of(table, version, place.name)
                if version == table.table_version or (data := states.get(key)) is None:
                    continue
                try:
                    found[version] = state = decode_state(data)[0]
                except StateDamaged:
                    found[version] = None
                else:
                    _check_key(state, key)
        if not is_sought and (beyond := max(found, default=0)) > max(known):
            raise table_recreated(table.namespace, table.table, beyond)
        return found


def key_of(table: FollowedTable, version: int, name: str) -> StateKey:
    """The key of the state of a version's copy."""
    return StateKey(table.namespace, table.table, version, name)


def check_columns(definition: TableDefinition, columns: tuple[str, ...] | None) -> None:
    """Refuse unknown columns, and a selection without the primary key.

    Raises:
        InvalidRequest: The message names them.
    """
    if columns is None:
        return
    unknown = [name for name in columns if name not in definition.schema.names]
    if unknown or not columns:
        raise InvalidRequest(
            f"columns {unknown or list(columns)}: the table has"
            f" {', '.join(definition.schema.names)}"
        )
    missing = [name for name in definition.primary_key if name not in columns]
    if missing:
        raise InvalidRequest(
            f"columns: the primary key's {', '.join(missing)} must be among them, because rows are"
            " replaced and deleted by it"
        )
