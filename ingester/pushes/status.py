"""The status of a push: made from its record, and published for the daemons of every region.

    published(…) ─▶ hear(record) ─▶ the newest one ─▶ a thread for each region ─▶ _push_status/<id>

The structs are `ingester.reports.pushes`. Publishing is best effort: an unreachable store is tried
again with the next record, or after a while, and delays neither the push nor other regions
(tests/pushes/test_status).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime

from ingester.pushes.driver import Hear, utc_now
from ingester.pushes.hook_steps import HookStep
from ingester.pushes.hooks import Decision
from ingester.pushes.record import PushRecord, RegionRecord
from ingester.pushes.regions.region import StoreRegion
from ingester.pushes.regions.store import RegionStore
from ingester.pushes.tasks import Region, RegionUnreachable
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
from persist.store import ObjectStore

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
