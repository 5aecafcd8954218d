"""The leader of a push: heartbeats tell others that it has one.

    _pushes/<push id>/leader     controller, at: overwritten by the leader every 5 s

    lead ─▶ take the push over ─▶ heartbeats in a thread ─▶ the driver, until the push is over
    see_through ─▶ lead it if it has no leader ─▶ otherwise wait for the leader to finish

The heartbeat is a hint; safety does not depend on it. A push without a recent heartbeat is taken
over, and if its former leader is alive after all, :class:`ingester.pushes.store.Deposed` stops it
(tests/pushes/test_two_controllers). Ages are measured by the store's clock.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import msgspec

from ingester.pushes.driver import DriverPace, Hear, HookPanel, PushDriver, utc_now
from ingester.pushes.record import PushRecord, decoded
from ingester.pushes.status import published
from ingester.pushes.store import FOLDER, LEADER, Deposed, HeldPush, PushStore, SavedRecord
from ingester.pushes.tasks import Region, Rules
from ingester.reports.pushes import Leader
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
