"""A copy of one version of a table, with what it is made from and where it is kept.

Law of this file: of each version there is at most one sink, made once, and the copy is opened from
the state that is kept. What readers see before that is known from the states of other versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ingester.client.connection import Connection
from ingester.client.connection_options import ConnectionOptions
from ingester.client.errors import ClientError, InvalidRequest
from ingester.client.wire import Filter, encode, encode_filter
from ingester.followers.asking import Closing, LeavableFeed
from ingester.followers.daemon_states import DaemonStates
from ingester.followers.errors import SinkFailed, StateDamaged, table_made_anew
from ingester.followers.feed import DaemonFeed
from ingester.followers.files import READERS, Reading, TableFiles, selected
from ingester.followers.guard import Guard
from ingester.followers.keeping import Place
from ingester.followers.opening import Opening, Seek, open_table_copy
from ingester.followers.sink import FollowedTable, FollowerSink, StateKey
from ingester.followers.state import FollowState, Selection, decode_state
from ingester.followers.table_copy import Source, TableCopy
from persist.manifest import Manifest, TableNotFound, known_versions
from persist.store import ObjectStore
from persist.table import TableDefinition

MakeSink = Callable[[FollowedTable], FollowerSink]
Observer = Callable[[FollowedTable, str, float, BaseException | None], None]
BEYOND = 16
"""So many versions behind the last one are looked for: a copy of one is of an earlier table."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A table that is to be followed, and what of it."""

    namespace: str
    table: str
    columns: tuple[str, ...] | None = None
    filter: Filter | None = None
    seek: Seek | None = None
    begin: Seek = "beginning"


def _unobserved(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """How tables are followed.

    Attributes:
        name: Tells followers apart whose states are kept at the daemon, and is needed only there;
            the daemon lists the follower under it.
        wait_s: The time that a question to the daemon waits for news.
        readers: Files that are read at the same time, of each table.
        room: Batches that each file is read ahead by, at least one.
        connect_s: The time that the first answer of the daemon may take to come.
        observer: Is told of each call of a sink: table, call, seconds, error.
        connection: Whom the follower trusts, and by which token it comes in.
    """

    name: str = ""
    wait_s: float = 2.0
    readers: int = READERS
    room: int = 2
    connect_s: float = 30.0
    observer: Observer = _unobserved
    connection: ConnectionOptions = ConnectionOptions()  # noqa: RUF009 (frozen)


@dataclass(slots=True)
class VersionCopy:
    """A copy of one version of a table.

    Attributes:
        others: The states of other versions that there were when it was opened.
    """

    table: FollowedTable
    feed: DaemonFeed
    place: Place
    copy: TableCopy
    others: Mapping[int, FollowState | None] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The version of the table as a whole."""
        return self.table.table_version

    @property
    def began_late(self) -> bool:
        """Whether the copy lacks what there was before it began."""
        return self.copy.state.floor is not None

    def forget(self, version: int) -> None:
        """Drop the copy of another version, whose sink is closed, with its state."""
        with self.place.sink.transaction():
            if self.place.sink.keeps_versions:
                self.place.sink.drop_version(version)
            self.place.states.delete(key_of(self.table, version, self.place.name))


class VersionCopies:
    """Makes the copies of one table's versions. One thread."""

    def __init__(
        self,
        wish: Wish,
        make_sink: MakeSink,
        places: tuple[Connection, ObjectStore],
        options: FollowOptions,
        closing: Closing,
    ) -> None:
        self.wish = wish
        self.connection, self.store = places
        self.closing = closing
        self._make_sink = make_sink
        self.options = options
        self._sinks: dict[int, Guard] = {}
        self._sought = False

    def manifest(self, version: int | None = None) -> Manifest:
        """The manifest of a version; by default of the one that counts."""
        return Manifest(self.store, self.wish.namespace, self.wish.table, version)

    def version_at_daemon(self) -> int:
        """The version that the daemon answers from. Raises ClientError."""
        name = {"namespace": self.wish.namespace, "table": self.wish.table}
        (described,) = self.connection.act("describe_table", name)
        return int(described.get("table_version", 1))

    def open(self, version: int | None = None, *, is_followed: bool = True) -> VersionCopy:
        """Open the copy of a version, by default of the one that counts.

        Args:
            is_followed: Whether it counts; else it is to be prepared.

        Where the follower was told to seek, the first copy of the one that counts does.

        Raises:
            ClientError, StoreError, ManifestError: To be called again where that may pass.
        """
        wish, options = self.wish, self.options
        manifest = self.manifest(version)
        filter_ = None if wish.filter is None else encode_filter(wish.filter)
        feed = DaemonFeed(self.connection, (wish.namespace, wish.table), wish.columns, filter_)
        table = self._table(manifest, feed)
        reading = Reading(wish.columns, filter_, options.readers, max(1, options.room))
        source = Source(TableFiles(manifest, reading), LeavableFeed(feed, self.closing))
        place = self._place(table)
        text = None if filter_ is None else encode(filter_).decode()
        selection = Selection(place.sink.fingerprint(), wish.columns, text)
        seek = wish.seek if version is None and not self._sought else None
        others = self._others(table, place, is_sought=seek is not None)
        seen = [state for state in others.values() if state is None or state.complete]
        late = all(state is not None and state.floor is not None for state in seen)
        opening = Opening(
            table, selection, seek, wish.begin if late else "beginning", replaces=bool(seen)
        )
        copy = open_table_copy(opening, source, place)
        if seen and copy.state.complete and copy.state.floor is None:
            (copy.show_again if is_followed else copy.begin)()
        self._sought |= version is None
        return VersionCopy(table, feed, place, copy, others)

    def close(self, version: int | None = None) -> None:
        """Let a version's sink go, or all of them. Raises what the last one raised."""
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

    def _place(self, table: FollowedTable) -> Place:
        sink = self._sinks.get(table.table_version)
        if sink is None:
            observer = self.options.observer

            def observed(call: str, seconds: float, error: BaseException | None) -> None:
                observer(table, call, seconds, error)

            sink = Guard(self._made_sink(table), observed, self.closing)
            self._sinks[table.table_version] = sink
        own = sink.own_store()
        states = DaemonStates(self.connection, self.options.name) if own is None else own
        return Place(sink, states, own is not None, self.options.name)

    def _made_sink(self, table: FollowedTable) -> FollowerSink:
        try:
            sink = self._make_sink(table)
        except ClientError:
            raise
        except Exception as exc:
            raise SinkFailed(f"no sink for {table.namespace}/{table.table}: {exc}") from exc
        if not isinstance(sink, FollowerSink):
            raise InvalidRequest(f"make_sink gave {sink!r}: expected a FollowerSink")
        return sink

    def _table(self, manifest: Manifest, feed: DaemonFeed) -> FollowedTable:
        """The table as it is now. The daemon is asked first: it knows whether there is one."""
        wish = self.wish
        feed.ask(None, None, 0.0)
        try:
            definition = TableDefinition.of_state(manifest.load())
        except TableNotFound as exc:
            raise InvalidRequest(
                f"the store {self.store.url} has no table {wish.namespace}/{wish.table}, which the"
                " daemon has: name the daemon's store"
            ) from exc
        check_columns(definition, wish.columns)
        feed.table_version = manifest.table_version
        return FollowedTable(
            wish.namespace,
            wish.table,
            manifest.table_version,
            selected(definition.schema, wish.columns),
            definition.primary_key,
            wish.columns,
            wish.filter,
        )

    def _others(
        self, table: FollowedTable, place: Place, *, is_sought: bool
    ) -> dict[int, FollowState | None]:
        """The states of other versions; None for one that cannot be read.

        Raises:
            TableReplaced: There is one of a version that the table has not, and none was sought.
        """
        found: dict[int, FollowState | None] = {}
        known = {table.table_version, *known_versions(self.store, table.namespace, table.table)}
        upto, states = max(known) + BEYOND, place.states
        versions: Iterable[int] = range(1, upto + 1)
        if isinstance(states, DaemonStates):
            # Each question to it is one to the store: not one for each version that there ever was.
            versions = states.versions(key_of(table, upto, place.name), upto)
        with place.sink.transaction():
            for version in versions:
                key = key_of(table, version, place.name)
                if version == table.table_version or (data := states.get(key)) is None:
                    continue
                try:
                    found[version] = decode_state(data)[0]
                except StateDamaged:
                    found[version] = None
        if not is_sought and (beyond := max(found, default=0)) > max(known):
            raise table_made_anew(table.namespace, table.table, beyond)
        return found


def key_of(table: FollowedTable, version: int, name: str) -> StateKey:
    """The key of the state of a version's copy."""
    return StateKey(table.namespace, table.table, version, name)


def check_columns(definition: TableDefinition, columns: tuple[str, ...] | None) -> None:
    """Refuse columns that the table has not, or that leave out the primary key.

    Raises:
        InvalidRequest: It names them.
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
            f"columns: the primary key's {', '.join(missing)} has to be among them, by which rows"
            " are replaced and deleted"
        )
