"""The daemons of a client, each with its connection and what is known of its health.

A DNS name is looked up again every ``LOOK_UP_S``, and sooner when a daemon went away: those that
are new get streams at once, and those whose record is gone get no new ones. Daemons that went away
are asked in a thread of their own, when their circuit says so, until they are back: no caller waits
for that.
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
    ClientError,
    Forbidden,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Unreachable,
)
from .addresses import Addresses, Lookup, resolved
from .health import GOING_CODES, Health
from .placement import ranked
from .stores import Stores

LOOK_UP_S = 30.0
LOOK_UP_AGAIN_S = 2.0
"""The time between two look-ups when a daemon went away."""
ASK_S = 2.0
"""The time in which a daemon that was away, or is asked for its store, has to answer."""
AT_ONCE = 32
"""The daemons that are asked at the same time."""

Connect = Callable[[str], Connection]


class Members:
    """The daemons of one client. Any thread."""

    def __init__(
        self, addresses: Addresses, connect: Connect, lookup: Lookup | None = None
    ) -> None:
        """``connect`` makes a connection, and sends nothing."""
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
        """Rises whenever a daemon comes, goes or is back: routes look at their choice then."""
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
            Unreachable: a DNS name that was never looked up cannot be looked up now.
        """
        if self._addresses.name is not None:
            self._look_up(self._addresses.name)
        return self._endpoints

    def connection(self, endpoint: str) -> Connection:
        """The connection to a daemon, which may be one that an owner's name has led to."""
        with self._lock:
            found = self._connections.get(endpoint)
            if found is None:
                found = self._connections[endpoint] = self._connect(endpoint)
            return found

    def known_as(self, endpoint: str) -> str:
        """The endpoint of the daemon that has said it is there; of one that is not among ours, too.

        It is dialled as ours are: by TLS where they are.

        Raises:
            InvalidRequest: not an address, or options that are not for it.
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
        """All endpoints in the order in which to try them for a key.

        Args:
            first: goes before all others, as it owns what is asked for.

        Raises:
            InvalidRequest: as :meth:`of_one_store`.
        """
        self.of_one_store()
        return self.order_known(key, first)

    def of_one_store(self) -> Sequence[str]:
        """The endpoints of all daemons, which write to one store as far as they say.

        A daemon is asked when it is used first, and again when it was away.

        Raises:
            InvalidRequest: two of them write to different stores.
            Unreachable: as :meth:`endpoints`.
        """
        endpoints = self.endpoints()
        if len(endpoints) > 1:
            with self._asking_stores:
                self._ask_stores(endpoints)
                with self._lock:
                    if self._stores.differ(endpoints) is not None:
                        for each in endpoints:
                            self._stores.was_away(each)  # all may have another one by now
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
            pass  # a daemon of before
        except (Forbidden, Unauthenticated):
            return  # the call itself will say so
        with self._lock:
            self._stores.told(endpoint, store)

    def checked(self, endpoint: str) -> Connection:
        """The connection to a daemon that has said its store, or does now.

        Raises:
            InvalidRequest: as :meth:`of_one_store`.
            ClientError: it cannot be asked.
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
        """Whether nothing speaks against a daemon."""
        with self._lock:
            return self._health.usable(endpoint)

    def error(self, endpoint: str) -> ClientError | None:
        """The last error of a daemon that is away."""
        with self._lock:
            return self._health.error(endpoint)

    def answered(self, endpoint: str) -> None:
        """Note that a daemon does what it is asked."""
        with self._lock:
            if not self._health.usable(endpoint):
                self._health.answered(endpoint)
                self._stores.was_away(endpoint)
                self.changes += 1

    def failed(self, endpoint: str, error: ClientError) -> None:
        """Note that a daemon is away; it is asked from time to time whether it is back."""
        with self._lock:
            was_usable = self._health.usable(endpoint)
            self._health.failed(endpoint, error, time.monotonic(), random.random())
            self.changes += was_usable
            if was_usable:
                soon = time.monotonic() - LOOK_UP_S + LOOK_UP_AGAIN_S
                self._looked_at = min(self._looked_at, soon)
        self.watch()

    def watch(self) -> None:
        """See that daemons that are away are asked, and a DNS name is looked up, in a thread."""
        with self._lock:
            if self._watching or self.closed.is_set() or not lifetime.alive():
                return
            self._watching = True
        run = (weakref.ref(self),)
        threading.Thread(target=_watch, args=run, name="ingester-members", daemon=True).start()

    @property
    def known(self) -> Sequence[str]:
        """The endpoints as they are known; nothing is looked up."""
        return self._endpoints

    def order_known(self, key: Sequence[str], first: str | None = None) -> list[str]:
        """As :meth:`order`, of the endpoints that are known; nothing is looked up."""
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
            return  # who was there before is still asked
        self._take(found)

    def _take(self, endpoints: Sequence[str]) -> None:
        with self._lock:
            if tuple(endpoints) != self._endpoints:
                self._endpoints = tuple(endpoints)
                self._health.keep(self._endpoints)
                self.changes += 1
        for each in endpoints:
            self.connection(each)  # what is wrong with an address or an option is told at once

    def ask_due(self) -> float | None:
        """Ask the daemons whose time has come; seconds until the next, None where all are back."""
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
        """The reason why a daemon is of no use now; None where it seems to be of use.

        Args:
            writes: whether it has to take writes, whatever was wrong with it before.
        """
        before = self.error(endpoint)
        connection = self.connection(endpoint)
        try:
            if not writes and (before is None or before.code not in GOING_CODES):
                connection.ping(ASK_S)
                return None
            status = connection.act("status", {}, ASK_S, once=True)[0]
        except (Forbidden, Unauthenticated, Unimplemented):
            return None  # it is there; what it says to a stream will tell
        except ClientError as exc:
            return exc
        if (status.get("admission") or {}).get("accepts_writes", True):
            return None
        return Unavailable(f"daemon {endpoint} takes no writes", code="unavailable")


def _watch(members: weakref.ref[Members]) -> None:
    """Ask daemons that are away until all are back, or the client is gone."""
    while True:
        found = members()
        if found is None or not lifetime.alive():
            return
        wait_s, closed = found.ask_due(), found.closed
        del found  # a client that nobody has any more is not kept by its thread
        if wait_s is None or closed.wait(wait_s):
            return
