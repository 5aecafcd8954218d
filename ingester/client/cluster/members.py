"""The daemons of a client, each with its connection and its health.

A DNS name is looked up every ``LOOK_UP_S``, and sooner after a daemon became unreachable. New
daemons get streams immediately; those without a record get no new ones. Unreachable daemons are
asked in a separate thread, as their circuits allow, until they answer; no caller waits for that.
"""

import contextlib
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from .. import lifetime
from ..connection import Connection
from ..errors import (
    GOING_CODES,
    ClientError,
    Forbidden,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Unreachable,
)
from .daemons import Addresses, Health, Lookup, Stores, ranked, resolved

LOOK_UP_S = 30.0
LOOK_UP_AGAIN_S = 2.0
"""The interval of look-ups after a daemon became unreachable."""
ASK_S = 2.0
"""Timeout of health checks and of the question for a daemon's store."""
AT_ONCE = 32
"""The number of daemons that are asked at the same time."""

Connect = Callable[[str], Connection]


class Members:
    """The daemons of one client. Any thread."""

    def __init__(
        self, addresses: Addresses, connect: Connect, lookup: Lookup | None = None
    ) -> None:
        """``connect`` makes a connection without sending anything."""
        self._addresses = addresses
        self._connect = connect
        self._lookup = lookup
        self._lock = threading.Lock()
        self.closed = threading.Event()
        self._health = Health()
        self._stores = Stores()
        self._asking_stores = threading.Lock()
        self._connections: dict[str, Connection] = {}
        self._endpoints: tuple[str, ...] = ()
        self._looked_at = float("-inf")
        self._watching = False
        self.changes = 0
        """Incremented when a daemon is added, removed, lost or back, so that routes check again."""
        if addresses.name is None:
            self._take(addresses.endpoints)

    def close(self) -> None:
        """Drop all connections."""
        self.closed.set()
        with self._lock:
            connections = list(self._connections.values())
        for connection in connections:
            connection.close()

    def endpoints(self) -> Sequence[str]:
        """The endpoints of all daemons.

        Raises:
            Unreachable: The DNS name was never resolved and cannot be resolved now.
        """
        if self._addresses.name is not None:
            self._look_up(self._addresses.name)
        return self._endpoints

    def connection(self, endpoint: str) -> Connection:
        """The connection to a daemon of the client, or to one that a refusal named."""
        with self._lock:
            found = self._connections.get(endpoint)
            if found is None:
                found = self._connections[endpoint] = self._connect(endpoint)
            return found

    def known_as(self, endpoint: str) -> str:
        """The endpoint for an address that a daemon reported; it may be unknown to the client.

        TLS is used if the client's own endpoints use it.

        Raises:
            InvalidRequest: It is not an address, or the options do not fit it.
        """
        with self._lock:
            if endpoint in self._connections:
                return endpoint
            ours = next(iter(self._connections), "")
        if ours.startswith("grpc+tls://"):
            endpoint = f"grpc+tls://{endpoint.partition('://')[2]}"
        self.connection(endpoint)
        return endpoint

    def order(self, key: Sequence[str], first: str | None = None) -> list[str]:
        """All endpoints in the order to try them for a key.

        Args:
            first: The endpoint of the owner, tried before all others.

        Raises:
            InvalidRequest: As for :meth:`of_one_store`.
        """
        self.of_one_store()
        return self.order_known(key, first)

    def of_one_store(self) -> Sequence[str]:
        """The endpoints of all daemons, after checking that they write to one store.

        A daemon is asked for its store at its first use, and again after it was unreachable.

        Raises:
            InvalidRequest: Two of them write to different stores.
            Unreachable: As for :meth:`endpoints`.
        """
        endpoints = self.endpoints()
        if len(endpoints) > 1:
            with self._asking_stores:
                self._ask_stores(endpoints)
                with self._lock:
                    if self._stores.differ(endpoints) is not None:
                        for each in endpoints:
                            self._stores.was_unreachable(each)  # all may have changed
                self._ask_stores(endpoints)
                with self._lock:
                    error = self._stores.differ(endpoints)
            if error is not None:
                raise error
        return endpoints

    def _ask_stores(self, endpoints: Sequence[str]) -> None:
        with self._lock:
            due = self._stores.due(endpoints, time.monotonic())
            asked = [each for each in due if self._health.usable(each)]
        if asked:
            with ThreadPoolExecutor(min(AT_ONCE, len(asked)), "ingester-asking") as pool:
                list(pool.map(self._ask_store, asked))

    def _ask_store(self, endpoint: str) -> None:
        try:
            self._learn_store(endpoint, ASK_S)
        except ClientError as exc:
            if isinstance(exc, Unreachable):
                self.failed(endpoint, exc)
            with self._lock:
                self._stores.silent(endpoint, time.monotonic())

    def _learn_store(self, endpoint: str, within_s: float | None = None) -> None:
        store: str | None = None
        try:
            found = self.connection(endpoint).act("store", {}, within_s, once=True)
            store = found[0].get("store") if found else None
        except Unimplemented:
            pass  # an older daemon
        except (Forbidden, Unauthenticated):
            return  # the call itself will raise it
        with self._lock:
            self._stores.reported(endpoint, store)

    def checked(self, endpoint: str) -> Connection:
        """The connection to a daemon whose store is known or has been asked for.

        Raises:
            InvalidRequest: As for :meth:`of_one_store`.
            ClientError: The daemon does not answer.
        """
        endpoints = (*self._endpoints, endpoint)
        if len(set(endpoints)) > 1:
            with self._lock:
                known = self._stores.knows(endpoint)
            if not known:
                self._learn_store(endpoint)
            with self._lock:
                error = self._stores.differ(endpoints)
            if error is not None:
                raise error
        return self.connection(endpoint)

    def usable(self, endpoint: str) -> bool:
        """Whether a daemon's circuit is closed."""
        with self._lock:
            return self._health.usable(endpoint)

    def error(self, endpoint: str) -> ClientError | None:
        """The last error of an unreachable daemon, or None."""
        with self._lock:
            return self._health.error(endpoint)

    def answered(self, endpoint: str) -> None:
        """Record that a daemon works."""
        with self._lock:
            if not self._health.usable(endpoint):
                self._health.answered(endpoint)
                self._stores.was_unreachable(endpoint)
                self.changes += 1

    def failed(self, endpoint: str, error: ClientError) -> None:
        """Record that a daemon is unreachable; it is checked in the background."""
        with self._lock:
            was_usable = self._health.usable(endpoint)
            self._health.failed(endpoint, error, time.monotonic(), random.random())
            self.changes += was_usable
            if was_usable:
                soon = time.monotonic() - LOOK_UP_S + LOOK_UP_AGAIN_S
                self._looked_at = min(self._looked_at, soon)
        self.watch()

    def watch(self) -> None:
        """Start the thread that checks unreachable daemons and looks up the DNS name."""
        with self._lock:
            if self._watching or self.closed.is_set() or not lifetime.alive():
                return
            self._watching = True
        run = (weakref.ref(self),)
        threading.Thread(target=_watch, args=run, name="ingester-members", daemon=True).start()

    @property
    def known(self) -> Sequence[str]:
        """The known endpoints, without a look-up."""
        return self._endpoints

    def order_known(self, key: Sequence[str], first: str | None = None) -> list[str]:
        """As :meth:`order`, without a look-up."""
        preferred = ranked(key, self._endpoints)
        with self._lock:
            order = self._health.order(preferred)
        return order if first is None else [first, *(each for each in order if each != first)]

    def _look_up(self, name: str) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._looked_at < LOOK_UP_S:
                return
            self._looked_at = now
        try:
            found = resolved(name, self._lookup)
        except ClientError:
            if not self._endpoints:
                with self._lock:
                    self._looked_at = float("-inf")
                raise
            return  # the known daemons are still used
        self._take(found)

    def _take(self, endpoints: Sequence[str]) -> None:
        with self._lock:
            if tuple(endpoints) != self._endpoints:
                self._endpoints = tuple(endpoints)
                self._health.keep(self._endpoints)
                self.changes += 1
        for each in endpoints:
            self.connection(each)  # invalid addresses and options are refused here

    def ask_due(self) -> float | None:
        """Check the daemons that are due; seconds until the next check, None if all are usable."""
        with self._lock:
            due = self._health.due(time.monotonic())
        for endpoint in due:
            error = self.error_now(endpoint)
            if error is None:
                self.answered(endpoint)
            else:
                with self._lock:
                    self._health.failed(endpoint, error, time.monotonic(), random.random())
        if self._addresses.name is not None:
            with contextlib.suppress(ClientError):
                self.endpoints()
        with self._lock:
            at, now = self._health.next_due(), time.monotonic()
            if self._addresses.name is not None:
                at = min(self._looked_at + LOOK_UP_S, now + LOOK_UP_S if at is None else at)
            self._watching = at is not None
        return None if at is None else max(0.05, at - now)

    def error_now(self, endpoint: str, *, writes: bool = False) -> ClientError | None:
        """The reason why a daemon is unusable now, or None.

        Args:
            writes: The daemon must also accept writes.
        """
        before = self.error(endpoint)
        connection = self.connection(endpoint)
        try:
            if not writes and (before is None or before.code not in GOING_CODES):
                connection.ping(ASK_S)
                return None
            status = connection.act("status", {}, ASK_S, once=True)[0]
        except (Forbidden, Unauthenticated, Unimplemented):
            return None  # it is reachable; a stream will get its error
        except ClientError as exc:
            return exc
        if (status.get("admission") or {}).get("accepts_writes", True):
            return None
        return Unavailable(f"daemon {endpoint} accepts no writes", code="unavailable")


def _watch(members: weakref.ref[Members]) -> None:
    """Check unreachable daemons until all are back or the client no longer exists."""
    while True:
        found = members()
        if found is None or not lifetime.alive():
            return
        wait_s, closed = found.ask_due(), found.closed
        del found  # the thread must not keep the client alive
        if wait_s is None or closed.wait(wait_s):
            return
