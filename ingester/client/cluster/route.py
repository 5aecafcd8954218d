"""A writer's route among several daemons.

    preferred ──unreachable, stopping, fenced──▶ next in order ──preferred is back──▶ preferred
    any ──"owner": another daemon owns the keyed table──▶ the named daemon

A writer's order is that of its table and origin (:func:`.daemons.ranked`). Unanswered batches move
under their sequences: the new daemon takes the origin over from there, and the old one flushes only
the batches that it has acknowledged. So a move neither loses nor duplicates a batch
(``docs/exactly_once.md``). A stream returns at a batch boundary, a random time after the preferred
daemon has answered again, so that clients do not all return at once.

A daemon that was paused may receive the first batch of an abandoned stream and take the origin
back from there. After such a loss the origin is *suspended*: batches are kept until they are in
object storage and are sent again if necessary; a writer that closes makes daemons flush them.

A writer that keeps batches does not send acknowledged ones again because of a move. They stay at
the old daemon, which answers queries with them, and are watched (:mod:`ingester.client.undurable`).
"""

import random
import threading
import time
import uuid

from ..connection import Connection
from ..delivery import Pending
from ..errors import (
    ClientError,
    TimedOut,
    UnknownOutcome,
    Unreachable,
    is_unavailable,
    never_connected,
)
from ..route import Loss, Route, RouteRequest
from ..streams import PutStream
from ..undurable import OwnWrites, UndurableBatches
from ..wire import OriginState
from .members import Members

BACK_S = 5.0
"""The longest random time before a stream returns to its preferred daemon."""

TableName = tuple[str, str]


class SharedRoutes:
    """State shared by the writers of one client: daemons, owners of tables, suspended origins."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.own_writes = OwnWrites()
        self._lock = threading.Lock()
        self._owners: dict[TableName, str] = {}
        self._suspended: set[tuple[TableName, str]] = set()

    def owner(self, table: TableName) -> str | None:
        """The daemon that takes a keyed table's writes, if it is known."""
        with self._lock:
            return self._owners.get(table)

    def owned(self, table: TableName, endpoint: str) -> None:
        """Record the owner that a refusal has named."""
        with self._lock:
            self._owners[table] = endpoint

    def left(self, table: TableName, endpoint: str) -> None:
        """Forget an unreachable owner; another daemon may have taken the table."""
        with self._lock:
            if self._owners.get(table) == endpoint:
                del self._owners[table]

    def is_suspended(self, table: TableName, origin: str | None, suspend: bool = False) -> bool:
        """Whether an origin is suspended; ``suspend`` makes it so."""
        with self._lock:
            if origin is None:
                return False
            if suspend:
                self._suspended.add((table, origin))
            return (table, origin) in self._suspended


class ToMany(Route):
    """The route of one writer."""

    def __init__(self, shared: SharedRoutes, request: RouteRequest) -> None:
        # Not super().__init__: there is no daemon yet.
        self._shared = shared
        self._members = shared.members
        self._request = request
        self._key = (*request.table, request.origin or uuid.uuid4().hex)
        self._now: str | None = None
        """The daemon of the last stream."""
        self._next: str | None = None
        """The daemon of the next stream, if it is decided."""
        self._seen = -1
        self._back_at: float | None = None
        self.suspended = shared.is_suspended(request.table, request.origin)
        if request.origin is not None:
            self.undurable = UndurableBatches(self._members, request.table, request.origin)
            shared.own_writes.add(self.undurable)

    def open(self) -> PutStream:
        """The next stream, at the best daemon available."""
        self._members.watch()
        self._now, self._next = self._next or self._best(), None
        self._seen, self._back_at = -1, None
        request = self._request
        opened = self._members.checked(self._now)
        return opened.put_stream(request.command, request.schema, request.traceparent())

    @property
    def endpoint(self) -> str:
        """The daemon of the last stream."""
        assert self._now is not None
        return self._now

    def leave_behind(self, batches: list[Pending], error: ClientError | None) -> None:
        """Leave acknowledged batches at the last stream's daemon."""
        assert self.undurable is not None and self._now is not None
        self.undurable.put(self._now, batches, error, self.process)

    def _best(self) -> str:
        return self._members.order(self._key, self._shared.owner(self._request.table))[0]

    def _daemon(self) -> Connection:
        return self._members.connection(self.endpoint)

    def _safe(self, state: OriginState) -> int | None:
        return state.files_sequence  # another daemon may take over what is only in a log

    def lost(self, error: ClientError, *, unanswered: bool) -> Loss:
        """Decide where the next stream goes."""
        now, table = self._now, self._request.table
        if now is None:
            return Loss(error)
        if error.code == "owner":
            return self._to_owner(error, now)
        self._next = None
        if not is_unavailable(error):
            return Loss(error)
        self._members.failed(now, error)
        suspended = unanswered and isinstance(error, Unreachable | TimedOut)
        if suspended and not never_connected(error) and self._request.origin is not None:
            self.suspended = self._shared.is_suspended(table, self._request.origin, suspend=True)
        if self._shared.owner(table) == now:
            error = _of_owner(error, now, table)
            self._shared.left(table, now)
        return Loss(error, self._members.order_known(self._key)[0] != now, self.suspended)

    def _to_owner(self, error: ClientError, now: str) -> Loss:
        named = error.details.get("endpoint")
        if "owner" not in error.details or not isinstance(named, str):
            # The owner of this origin: a suspended one was taken back by the abandoned stream.
            return Loss(error, moves=self.suspended, suspended=self.suspended)
        try:
            owner = self._members.known_as(named)
        except ClientError:
            return Loss(error)
        self._shared.owned(self._request.table, owner)
        self._next = owner
        unreachable = self._members.error(owner)
        if unreachable is not None:
            error = _of_owner(unreachable, owner, self._request.table)
            return Loss(error, suspended=self.suspended)
        return Loss(error, owner != now, self.suspended)

    def stays(self) -> bool:
        """Whether no better daemon is known."""
        return self._members.changes == self._seen and self._back_at is None

    def moves(self) -> bool:
        """Whether the stream should end for one at a better daemon."""
        if self.undurable is not None and self.undurable.owes:
            return self._stays()
        if self.undurable is not None and self.undurable.sends_again:
            return False  # half of it would move, and with it everything newer
        changes = self._members.changes
        if changes != self._seen:
            self._seen, better = changes, self._better()
            self._back_at = time.monotonic() + random.random() * BACK_S if better else None
        if self._back_at is None or time.monotonic() < self._back_at:
            return False
        better = self._better()
        return better is not None and self._goes_to(better)

    def _goes_to(self, endpoint: str) -> bool:
        """Whether to open another stream: at this daemon, or at the same one for lost batches."""
        if self.undurable is not None:
            try:
                self.undurable.ask(endpoint)
            except ClientError:
                return False  # it does not report what it has; try later
            if self.undurable.owes:
                return self._stays()
        return True

    def _stays(self) -> bool:
        """Open the next stream at the same daemon, beginning with the lost batches.

        A daemon takes the origin over from its stream's first batch on. Another daemon would take
        rows that are here, and queries would lack them until they are sent again.
        """
        self._next = self._now
        return True

    def _better(self) -> str | None:
        best = self._members.order_known(self._key, self._shared.owner(self._request.table))[0]
        return best if best != self._now and self._members.usable(best) else None

    def settle(self) -> None:
        """Make daemons flush acknowledged batches if the origin is suspended.

        Raises:
            UnknownOutcome: That is impossible now.
        """
        if not self.suspended or self._now is None or self.undurable is None:
            return
        for endpoint in dict.fromkeys([self._now, *self.undurable.endpoints()]):
            try:
                self.undurable.persist(endpoint)
            except ClientError as exc:
                if endpoint != self._now and is_unavailable(exc):
                    continue  # its batches are watched anyway
                raise UnknownOutcome(
                    f"the daemon that did not answer the first batch of"
                    f" {'/'.join(self._request.table)} may return before the batches that"
                    f" {endpoint} has acknowledged since are in object storage, and they cannot be"
                    f" flushed now: {exc}"
                ) from exc


def _of_owner(error: ClientError, owner: str, table: TableName) -> ClientError:
    """The error of the only daemon that may take a table's writes."""
    named = "/".join(table)
    told = Unreachable(
        f"{error}; only {owner} takes the writes of {named}, which has a primary key, until it has"
        " stopped or its log is adopted (ingester wal adopt)",
        details=error.details,
    )
    told.__cause__ = error
    return told
