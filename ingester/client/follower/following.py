"""One table that is followed, in a thread: opened, advanced for ever, opened again after errors.

Law of this file: what passes by itself (a daemon that is away or starts anew, a store that does not
answer) is tried again for as long as the follower is there, and told in the status; anything else
ends the table, with the error. The sink is made, called and closed in this thread alone.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ingester.client.checkpoints import CheckpointStore, DaemonCheckpointStore
from ingester.client.connection import Connection
from ingester.client.errors import ClientError, InvalidRequest, NotFound
from ingester.client.follower.asking import Closing, LeavableFeed
from ingester.client.follower.errors import FollowerError, SinkFailed, TableReplaced
from ingester.client.follower.feed import DaemonFeed
from ingester.client.follower.files import READERS, Reading, TableFiles, selected
from ingester.client.follower.guard import Closed, Guard
from ingester.client.follower.keeping import Place
from ingester.client.follower.opening import Opening, Seek, open_table_copy
from ingester.client.follower.progress import Progress
from ingester.client.follower.sink import FollowedTable, FollowerSink
from ingester.client.follower.state import Selection
from ingester.client.follower.table_copy import Source, TableCopy
from ingester.client.retry import is_retryable
from ingester.client.wire import Filter, encode, encode_filter
from persist.backoff import Backoff
from persist.manifest import Manifest, ManifestError, TableNotFound
from persist.parquet.footer import FileDamaged
from persist.store import ObjectStore, StoreError, StoreUnavailable
from persist.table import TableDefinition

MakeSink = Callable[[FollowedTable], FollowerSink]
Observer = Callable[[FollowedTable, str, float, BaseException | None], None]
STATES = "follower/"
"""The beginning of a state's name at the daemon, where sources keep theirs, too."""
LATER_STATES = "follower-v{}/"
"""The same for a table version after the first. A switch takes all states along, those of the
version that is left, too."""
_PASSING = frozenset({"stale", "owner", "superseded"})
"""Codes of refusals that pass, beside those that any call is repeated after."""


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
        name: Tells followers apart whose states are kept at the daemon; needed only there.
        wait_s: The time that a question to the daemon waits for news.
        readers: Files that are read at the same time, of each table.
        room: Batches that each file is read ahead by, at least one.
        connect_s: The time that the first answer of the daemon may take to come.
        observer: Is told of each call of a sink: table, call, seconds, error.
    """

    name: str = ""
    wait_s: float = 2.0
    readers: int = READERS
    room: int = 2
    connect_s: float = 30.0
    observer: Observer = _unobserved


@dataclass(slots=True)
class Status:
    """Where a followed table stands; read by any thread.

    Attributes:
        phase: ``opening``, ``filling``, ``catching up``, ``live``, ``waiting`` (for what passes by
            itself: ``error`` says what), ``failed`` or ``closed``.
    """

    namespace: str
    table: str
    phase: str = "opening"
    error: str | None = None
    version: int = 0
    progress: Progress = field(default_factory=Progress)


class Following(threading.Thread):
    """The thread of one table."""

    def __init__(
        self,
        wish: Wish,
        make_sink: MakeSink,
        places: tuple[Connection, ObjectStore],
        options: FollowOptions,
        closing: Closing,
    ) -> None:
        super().__init__(name=f"follow {wish.namespace}/{wish.table}", daemon=True)
        self.status = Status(wish.namespace, wish.table)
        self.error: BaseException | None = None
        self._wish = wish
        self._make_sink = make_sink
        self._connection, self._store = places
        self._options = options
        self._closing = closing
        self._sink: Guard | None = None

    def run(self) -> None:
        """Follow until the end. The error, if there is one, is kept."""
        try:
            self._follow()
        except Closed:
            self.status.phase = "closed"
        except BaseException as exc:
            self.error = exc
            self.status.phase, self.status.error = "failed", str(exc)
        finally:
            try:
                if self._sink is not None:
                    self._sink.close()
            except BaseException as exc:
                self.error = self.error or exc
            self._closing.wake()

    @property
    def settled(self) -> bool:
        """Whether the copy is complete, or has failed."""
        return self.status.progress.current_at is not None or not self.is_alive()

    def _follow(self) -> None:
        copy: TableCopy | None = None
        backoff = Backoff(0.1, 2.0, random.Random())
        while True:
            try:
                if copy is None:
                    copy = self._open()
                self._advance(copy)
                backoff = Backoff(0.1, 2.0, random.Random())
            except (ClientError, StoreError, ManifestError, FileDamaged) as exc:
                if not _passes(exc):
                    raise self._meant(exc, copy) from exc
                self.status.phase, self.status.error = "waiting", str(exc)
                self._closing.wait(0.05 + backoff.next_s())

    def _advance(self, copy: TableCopy) -> None:
        if copy.state.filled is not None:
            self.status.phase = "filling"
        elif not copy.state.complete or copy.progress.current_at is None:
            self.status.phase = "catching up"
        else:
            self.status.phase = "live"
        was_settled = copy.progress.current_at is not None
        copy.advance(self._options.wait_s)
        self.status.progress, self.status.version = copy.progress, copy.state.version
        self.status.error = None
        if copy.progress.current_at is not None and not was_settled:
            self._closing.wake()
        if self._closing():
            raise Closed

    def _open(self) -> TableCopy:
        wish, options = self._wish, self._options
        manifest = Manifest(self._store, wish.namespace, wish.table)
        filter_ = None if wish.filter is None else encode_filter(wish.filter)
        name = (wish.namespace, wish.table)
        feed = DaemonFeed(self._connection, name, wish.columns, filter_)
        table = self._table(manifest, feed, filter_)
        reading = Reading(wish.columns, filter_, options.readers, max(1, options.room))
        source = Source(TableFiles(manifest, reading), LeavableFeed(feed, self._closing))
        if self._sink is None:
            self._sink = Guard(self._made_sink(table), self._observed(table), self._closing)
        own = self._sink.own_store()
        states = self._states_at_daemon(table) if own is None else own
        place = Place(self._sink, states, own is not None, options.name)
        text = None if filter_ is None else encode(filter_).decode()
        selection = Selection(self._sink.fingerprint(), wish.columns, text)
        return open_table_copy(Opening(table, selection, wish.seek, wish.begin), source, place)

    def _states_at_daemon(self, table: FollowedTable) -> CheckpointStore:
        if not self._options.name:
            raise InvalidRequest(
                "a follower whose states are kept at the daemon needs a name, as name='reports':"
                " it tells its states from those of others"
            )
        version = table.table_version
        prefix = STATES if version == 1 else LATER_STATES.format(version)
        return DaemonCheckpointStore(self._connection.act, prefix)

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

    def _table(self, manifest: Manifest, feed: DaemonFeed, filter_: Any) -> FollowedTable:
        """The table as it is now. The daemon is asked first: it knows whether there is one."""
        wish = self._wish
        feed.ask(None, None, 0.0)
        try:
            definition = TableDefinition.of_state(manifest.load())
        except TableNotFound as exc:
            raise InvalidRequest(
                f"the store {self._store.url} has no table {wish.namespace}/{wish.table}, which the"
                " daemon has: name the daemon's store"
            ) from exc
        check_columns(definition, wish.columns)
        feed.table_version = manifest.table_version
        return FollowedTable(
            wish.namespace,
            wish.table,
            int(manifest.root.rpartition("/v")[2]),
            selected(definition.schema, wish.columns),
            definition.primary_key,
            wish.columns,
            wish.filter,
        )

    def _observed(self, table: FollowedTable) -> Callable[[str, float, BaseException | None], None]:
        observer = self._options.observer
        return lambda call, seconds, error: observer(table, call, seconds, error)

    def _meant(self, exc: Exception, copy: TableCopy | None) -> Exception:
        """The error as a user is told it."""
        name = f"{self._wish.namespace}/{self._wish.table}"
        if copy is not None and isinstance(exc, NotFound | TableNotFound):
            return TableReplaced(f"table {name} was dropped; the copy has what it had at the last")
        if isinstance(exc, ClientError):
            return exc
        return FollowerError(f"table {name} cannot be read from {self._store.url}: {exc}")


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


def _passes(exc: BaseException) -> bool:
    if isinstance(exc, ClientError):
        return is_retryable(exc) or exc.code in _PASSING
    return isinstance(exc, StoreUnavailable)
