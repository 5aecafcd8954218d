"""Ships operations: puts those that wait into log objects, and gives them back in order.

    submitted, in log order ─┬─ route HELD ──▶ aside, until the table's earlier rows are in files
                             └─▶ ready ──▶ an object ──▶ created ──▶ all before it created?
                                                            │             └▶ applied, acknowledged
                                                            └ the name is taken: fenced

An object is begun when operations are ready and the last one was begun ``interval_s`` ago, or when
``max_bytes`` are ready. ``IN_FLIGHT`` objects may be under way. While the store does not answer,
operations wait in bounded memory; after some seconds, or without room, others are refused. The
first object of an epoch has no operations (`ingester.store_log.creating`).

A process that creates objects without a pause may be faster than the fence of its successor. So it
looks for a later claim now and then, and ends when there is one.

``submit`` and ``takes`` run in the thread that writes the log, ``wait_for_room`` in writers'
threads; everything else on the loop.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog
import trio

from ingester.errors import StoreUnreachable
from ingester.observability.status import StoreLogState, StoreLogStatus
from ingester.store_log.cleaner import KeptObject
from ingester.store_log.creating import ObjectCreator
from ingester.store_log.hooks import ShipHooks as ShipHooks
from ingester.store_log.hooks import ShipLimits as ShipLimits
from persist.manifest import Fenced, WriterIdentity
from persist.store import ObjectStore, StoreError
from wal import Entry, LogError, OutcomeUnknown, Route, RouteState
from wal.objects import ObjectNote, encode_object
from wal.shipping import Waiting

log = structlog.get_logger(__name__)

IN_FLIGHT = 8
"""Objects under way. What a store can take is this many, times their size, per request time."""
ROOM_S = 10.0
"""How long a writer waits for room before it is refused."""
ROOM_RETRY_S = 1.0
LOOK_S = 5.0
"""The interval of looks for a later claim, as long as objects are begun."""


@dataclass(slots=True, eq=False)
class _Flight:
    """An object under way."""

    number: int
    items: list[tuple[float, Entry]]
    acknowledged: int
    """The newest acknowledged object when it was begun."""
    kept_from: int
    """The oldest object that was kept when it was begun: never below that of earlier flights."""
    last_seq: int
    """The highest sequence in this object and all earlier ones."""
    nbytes: int = 0
    done: bool = False

    @property
    def entries(self) -> list[Entry]:
        return [entry for _, entry in self.items]


class Shipper:
    """Ships the operations of one epoch; a :class:`wal.Shipping`."""

    def __init__(
        self, store: ObjectStore, writer: WriterIdentity, limits: ShipLimits, hooks: ShipHooks
    ) -> None:
        self._creator = ObjectCreator(store, writer)
        self._limits = limits
        self._hooks = hooks
        # Under the lock: what the writing thread adds and the loop takes.
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiting = Waiting()
        self._waiting_bytes = 0
        """The bytes of all entries that are not handed over to be applied."""
        self._moved_at = 0.0
        """When an object was acknowledged last, or the first entry came after a pause."""
        self._flights: deque[_Flight] = deque()
        self._failure: LogError | None = None
        self._held: list[Route] = []
        """Routes that became HELD with the group being written; the writing thread only."""
        self._raised: deque[Route] = deque()
        """Routes that became HELD and whose tables are not being flushed yet."""
        self._token: trio.lowlevel.TrioToken | None = None
        self._told = False
        """Whether the loop will look at what is ready without being told."""
        # Below: the loop only.
        self._wake = trio.Event()
        self._landing = trio.Lock()
        self._places = trio.Semaphore(IN_FLIGHT)
        self._next_number = 1
        self._last_seq = 0
        self._acknowledged = 0
        self._begun_at = float("-inf")
        self.opened = trio.Event()
        """Set once the epoch's first object counts."""

    @property
    def opens(self) -> bool:
        """Whether the first object is made at once: nothing is taken before `opened`."""
        return self._limits.everything or self._limits.opens

    @property
    def runs(self) -> bool:
        """Whether entries may be submitted."""
        return self._token is not None

    @property
    def in_use(self) -> bool:
        """Whether this epoch ships, or is about to."""
        begun = self._next_number > 1 or bool(self._raised) or self._limits.everything
        return begun and self.runs

    # The thread that writes the log

    def takes(self, entry: Entry) -> bool:
        """Whether an entry ships. Its tables' routes are then no longer LOCAL."""
        everything = self._limits.everything
        if not (everything or entry.at_store or any(route.ships for route in entry.routes)):
            return False
        for route in entry.routes:
            if not route.ships:
                route.state = RouteState.SHIPPED if everything else RouteState.HELD
                if not everything:
                    self._held.append(route)
        return True

    def submit(self, entries: Sequence[Entry]) -> None:
        """Take entries over, in log order."""
        with self._lock:
            failure = self._failure
            if failure is None:
                now = time.monotonic()
                if not self._waiting_bytes:
                    self._moved_at = now
                self._waiting.add(entries, now)
                self._waiting_bytes += sum(entry.stored_bytes for entry in entries)
        if failure is not None:
            self._hooks.shipped(entries, failure)
        elif not self._told or self._waiting.ready_bytes >= self._limits.max_bytes:
            self._call_soon()

    def announce(self) -> None:
        """Have the tables whose routes are HELD flushed; what was written before is queued."""
        if self._held:
            # Not before: a flush would miss entries that are written and not queued yet.
            self._raised.extend(self._held)
            self._held.clear()
            self._call_soon()

    def _call_soon(self) -> None:
        self._told = True
        assert self._token is not None, "the shipper runs before the log"
        with suppress(trio.RunFinishedError):  # the loop has ended
            self._token.run_sync_soon(self._look)

    # Writers' threads

    def is_full(self, nbytes: int) -> bool:
        """Whether there is no room for an operation of this size now. Any thread."""
        waiting, limits = self._waiting_bytes, self._limits
        if not waiting:
            return False
        if time.monotonic() - self._moved_at > limits.patience_s:
            return True
        return waiting + nbytes > limits.waiting_bytes

    def wait_for_room(self, nbytes: int, timeout_s: float = ROOM_S) -> None:
        """Return when an operation of this size may be appended. Blocks; not on the loop.

        Raises:
            StoreUnreachable: the store takes no log objects, or takes them too slowly.
        """
        if not self.is_full(nbytes):
            return
        with self._room:
            has_room = self._room.wait_for(lambda: not self.is_full(nbytes), timeout_s)
        if not has_room:
            raise self.refusal()

    def refusal(self) -> StoreUnreachable:
        """The error of an operation for which there is no room."""
        waits_s = self.oldest_waiting_s or 0.0
        error = self._creator.counts.last_error
        last = "" if error is None else f"; last error: {error}"
        return StoreUnreachable(
            f"{self._waiting_bytes} bytes wait for the log in the store, the oldest for"
            f' {waits_s:.1f} s; nothing of this batch was kept{last}. Tables with ack = "disk" are'
            " not affected",
            retry_after_s=ROOM_RETRY_S,
        )

    # Any thread

    @property
    def first_segment(self) -> int | None:
        """The oldest segment with an operation that is not applied yet."""
        return min((entry.segment for _, entry in self._all()), default=None)

    @property
    def oldest_waiting_s(self) -> float | None:
        """How long the oldest operation has waited, or None."""
        since = min((at for at, _ in self._all()), default=None)
        return None if since is None else time.monotonic() - since

    def _all(self) -> list[tuple[float, Entry]]:
        with self._lock:
            in_flight = [item for flight in self._flights for item in flight.items]
            return [*in_flight, *self._waiting.all()]

    # The loop

    def hold(self, route: Route) -> None:
        """Have a table flushed whose operations ship from now on. Before anything is written."""
        route.state = RouteState.HELD
        self._raised.append(route)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ship until cancelled; then answer what waits with `OutcomeUnknown`."""
        self._token = trio.lowlevel.current_trio_token()
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                nursery.start_soon(self._look_for_claims)
                if self.opens:
                    await self._begin(nursery)
                while True:
                    await self._wait_for_work(nursery)
                    await self._begin(nursery)
        finally:
            self._fail("the daemon stopped before the store had this operation")

    def _look(self) -> None:
        self._wake.set()

    async def _wait_for_work(self, nursery: trio.Nursery) -> None:
        """Return when an object is to be begun."""
        while True:
            while self._raised:
                nursery.start_soon(self._raise, self._raised.popleft())
            due = self._begun_at + self._limits.interval_s
            if not self._waiting.ready:
                due = math.inf
                self._told = False
                # Checked again: what came before that told nobody.
                if self._waiting.ready or self._raised:
                    continue
            elif trio.current_time() >= due or self._is_full_object():
                return
            with trio.move_on_at(due):
                await self._wake.wait()
            self._wake = trio.Event()

    def _is_full_object(self) -> bool:
        return self._waiting.ready_bytes >= self._limits.max_bytes

    async def _raise(self, route: Route) -> None:
        """Flush what a table has from before its first operation that ships."""
        await self._hooks.flush(route.name)
        with self._lock:
            route.state = RouteState.SHIPPED
            self._waiting.release()
        log.info("table is shipped to the store", table=route.name)
        self._wake.set()

    async def _begin(self, nursery: trio.Nursery) -> None:
        """Begin the next object once a place is free. The first one has no operations."""
        opens = self._next_number == 1
        if not opens:
            # A successor that looked before the first object was there puts no fence: no operation
            # may follow that it has not seen.
            await self.opened.wait()
        await self._places.acquire()
        with self._lock:
            items = [] if opens else self._waiting.take(self._limits.max_bytes)
            # A log object's sequences rise; held entries have lower ones.
            items.sort(key=lambda item: item[1].seq)
            kept_from = self._hooks.kept_from()
            ends = [entry.seq + entry.operations - 1 for _, entry in items]
            self._last_seq = max([self._last_seq, *ends])
            flight = _Flight(
                self._next_number, items, self._acknowledged, kept_from, self._last_seq
            )
            self._flights.append(flight)
        self._next_number += 1
        if not opens:
            self._begun_at = trio.current_time()
        nursery.start_soon(self._ship, flight)

    async def _ship(self, flight: _Flight) -> None:
        """Create an object, and acknowledge it with those before it."""
        controls = self._hooks.controls() if flight.number == 1 else ()
        note = ObjectNote(
            acknowledged=flight.acknowledged,
            last_seq=flight.last_seq,
            kept_from=flight.kept_from,
            on_disk=self._limits.on_disk,
            disk_only=self._hooks.disk_only(),
        )
        encode = partial(
            encode_object, flight.number, self._creator.identity, flight.entries, note, controls
        )
        data = await trio.to_thread.run_sync(encode)
        flight.nbytes = len(data)
        try:
            await self._creator.create(flight.number, data)
        except Fenced as fence:
            await self._end(fence)
            return
        finally:
            self._places.release()
        flight.done = True
        await self._land()

    async def _land(self) -> None:
        """Hand over what the store has, in order."""
        # Shielded: an operation is handed over and forgotten in one step.
        with trio.CancelScope(shield=True):
            async with self._landing:
                while self._failure is None and self._flights and self._flights[0].done:
                    await self._acknowledge(self._flights[0])

    async def _acknowledge(self, flight: _Flight) -> None:
        entries = flight.entries
        if entries:
            # In a thread: it answers every writer.
            await trio.to_thread.run_sync(self._hooks.shipped, entries, None)
            self._hooks.catch_up()
        else:
            self.opened.set()
        # Only now: until it is applied, a position may not lie beyond it.
        with self._room:
            self._flights.popleft()
            self._moved_at = time.monotonic()
            self._waiting_bytes -= sum(entry.stored_bytes for entry in entries)
            self._room.notify_all()
        self._acknowledged = flight.number
        segment = max((entry.segment for entry in entries), default=self._hooks.open_segment())
        self._hooks.acknowledged(
            KeptObject(flight.number, flight.acknowledged, segment, flight.nbytes, flight.kept_from)
        )

    async def _look_for_claims(self) -> None:
        while self._failure is None:
            looked_at = self._next_number
            await trio.sleep(LOOK_S)
            if self._next_number > looked_at:
                look = self._creator.check_epoch
                try:
                    with suppress(StoreError):  # until the next look
                        await trio.to_thread.run_sync(look, abandon_on_cancel=True)
                except Fenced as fence:
                    await self._end(fence)

    async def _end(self, fence: Fenced) -> None:
        """Another process has taken over: nothing more is acknowledged."""
        async with self._landing:
            self._fail(f"the outcome of this write is unknown: {fence}")
        self._hooks.fenced(fence)

    def _fail(self, why: str) -> None:
        """Answer everything that waits, and all that follows."""
        with self._room:
            if self._failure is not None:
                return
            failure = self._failure = OutcomeUnknown(why)
            left = [entry for flight in self._flights for entry in flight.entries]
            left += self._waiting.take_all()
            self._flights.clear()
            self._waiting_bytes = 0
            self._room.notify_all()
        if left:
            self._hooks.shipped(left, failure)

    @property
    def encoded_bytes(self) -> int:
        """The bytes of the objects under way."""
        with self._lock:
            return sum(flight.nbytes for flight in self._flights)

    def statistics(self) -> StoreLogStatus:
        """Return the state and counts of this process, without those of deletion."""
        with self._lock:
            in_flight = len(self._flights)
        counts = self._creator.counts
        return StoreLogStatus(
            state=self._state(),
            puts=counts.puts,
            put_bytes=counts.put_bytes,
            put_s=counts.put_s,
            in_flight=in_flight,
            waiting_bytes=self._waiting_bytes,
            oldest_waiting_s=self.oldest_waiting_s,
            failed_puts=counts.failed,
            last_error=counts.last_error,
        )

    def _state(self) -> StoreLogState:
        if self._failure is not None:
            return "fenced"
        if not self.in_use:
            return "unused"
        return "failing" if self._creator.counts.failing else "ok"
