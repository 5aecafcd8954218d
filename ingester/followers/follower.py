"""Followers: local copies of tables, each kept by a sink.

    follower = Follower("grpc://127.0.0.1:8082", lambda table: MySink(table))
    follower.follow("sensors", "readings", columns=["host", "v"])
    with follower:                       # starts; does not wait for the copies
        follower.wait_current(60.0)      # all copies have all that there was
        follower.run()                   # until it is closed, or a copy fails

Law of this file: ``start`` begins threads and waits for nothing: the copies are recovered there,
each table beside the others. The first error of a table is raised where somebody waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from ingester.client import arguments
from ingester.client.connection import Connection
from ingester.client.errors import InvalidRequest, TimedOut
from ingester.client.retry import NEVER, RetryPolicy
from ingester.client.wire import Filter
from ingester.followers.asking import Closing
from ingester.followers.following import Following, Status
from ingester.followers.opening import Seek
from ingester.followers.version_copy import FollowOptions, MakeSink, VersionCopies, Wish
from persist.store import StoreError, open_store

CLOSE_WITHIN_S = 10.0
"""The time that a sink has to end what it is doing."""


class Follower:
    """Copies of tables of one daemon.

    Args:
        endpoint: The daemon's, as ``grpc://HOST:PORT``.
        make_sink: Makes the sink of each table, in the table's thread.
        store: URL of the daemon's store; by default the daemon is asked for it.
        storage_options: Of the store.
    """

    def __init__(
        self,
        endpoint: str,
        make_sink: MakeSink,
        store: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        options: FollowOptions = FollowOptions(),  # noqa: B008 (frozen)
    ) -> None:
        scheme = options.connection.scheme
        self._endpoint = arguments.endpoint(endpoint, scheme)
        self._make_sink = make_sink
        url = None if store is None else arguments.text("store", store)
        self._store = (url, dict(storage_options or {}))
        self._options = options
        self._closing = Closing()
        self._wishes: list[Wish] = []
        self._threads: list[Following] = []
        self._connection: Connection | None = None

    def follow(
        self,
        namespace: str,
        table: str,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,
        seek: Seek | None = None,
        begin: Seek = "beginning",
    ) -> None:
        """Add a table, before the start.

        Args:
            columns, filter: What of it; all by default.
            seek: Where to begin, see :data:`ingester.followers.opening.Seek`; by default
                where the copy is.
            begin: Where to begin where there is no copy, and no ``seek``.
        """
        if self._threads:
            raise InvalidRequest("the follower has started: name tables before")
        names = arguments.text("namespace", namespace), arguments.text("table", table)
        if any(names == (wish.namespace, wish.table) for wish in self._wishes):
            raise InvalidRequest(f"table {namespace}/{table} is named twice")
        columns = arguments.names("columns", columns, "['host', 'v']")
        chosen = None if columns is None else tuple(columns)
        self._wishes.append(Wish(*names, chosen, filter, seek, begin))

    def start(self) -> None:
        """Begin; the copies come by themselves.

        Raises:
            ClientError: The daemon cannot be asked for its store within ``connect_s``.
        """
        if self._threads or not self._wishes:
            raise InvalidRequest("a follower is started once, and follows at least one table")
        store = self._open_store()
        connection = Connection(self._endpoint, 30.0, NEVER, self._options.connection)
        self._connection = connection
        places = connection, store
        self._threads = [
            Following(VersionCopies(wish, self._make_sink, places, self._options, self._closing))
            for wish in self._wishes
        ]
        for thread in self._threads:
            thread.start()

    def wait_current(self, timeout_s: float | None = None) -> None:
        """Return when every copy has had all that its table had at some moment.

        Raises:
            TimedOut: Not within that time; the copies go on.
            ClientError: A copy has failed.
        """
        if not self._closing.wait_for(self._all_settled, timeout_s):
            waiting = [t.status for t in self._threads if not t.settled]
            raise TimedOut(
                "copies are not complete: "
                + ", ".join(f"{s.namespace}/{s.table} ({s.phase})" for s in waiting)
            )
        self._raise_first()

    def run(self) -> None:
        """Return when the follower is closed.

        Raises:
            ClientError: A copy has failed.
        """
        self._closing.wait_for(lambda: self._closing() or self._first_error() is not None)
        self._raise_first()

    def status(self) -> list[Status]:
        """Where each table stands."""
        return [thread.status for thread in self._threads]

    def close(self) -> None:
        """End; what the copies have is whole. Waits for sinks to end what they are doing."""
        self._closing.close()
        for thread in self._threads:
            thread.join(CLOSE_WITHIN_S)
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_store(self) -> Any:
        url, storage = self._store
        if url is None:
            policy = RetryPolicy(for_s=self._options.connect_s)
            connection = Connection(self._endpoint, 30.0, policy, self._options.connection)
            try:
                url = str(connection.act("status", {})[0]["identity"]["store"])
            finally:
                connection.close()
        try:
            return open_store(url, **storage)
        except (ValueError, StoreError) as exc:
            raise InvalidRequest(f"store: {exc}") from exc

    def _all_settled(self) -> bool:
        return self._first_error() is not None or all(t.settled for t in self._threads)

    def _first_error(self) -> BaseException | None:
        return next((t.error for t in self._threads if t.error is not None), None)

    def _raise_first(self) -> None:
        error = self._first_error()
        if error is not None:
            raise error
