"""Who leads a push, so that others can tell that nobody does.

    _pushes/<push id>/leader     controller, at: overwritten by the leader every 5 s

    lead ─▶ take the push over ─▶ heartbeats in a thread ─▶ the driver, until the push is over
    see_through ─▶ lead it if nobody does ─▶ else wait for what its leader makes of it

Law of this file: the leader's file says who is likely to be at it, and nothing is safe because of
it. A push whose file is old is taken over by anybody, and if its leader lives after all,
:class:`ingester.pushes.push_store.Deposed` stops it. Ages are by the store's clock alone.
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

from ingester.pushes.driver import PACE, HookPanel, Pace, PushDriver, utc_now
from ingester.pushes.kept_json import decoded
from ingester.pushes.push_folders import LEADER
from ingester.pushes.push_store import FOLDER, Deposed, HeldPush, PushStore, Saved
from ingester.pushes.record import PushRecord
from ingester.pushes.regions import Region
from ingester.pushes.status_publisher import published
from ingester.pushes.tasks import Rules
from ingester.reports.pushes import (
    Leader,
)
from persist.store import NotFound, ObjectStore, StoreError

Hear = Callable[[PushRecord], None]


class Heartbeat(NamedTuple):
    """How often a leader is heard of, and when it is taken for gone."""

    every: timedelta = timedelta(seconds=5)
    gone_after: timedelta = timedelta(seconds=30)


HEARTBEAT = Heartbeat()
_decoder = msgspec.json.Decoder(Leader)


class Lead(NamedTuple):
    """Somebody who leads a push, or did: its name, and how long ago it was heard of."""

    controller: str
    age: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """What it takes to lead pushes that are kept in ``store``."""

    store: ObjectStore
    controller: str
    """The name of who leads; see :func:`controller_name`."""
    regions: Callable[[], Mapping[str, Region]]
    """Makes the regions anew for each push that is led."""
    panel: HookPanel
    rules: Rules
    pace: Pace = PACE
    heartbeat: Heartbeat = HEARTBEAT

    @property
    def pushes(self) -> PushStore:
        """The pushes in the store; one that is away is waited for."""
        return PushStore(self.store)


def controller_name() -> str:
    """Return a name for this process that no other one has: host, process, and a few digits."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


def leader_of(store: ObjectStore, push_id: str) -> Lead | None:
    """Return who led the push last, None where the push was left.

    Raises:
        StoreError: the store cannot be asked.
    """
    path = _path(push_id)
    found = store.exists(path)
    if found is None:
        return None
    try:
        name = decoded(_decoder, store.get(path)).controller
    except NotFound:
        return None
    except ValueError:
        name = "somebody"
    return Lead(name, store.now() - found.at)


def led_by(store: ObjectStore, push_id: str, heartbeat: Heartbeat = HEARTBEAT) -> Lead | None:
    """Return who leads the push, None where nobody does."""
    lead = leader_of(store, push_id)
    return lead if lead is not None and lead.age <= heartbeat.gone_after else None


@contextmanager
def heartbeats(
    store: ObjectStore, push_id: str, controller: str, heartbeat: Heartbeat
) -> Iterator[None]:
    """Be heard of as the push's leader within the ``with`` block.

    At its end the push is said to be left, unless the block ends in an error of the store. Who is
    deposed takes its own word back: it may have come after that of who leads now.
    """
    over = threading.Event()

    def tell() -> None:
        # Best effort: where it fails for long, another one takes over.
        with suppress(StoreError):
            told = Leader(controller=controller, at=utc_now())
            store.put(_path(push_id), msgspec.json.encode(told))

    def beat() -> None:
        while not over.wait(heartbeat.every.total_seconds()):
            tell()

    def leave() -> None:
        with suppress(StoreError):
            last = leader_of(store, push_id)
            if last is not None and last.controller == controller:
                store.delete(_path(push_id))

    tell()
    thread = threading.Thread(target=beat, daemon=True, name="push-leader")
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
        hear: is told of each record, in this thread.

    Raises:
        PushNotFound, PushDamaged: nothing can be led.
        ValueError: the push goes through a region that is not known here; it was not taken over.
        Deposed: another controller leads the push now.
        StoreError: the store stayed away; anybody may take the push over.
    """
    pushes = leadership.pushes
    newest = pushes.newest(push_id)
    if not needs_leading(newest, len(pushes.requests(push_id))):
        return newest.record
    regions = leadership.regions()
    check_regions(newest.record, regions)
    held = pushes.take_over(push_id, leadership.controller, utc_now())
    return lead_held(leadership, held, stop, hear, regions)


def lead_held(
    leadership: Leadership,
    held: HeldPush,
    stop: threading.Event,
    hear: Hear | None = None,
    regions: Mapping[str, Region] | None = None,
) -> PushRecord:
    """Lead a push that is held already, as one is that was just begun; see :func:`lead`."""
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


def check_regions(record: PushRecord, regions: Mapping[str, Region]) -> None:
    """Raise ValueError, naming them, if the push goes through regions that are not there."""
    missing = [name for name in record.order.regions if name not in regions]
    if missing:
        raise ValueError(
            f"push {record.push_id} goes through {', '.join(missing)}, which is not configured here"
        )


def needs_leading(saved: Saved, requests: int) -> bool:
    """Return whether there is anything to do for a push to which so many requests were made."""
    return not saved.record.over or requests > saved.record.requests


def see_through(
    leadership: Leadership,
    push_id: str,
    stop: threading.Event,
    hear: Hear | None = None,
) -> PushRecord:
    """Return the push's record once it is over, or ``stop`` is set, whoever leads it there.

    Where nobody leads the push, this process does.

    Raises:
        PushNotFound, PushDamaged, ValueError, StoreError: see :func:`lead`.
    """
    pushes = leadership.pushes
    told = 0
    while True:
        newest = pushes.newest(push_id)
        if newest.number != told and hear is not None:
            told = newest.number
            hear(newest.record)
        if not needs_leading(newest, len(pushes.requests(push_id))) or stop.is_set():
            return newest.record
        if led_by(leadership.store, push_id, leadership.heartbeat) is None:
            with suppress(Deposed):
                return lead(leadership, push_id, stop, hear)
        stop.wait(leadership.pace.poll.total_seconds())


def _path(push_id: str) -> str:
    return f"{FOLDER}/{push_id}/{LEADER}"
