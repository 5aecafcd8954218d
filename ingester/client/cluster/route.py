"""A writer's way among several daemons: which takes its streams, and when another one does.

    preferred ──away, stopping, fenced──▶ the next of its order ──preferred is back──▶ preferred
    any ──"owner": a table with a primary key is written elsewhere──▶ the daemon that is named

A writer's order is by its table and origin (:mod:`.placement`). What moves are the batches that
were not answered, under their sequences: the daemon that takes them takes the origin over from
there, and the one before brings what it has acknowledged, and no more. So no batch is lost or
doubled by a move (``docs/exactly_once.md``). A stream goes back at a batch boundary, a random while
after the preferred daemon has answered again, so that clients do not all come back at once.

A daemon that stood still may find the first batch of a stream that was given up, and take the
origin back from there. After such a loss the way ``hangs``: batches are kept until they are in
object storage, and sent again from what is there, if it comes to that; a writer that closes has
them persisted.

Who keeps batches sends none of them again for a move: the daemon that has acknowledged them has
them, and answers with them. They are put aside and looked after (:mod:`.aside`).
"""

import random
import threading
import time
import uuid

from ..connection import Connection, Process
from ..errors import ClientError, TimedOut, UnknownOutcome, Unreachable, never_connected
from ..put_stream import PutStream
from ..route import PROCESS_S, Loss, WayOf, known_at
from ..window import Pending
from ..wire import OriginState
from .aside import Aside, OwnWrites
from .asking import is_away
from .members import Members

BACK_S = 5.0
"""The longest random while that a stream stays where it is when its preferred daemon is back."""

TableName = tuple[str, str]


class Places:
    """What the writers of one client know in common: daemons, owners, origins that hang."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.own_writes = OwnWrites()
        self._lock = threading.Lock()
        self._owners: dict[TableName, str] = {}
        self._hanging: set[tuple[TableName, str]] = set()

    def owner(self, table: TableName) -> str | None:
        """The daemon that takes a keyed table's writes, as far as one has said so."""
        with self._lock:
            return self._owners.get(table)

    def owned(self, table: TableName, endpoint: str) -> None:
        """Note whom a refusal has named."""
        with self._lock:
            self._owners[table] = endpoint

    def left(self, table: TableName, endpoint: str) -> None:
        """Forget an owner that is away: another one may have taken the table by now."""
        with self._lock:
            if self._owners.get(table) == endpoint:
                del self._owners[table]

    def hangs(self, table: TableName, origin: str | None, now: bool = False) -> bool:
        """Whether an origin hangs; ``now`` says that it does from here on."""
        with self._lock:
            if origin is None:
                return False
            if now:
                self._hanging.add((table, origin))
            return (table, origin) in self._hanging


class ToMany:
    """The :class:`ingester.client.route.Route` of one writer."""

    def __init__(self, places: Places, way: WayOf) -> None:
        self._places = places
        self._members = places.members
        self._way = way
        self._key = (*way.table, way.origin or uuid.uuid4().hex)
        self._now: str | None = None
        """The daemon of the last stream."""
        self.process: Process | None = None
        self._next: str | None = None
        """The daemon of the next stream, where it was chosen already."""
        self._seen = -1
        self._back_at: float | None = None
        self.hangs = places.hangs(way.table, way.origin)
        self.aside: Aside | None = None
        if way.origin is not None:
            self.aside = Aside(self._members, way.table, way.origin)
            places.own_writes.add(self.aside)

    def open(self) -> PutStream:
        """The next stream, at the best daemon of now."""
        self._members.watch()
        self._now, self._next = self._next or self._best(), None
        self._seen, self._back_at = -1, None
        way = self._way
        opened = self._members.checked(self._now)
        return opened.put_stream(way.command, way.schema, way.traceparent())

    @property
    def endpoint(self) -> str:
        """The daemon of the last stream."""
        assert self._now is not None
        return self._now

    def ask_process(self) -> Process | None:
        """The process of the last stream's daemon now; None where it does not say."""
        return self._connection(self.endpoint).process(PROCESS_S)

    def put_aside(self, batches: list[Pending], error: ClientError | None) -> None:
        """Keep what the last stream's daemon has acknowledged: it is that one's to bring."""
        assert self.aside is not None and self._now is not None
        self.aside.put(self._now, batches, error, self.process)

    def _best(self) -> str:
        """The best daemon of now."""
        return self._members.order(self._key, self._places.owner(self._way.table))[0]

    def _connection(self, endpoint: str) -> Connection:
        return self._members.connection(endpoint)

    def position(self) -> int | None:
        """The last sequence that the last stream's daemon has brought into files."""
        return None if self._now is None or not self._way.asks else self._durable(self._now)

    def known(self) -> OriginState:
        """What the last stream's daemon has of the origin in the table."""
        return known_at(self._connection(self.endpoint), self._way)

    def _durable(self, endpoint: str) -> int | None:
        if self._way.origin is None:
            return None
        states = self._connection(endpoint).origins(self._way.origin)
        known = [state.durable_sequence for state in states]
        return max((sequence for sequence in known if sequence is not None), default=None)

    def lost(self, error: ClientError, *, unanswered: bool) -> Loss:
        """Where the next stream goes, after the last one ended with an error."""
        now, table = self._now, self._way.table
        if now is None:
            return Loss(error)
        if error.code == "owner":
            return self._to_owner(error, now)
        self._next = None
        if not is_away(error):
            return Loss(error)
        self._members.failed(now, error)
        hangs = unanswered and isinstance(error, Unreachable | TimedOut)
        if hangs and not never_connected(error) and self._way.origin is not None:
            self.hangs = self._places.hangs(table, self._way.origin, now=True)
        if self._places.owner(table) == now:
            error = _of_owner(error, now, table)
            self._places.left(table, now)
        return Loss(error, self._members.order_known(self._key)[0] != now, self.hangs)

    def _to_owner(self, error: ClientError, now: str) -> Loss:
        named = error.details.get("endpoint")
        if "owner" not in error.details or not isinstance(named, str):
            # Of this origin. Where it hangs, the stream that was given up has taken it back.
            return Loss(error, moves=self.hangs, hangs=self.hangs)
        try:
            owner = self._members.known_as(named)
        except ClientError:
            return Loss(error)
        self._places.owned(self._way.table, owner)
        self._next = owner
        away = self._members.error(owner)
        if away is not None:
            return Loss(_of_owner(away, owner, self._way.table), hangs=self.hangs)
        return Loss(error, owner != now, self.hangs)

    def moves(self) -> bool:
        """Whether a better daemon than that of the open stream is there, and its time has come."""
        if self.aside is not None and self.aside.owes:
            return self._stays()
        if self.aside is not None and self.aside.arrives:
            return False  # half of it would be taken along, and with it all that is newer
        changes = self._members.changes
        if changes != self._seen:
            self._seen, better = changes, self._better()
            self._back_at = time.monotonic() + random.random() * BACK_S if better else None
        if self._back_at is None or time.monotonic() < self._back_at:
            return False
        better = self._better()
        return better is not None and self._goes_to(better)

    def _goes_to(self, endpoint: str) -> bool:
        """Whether the stream is opened anew: at this daemon, or where it is for what that lost."""
        if self.aside is not None:
            try:
                self.aside.ask(endpoint)
            except ClientError:
                return False  # it does not say what it has: another time
            if self.aside.owes:
                return self._stays()
        return True

    def _stays(self) -> bool:
        """Have the next stream begin where this one is, with what is lost.

        A daemon takes the origin over from its stream's first batch on. Another one than this
        would take rows that are here, and nobody would find them until they were sent again.
        """
        self._next = self._now
        return True

    def _better(self) -> str | None:
        best = self._members.order_known(self._key, self._places.owner(self._way.table))[0]
        return best if best != self._now and self._members.usable(best) else None

    def settle(self) -> None:
        """Have what was acknowledged persisted, where the origin hangs.

        Raises:
            UnknownOutcome: that cannot be had now.
        """
        if not self.hangs or self._now is None or self.aside is None:
            return
        for endpoint in dict.fromkeys([self._now, *self.aside.endpoints()]):
            try:
                self.aside.persist(endpoint)
            except ClientError as exc:
                if endpoint != self._now and is_away(exc):
                    continue  # what it has acknowledged is looked after by itself
                raise UnknownOutcome(
                    f"the daemon that stood still at {'/'.join(self._way.table)}'s first batch may"
                    f" come back before what {endpoint} has acknowledged since is in object"
                    f" storage, and that cannot be had now: {exc}"
                ) from exc


def _of_owner(error: ClientError, owner: str, table: TableName) -> ClientError:
    """The error of the daemon that alone may take a table's writes."""
    named = "/".join(table)
    told = Unreachable(
        f"{error}; {owner} takes the writes of {named}, which has a primary key, and others do not"
        " until it has stopped, or its log is adopted (ingester wal adopt)",
        details=error.details,
    )
    told.__cause__ = error
    return told
