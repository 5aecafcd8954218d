"""A follower: local copies of tables, each kept by a sink in a thread of its own.

    follower = Follower("grpc://127.0.0.1:8082", lambda table: MySink(table))
    follower.follow("sensors", "readings", columns=["host", "v"])
    with follower:                       # starts without waiting for the copies
        follower.wait_current(60.0)      # every copy has caught up
        follower.run()                   # until it is closed or a copy fails

Transient errors (the daemon is unreachable or restarting, the store does not answer) are retried as
long as the follower runs, those of the store for at most ``store_s``, and are shown in the status.
Any other error ends the table's thread; the first one is raised by the methods that wait.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ingester.client import arguments
from ingester.client.connection import Connection
from ingester.client.errors import ClientError, InvalidRequest, NotFound, TimedOut, Unavailable
from ingester.client.retry import NEVER, RetryPolicy, is_retryable
from ingester.client.wire import Filter
from ingester.followers.applying import CopyProgress
from ingester.followers.errors import FollowerError, TableReplaced
from ingester.followers.place import Closed, Closing
from ingester.followers.version_copy import (
    FollowOptions,
    FollowRequest,
    MakeSink,
    Seek,
    VersionCopies,
)
from ingester.followers.versions import FAILURES, FollowedVersions
from persist.backoff import Backoff
from persist.manifest import TableNotFound
from persist.store import StoreError, StoreUnavailable, open_store
from persist.store.option_names import accepts_earlier_name

CLOSE_WITHIN_S = 10.0
"""How long ``close`` waits for a sink to finish its present call."""
_TRANSIENT = frozenset({"stale", "owner", "superseded"})
"""Error codes that a follower retries, besides those that every call retries."""


@dataclass(slots=True)
class CopyStatus:
    """The status of a followed table; any thread may read it.

    Attributes:
        phase: ``opening``, ``filling``, ``catching up``, ``live``, ``waiting`` (for a transient
            ``error`` to pass), ``failed`` or ``closed``.
        coming: The progress of the next version of the table, while there is one.
    """

    namespace: str
    table: str
    phase: str = "opening"
    error: str | None = None
    version: int = 0
    table_version: int = 0
    coming: str | None = None
    progress: CopyProgress = field(default_factory=CopyProgress)


class Follower:
    """Copies of tables of one daemon.

    Args:
        endpoint: The daemon's address, as ``grpc://HOST:PORT``.
        make_sink: Makes the sink of each table, in the table's thread.
        store: URL of the daemon's store; by default the daemon is asked.
        store_options: Options of the store.
    """

    @accepts_earlier_name
    def __init__(
        self,
        endpoint: str,
        make_sink: MakeSink,
        store: str | None = None,
        store_options: Mapping[str, Any] | None = None,
        options: FollowOptions = FollowOptions(),  # noqa: B008 (frozen)
    ) -> None:
        self._endpoint = arguments.endpoint(endpoint, options.connection.scheme)
        self._make_sink = make_sink
        url = None if store is None else arguments.text("store", store)
        self._store = (url, dict(store_options or {}))
        self._options = options
        self._closing = Closing()
        self._requests: list[FollowRequest] = []
        self._threads: list[_FollowThread] = []
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
            columns, filter: The selected part; all by default.
            seek: Where to begin (:data:`ingester.followers.version_copy.Seek`); by default an
                existing copy continues.
            begin: Where a new copy begins if ``seek`` is None.
        """
        if self._threads:
            raise InvalidRequest("the follower has started: add tables before")
        names = arguments.text("namespace", namespace), arguments.text("table", table)
        if any(names == (each.namespace, each.table) for each in self._requests):
            raise InvalidRequest(f"table {namespace}/{table} is named twice")
        columns = arguments.names("columns", columns, "['host', 'v']")
        chosen = None if columns is None else tuple(columns)
        self._requests.append(FollowRequest(*names, chosen, filter, seek, begin))

    def start(self) -> None:
        """Start a thread per table; returns before the copies are complete.

        Raises:
            ClientError: The daemon cannot be asked for its store within ``connect_s``.
        """
        if self._threads or not self._requests:
            raise InvalidRequest("a follower is started once, and follows at least one table")
        store = self._open_store()
        connection = Connection(self._endpoint, 30.0, NEVER, self._options.connection)
        self._connection = connection
        places = connection, store
        hint = _missing_option(store.url, self._store[1])
        self._threads = [
            _FollowThread(
                VersionCopies(each, self._make_sink, places, self._options, self._closing), hint
            )
            for each in self._requests
        ]
        for thread in self._threads:
            thread.start()

    def wait_current(self, timeout_s: float | None = None) -> None:
        """Wait until every copy has had everything that its table had at some moment.

        Raises:
            TimedOut: The time has passed; the copies continue.
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
        """Wait until the follower is closed.

        Raises:
            ClientError: A copy has failed.
        """
        self._closing.wait_for(lambda: self._closing() or self._first_error() is not None)
        self._raise_first()

    def status(self) -> list[CopyStatus]:
        """The status of each table."""
        return [thread.status for thread in self._threads]

    def close(self) -> None:
        """Stop the threads, waiting for sinks to finish their present call.

        The copies stay complete and can be continued.
        """
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


class _FollowThread(threading.Thread):
    """The thread of one table. Its sinks are made, called and closed in it."""

    def __init__(self, copies: VersionCopies, hint: str) -> None:
        request, options = copies.request, copies.options
        super().__init__(name=f"follow {request.namespace}/{request.table}", daemon=True)
        self.status = CopyStatus(request.namespace, request.table)
        self.error: BaseException | None = None
        self._wait_s = options.wait_s
        self._closing = copies.closing
        self._versions = FollowedVersions(copies, options.name)
        self._store_url, self._hint = copies.store.url, hint
        self._store_s = math.inf if options.store_s is None else options.store_s

    def run(self) -> None:
        """Follow until the end, and keep the error if there is one."""
        try:
            self._follow()
        except Closed:
            self.status.phase = "closed"
        except BaseException as exc:
            self.error = exc
            self.status.phase, self.status.error = "failed", str(exc)
        finally:
            try:
                self._versions.close()
            except BaseException as exc:
                self.error = self.error or exc
            self._closing.wake()

    @property
    def settled(self) -> bool:
        """Whether the copy is complete or has failed."""
        return self.status.progress.current_at is not None or not self.is_alive()

    def _follow(self) -> None:
        backoff = Backoff(0.1, 2.0, random.Random())
        unreachable_at: float | None = None
        while True:
            try:
                self._advance()
                backoff, unreachable_at = Backoff(0.1, 2.0, random.Random()), None
            except FAILURES as exc:
                if not _is_transient(exc):
                    raise self._explained(exc) from exc
                error = str(exc)
                if isinstance(exc, StoreUnavailable):
                    error = str(self._explained(exc))
                    unreachable_at = unreachable_at or time.monotonic()
                    if time.monotonic() - unreachable_at >= self._store_s:
                        raise Unavailable(error, code="store") from exc
                self.status.phase, self.status.error = "waiting", error
                self._closing.wait(0.05 + backoff.next_s())

    def _advance(self) -> None:
        versions, status = self._versions, self.status
        copy = versions.open().copy
        if copy.state.filled is not None:
            status.phase = "filling"
        elif not copy.state.complete or copy.progress.current_at is None:
            status.phase = "catching up"
        else:
            status.phase = "live"
        status.progress = copy.progress
        was_settled = copy.progress.current_at is not None
        versions.advance(self._wait_s)
        status.version, status.table_version = copy.state.version, copy.state.table_version
        status.error, status.coming = None, versions.coming_status
        if copy.progress.current_at is not None and not was_settled:
            self._closing.wake()
        if self._closing():
            raise Closed

    def _explained(self, exc: Exception) -> Exception:
        name = f"{self.status.namespace}/{self.status.table}"
        if self._versions.main is not None and isinstance(exc, NotFound | TableNotFound):
            return TableReplaced(f"table {name} was dropped; the copy keeps its last rows")
        if isinstance(exc, ClientError):
            return exc
        hint = self._hint if isinstance(exc, StoreError) else ""
        return FollowerError(f"table {name} cannot be read from {self._store_url}: {exc}{hint}")


def _missing_option(url: str, store_options: Mapping[str, Any]) -> str:
    """What to add to an error of the store: a daemon names its URL, but not its options."""
    if not url.startswith("s3://") or store_options.get("endpoint_url"):
        return ""
    return (
        "; store_options has no endpoint_url: if the daemon has one, give it here too, in"
        " [store_options] of --config FILE, as INGESTER_STORE_OPTIONS__ENDPOINT_URL, or in the"
        " argument store_options"
    )


def _is_transient(exc: BaseException) -> bool:
    if isinstance(exc, ClientError):
        return is_retryable(exc) or exc.code in _TRANSIENT
    return isinstance(exc, StoreUnavailable)
