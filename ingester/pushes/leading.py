"""The leader of a push: it drives the push, sends heartbeats and publishes the status.

    _pushes/<push id>/leader     controller, at: overwritten by the leader every 5 s
    _push_status/<push id>       in every region, for daemons: ``ingester.reports.pushes``

    lead ─▶ take the push over ─▶ heartbeats in a thread ─▶ the driver, until the push is over
    see_through ─▶ lead it if it has no leader ─▶ otherwise wait for the leader to finish

The heartbeat is a hint; safety does not depend on it. A push without a recent heartbeat is taken
over, and if its former leader is alive after all, :class:`ingester.pushes.store.Deposed` stops it
(tests/pushes/test_two_controllers). Ages are measured by the store's clock. Publishing is best
effort: an unreachable store is tried again with the next record, or after a while, and delays
neither the push nor other regions (tests/pushes/test_status).
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from ingester.pushes.driver import DriverPace, Hear, HookPanel, PushDriver, utc_now
from ingester.pushes.hooks import Decision
from ingester.pushes.record import HookStep, PushRecord, RegionRecord, decoded
from ingester.pushes.regions.region import StoreRegion
from ingester.pushes.regions.store import RegionStore
from ingester.pushes.store import FOLDER, LEADER, Deposed, HeldPush, PushStore, SavedRecord
from ingester.pushes.tasks import Region, RegionUnreachable, Rules
from ingester.reports.pushes import (
    EVENTS,
    TELL_EVERY_S,
    EndingStatus,
    HookWait,
    KeptIn,
    Leader,
    PushEvent,
    PushStatus,
    RegionStatus,
    StepStatus,
    encode_push_status,
    status_path,
)
from persist.store import ObjectNotFound, ObjectStore, StoreError


class Heartbeat(NamedTuple):
    """The interval of heartbeats, and the age at which a leader counts as gone."""

    every: timedelta = timedelta(seconds=5)
    gone_after: timedelta = timedelta(seconds=30)


HEARTBEAT = Heartbeat()
_decoder = msgspec.json.Decoder(Leader)


class LastLeader(NamedTuple):
    """The last leader of a push, and the age of its last heartbeat."""

    controller: str
    age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """The resources that a leader of the pushes in ``store`` needs."""

    store: ObjectStore
    controller: str
    """The leader's name; see :func:`controller_name`."""
    regions: Callable[[], Mapping[str, Region]]
    """Opens the regions, for each push that is led."""
    panel: HookPanel
    rules: Rules
    pace: DriverPace = DriverPace()  # noqa: RUF009 (frozen)
    heartbeat: Heartbeat = HEARTBEAT

    @property
    def pushes(self) -> PushStore:
        """The pushes in the store; an unreachable store is waited for."""
        return PushStore(self.store)


def controller_name() -> str:
    """Return a unique name of this process: host, process id and random digits."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


def leader_of(store: ObjectStore, push_id: str) -> LastLeader | None:
    """Return the last leader of the push; None if it has left the push.

    Raises:
        StoreError: the store does not answer.
    """
    path = _path(push_id)
    found = store.exists(path)
    if found is None:
        return None
    try:
        name = decoded(_decoder, store.get(path)).controller
    except ObjectNotFound:
        return None
    except ValueError:
        name = "somebody"
    return LastLeader(name, store.now() - found.at)


def led_by(store: ObjectStore, push_id: str, heartbeat: Heartbeat = HEARTBEAT) -> LastLeader | None:
    """Return the current leader of the push; None if it has none."""
    leader = leader_of(store, push_id)
    return leader if leader is not None and leader.age <= heartbeat.gone_after else None


@contextmanager
def heartbeats(
    store: ObjectStore, push_id: str, controller: str, heartbeat: Heartbeat
) -> Iterator[None]:
    """Send heartbeats as the push's leader within the ``with`` block.

    At the end the leader's file is deleted, unless the block ends with an error of the store. A
    deposed leader deletes only its own heartbeat, which may have come after the new leader's.
    """
    over = threading.Event()

    def send() -> None:
        # Best effort: after repeated failures another controller takes over.
        with suppress(StoreError):
            leader = Leader(controller=controller, at=utc_now())
            store.put(_path(push_id), msgspec.json.encode(leader))

    def run() -> None:
        while not over.wait(heartbeat.every.total_seconds()):
            send()

    def leave() -> None:
        with suppress(StoreError):
            last = leader_of(store, push_id)
            if last is not None and last.controller == controller:
                store.delete(_path(push_id))

    send()
    thread = threading.Thread(target=run, daemon=True, name="push-leader")
    thread.start()
    try:
        yield
    except BaseException as exc:
        over.set()
        if isinstance(exc, Deposed):
            leave()
        raise
    over.set()
    thread.join(heartbeat.gone_after.total_seconds())
    leave()


def lead(
    leadership: Leadership, push_id: str, stop: threading.Event, hear: Hear | None = None
) -> PushRecord:
    """Take a push over and lead it until it is over, or ``stop`` is set; return its record.

    Args:
        hear: called with each record, in this thread.

    Raises:
        PushNotFound, PushDamaged: there is no such push, or it cannot be read.
        ValueError: a region of the push is not configured here; it was not taken over.
        Deposed: another controller leads the push now.
        StoreError: the store is unreachable; any controller may take the push over.
    """
    pushes = leadership.pushes
    newest = pushes.newest(push_id)
    if not needs_leading(newest, len(pushes.requests(push_id))):
        return newest.record
    regions = leadership.regions()
    record = newest.record
    missing = [name for name in record.order.regions if name not in regions]
    if missing:
        raise ValueError(
            f"push {record.push_id} goes through {', '.join(missing)}, which is not configured here"
        )
    held = pushes.take_over(push_id, leadership.controller, utc_now())
    return lead_held(leadership, held, stop, hear, regions)


def lead_held(
    leadership: Leadership,
    held: HeldPush,
    stop: threading.Event,
    hear: Hear | None = None,
    regions: Mapping[str, Region] | None = None,
) -> PushRecord:
    """Lead a push that is already held, such as one that was just started; see :func:`lead`."""
    place = leadership
    regions = place.regions() if regions is None else regions
    with (
        heartbeats(place.store, held.record.push_id, place.controller, place.heartbeat),
        published(held.record, regions, place.controller, place.store) as publish,
    ):
        driver = PushDriver(held, regions, place.panel, place.rules, place.pace)

        def heard(record: PushRecord) -> None:
            publish(record)
            if hear is not None:
                hear(record)

        driver.hear = heard
        heard(held.record)
        return driver.run(stop)


def needs_leading(saved: SavedRecord, requests: int) -> bool:
    """Return whether a push with this number of requests has anything left to do."""
    return not saved.record.over or requests > saved.record.requests


def see_through(
    leadership: Leadership,
    push_id: str,
    stop: threading.Event,
    hear: Hear | None = None,
) -> PushRecord:
    """Return the push's record once it is over, or ``stop`` is set.

    Leads the push while it has no other leader.

    Raises:
        PushNotFound, PushDamaged, ValueError, StoreError: see :func:`lead`.
    """
    pushes = leadership.pushes
    seen = 0
    while True:
        newest = pushes.newest(push_id)
        if newest.number != seen and hear is not None:
            seen = newest.number
            hear(newest.record)
        if not needs_leading(newest, len(pushes.requests(push_id))) or stop.is_set():
            return newest.record
        if led_by(leadership.store, push_id, leadership.heartbeat) is None:
            with suppress(Deposed):
                return lead(leadership, push_id, stop, hear)
        stop.wait(leadership.pace.poll.total_seconds())


def _path(push_id: str) -> str:
    return f"{FOLDER}/{push_id}/{LEADER}"


# --------------------------------------------------------------------------------- published status


_CLOSE_WITHIN_S = 3.0
"""How long a closing publisher tries to publish the last record."""


def push_status(
    record: PushRecord, kept_in: KeptIn, leader: Leader, events: int = EVENTS
) -> PushStatus:
    """Return the status of a push, with its newest ``events``."""
    ending = None
    if (why := record.ending) is not None:
        ending = EndingStatus(kind=why.kind, reason=why.reason, at=why.at)
    return PushStatus(
        push_id=record.push_id,
        namespace=record.namespace,
        table=record.table,
        order=record.order.kind,
        target=record.order.target,
        status=record.status.value,
        since=record.since,
        began_at=record.began_at,
        ended_at=record.ended_at,
        ending=ending,
        deferred=record.deferred,
        step=_step(record.step),
        unreachable_since=record.unreachable_since,
        regions=tuple(_region(each) for each in record.regions),
        events=tuple(
            PushEvent(at=event.at, region=event.region, what=event.what)
            for event in record.history[max(len(record.history) - events, 0) :]
        ),
        kept_in=kept_in,
        leader=leader,
    )


def _region(record: RegionRecord) -> RegionStatus:
    return RegionStatus(
        name=record.name,
        status=record.status.value,
        since=record.since,
        table_version=record.table_version,
        previous=record.previous,
        reason=record.reason,
        step=_step(record.step),
        lagging=record.lagging,
        unreachable_since=record.unreachable_since,
    )


def _step(step: HookStep | None) -> StepStatus | None:
    if step is None:
        return None
    waits = tuple(
        HookWait(hook=each.name, reason=each.reason)
        for each in step.asked
        if each.decision is Decision.WAIT
    )
    return StepStatus(method=step.method, since=step.began_at, next_at=step.next_at, waits=waits)


@contextmanager
def published(
    record: PushRecord, regions: Mapping[str, Region], controller: str, kept: ObjectStore
) -> Iterator[Hear]:
    """Yield a function that publishes each record of a push in all of its regions.

    ``kept`` is the store of the push's records, that of one of ``regions``. Regions without a store
    are skipped. If the block ends with an error, nothing more is published: another controller may
    lead the push.
    """
    listed = {name: regions[name] for name in record.order.regions if name in regions}
    stores = [each.home for each in listed.values() if isinstance(each, StoreRegion)]
    if not stores:
        yield lambda record: None
        return
    publisher = PushStatusPublisher(stores, controller, _kept_in(kept, regions))
    try:
        yield publisher.hear
    except BaseException:
        publisher.close(last=False)
        raise
    publisher.close()


def _kept_in(kept: ObjectStore, regions: Mapping[str, Region]) -> KeptIn:
    for name, region in regions.items():
        if isinstance(region, StoreRegion) and region.home.store.url == kept.url:
            return KeptIn(region=name, url=kept.url)
    return KeptIn(region="", url=kept.url)


class PushStatusPublisher:
    """Publishes the status of one push in the stores of its regions."""

    def __init__(
        self,
        stores: Sequence[RegionStore],
        controller: str,
        kept_in: KeptIn,
        every_s: float = TELL_EVERY_S,
    ) -> None:
        self._kept_in = kept_in
        self._controller = controller
        self._every_s = every_s
        self._changed = threading.Condition()
        self._record: PushRecord | None = None
        self._number = 0
        self._closed = False
        self._threads = [
            threading.Thread(target=self._publish, args=(each,), daemon=True, name="push-status")
            for each in stores
        ]
        for thread in self._threads:
            thread.start()

    def hear(self, record: PushRecord) -> None:
        """Publish the newest record of the push; returns at once."""
        with self._changed:
            self._record, self._number = record, self._number + 1
            self._changed.notify_all()

    def close(self, last: bool = True) -> None:
        """Stop; with ``last``, after a short attempt to publish the newest record."""
        with self._changed:
            self._closed = True
            if not last:
                self._record = None
            self._changed.notify_all()
        until = time.monotonic() + _CLOSE_WITHIN_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _publish(self, region: RegionStore) -> None:
        published = 0
        while True:
            with self._changed:
                if not self._closed and self._number == published:
                    self._changed.wait(self._every_s)
                record, number, closed = self._record, self._number, self._closed
            if record is not None and not (closed and number == published):
                self._put(region, record, utc_now())
            published = number
            if closed:
                return

    def _put(self, region: RegionStore, record: PushRecord, now: datetime) -> None:
        leader = Leader(controller=self._controller, at=now)
        status = push_status(record, self._kept_in, leader)
        with suppress(RegionUnreachable), region.reached() as store:
            store.put(status_path(record.push_id), encode_push_status(status))
