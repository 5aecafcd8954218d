"""Tells the daemons of each region where a push stands, as it goes on.

    published(…) ─▶ hear(record) ─▶ the newest one ─▶ a thread for each region ─▶ _push_status/<id>

Law of this file: best effort. A region's store that is away is tried again with the next record, or
after a while; it holds up neither the push nor what other regions are told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime

from ingester.pushes.driver import Hear, utc_now
from ingester.pushes.push_status import push_status
from ingester.pushes.record import PushRecord
from ingester.pushes.regions import Region, RegionUnreachable
from ingester.pushes.store_region.region import StoreRegion
from ingester.pushes.store_region.store import RegionStore
from ingester.reports.pushes import (
    TELL_EVERY_S,
    KeptIn,
    Leader,
    encode_push_status,
    status_path,
)
from persist.store import ObjectStore

_LAST_S = 3.0
"""A publisher that is closed tells the last record to whoever can be reached within this time."""


@contextmanager
def published(
    record: PushRecord, regions: Mapping[str, Region], controller: str, kept: ObjectStore
) -> Iterator[Hear]:
    """Give a function that takes each record of a push and has its regions' daemons told.

    The push is kept in ``kept``, the store of one of ``regions``, be it one of the push's or not.
    Regions that are no stores are told nothing. When the block ends in an error, another controller
    may lead the push, so that nothing more is told of it.
    """
    listed = {name: regions[name] for name in record.order.regions if name in regions}
    stores = [each.home for each in listed.values() if isinstance(each, StoreRegion)]
    if not stores:
        yield lambda record: None
        return
    publisher = StatusPublisher(stores, controller, _kept_in(kept, regions))
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


class StatusPublisher:
    """Publishes the status of a push that one controller leads, into the stores of its regions."""

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
            threading.Thread(target=self._tell, args=(each,), daemon=True, name="push-status")
            for each in stores
        ]
        for thread in self._threads:
            thread.start()

    def hear(self, record: PushRecord) -> None:
        """Take the newest record of the push; returns at once."""
        with self._changed:
            self._record, self._number = record, self._number + 1
            self._changed.notify_all()

    def close(self, last: bool = True) -> None:
        """End; with ``last`` the newest record is told before, to whom that is quickly done."""
        with self._changed:
            self._closed = True
            if not last:
                self._record = None
            self._changed.notify_all()
        until = time.monotonic() + _LAST_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _tell(self, region: RegionStore) -> None:
        told = 0
        while True:
            with self._changed:
                if not self._closed and self._number == told:
                    self._changed.wait(self._every_s)
                record, number, closed = self._record, self._number, self._closed
            if record is not None and not (closed and number == told):
                self._put(region, record, utc_now())
            told = number
            if closed:
                return

    def _put(self, region: RegionStore, record: PushRecord, now: datetime) -> None:
        leader = Leader(controller=self._controller, at=now)
        status = push_status(record, self._kept_in, leader)
        with suppress(RegionUnreachable), region.reached() as store:
            store.put(status_path(record.push_id), encode_push_status(status))
