"""Where a push stands, from a thread that leads it, or from looking at what its leader keeps.

    lead    ``leading.lead_held`` in a thread ─▶ each record that it keeps
    follow  the newest record, once a second; and that nobody leads the push, where that is so

Law of this file: whoever writes the data hears of each record and decides nothing by itself. A
leader that another one has deposed goes on as a follower. Nobody waits in silence for a leader
that is not there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ingester.pushes.driver import utc_now
from ingester.pushes.leading import Leadership, lead_held, led_by
from ingester.pushes.push_store import Deposed, HeldPush, PushStore
from ingester.pushes.record import Event, PushRecord
from persist.store import ObjectStore

LOOK_EVERY_S = 1.0
UNLED = "nobody leads this push"
UNLED_AFTER_S = 10.0
"""A controller that runs leads a push sooner than that."""
UNLED_AGAIN_S = 600.0


class Watch:
    """The records of one push, as they are kept."""

    def __init__(self, first: PushRecord) -> None:
        self._heard: queue.SimpleQueue[PushRecord | Event | BaseException] = queue.SimpleQueue()
        self.record = first
        """The newest record that was taken in."""

    def hear(self, record: PushRecord) -> None:
        """Take a record in, from any thread."""
        self._heard.put(record)

    def say(self, what: str) -> None:
        """Take in something that is not in a record, from any thread."""
        self._heard.put(Event(utc_now(), None, what))

    def fail(self, error: BaseException) -> None:
        """Take in that there will be no more records."""
        self._heard.put(error)

    def wait(self, timeout_s: float) -> Iterator[tuple[Event, PushRecord]]:
        """Wait until something happens, at most so long, and yield what has.

        Raises:
            StoreError, PushDamaged: The push can be neither led nor followed any more.
        """
        try:
            heard = self._heard.get(timeout=timeout_s)
        except queue.Empty:
            return
        while True:
            if isinstance(heard, BaseException):
                raise heard
            if isinstance(heard, Event):
                yield heard, self.record
            else:
                before, self.record = self.record, heard
                for event in new_events(before, heard):
                    yield event, heard
            try:
                heard = self._heard.get_nowait()
            except queue.Empty:
                return


def new_events(before: PushRecord, after: PushRecord) -> tuple[Event, ...]:
    """Return the events of the later record that the earlier one has not."""
    known, events = before.history, after.history
    for new in range(len(events) + 1):
        shared = events[: len(events) - new]
        if known[len(known) - len(shared) :] == shared:
            return events[len(events) - new :]
    return events


@contextmanager
def led(leadership: Leadership, held: HeldPush) -> Iterator[Watch]:
    """Lead the push in a thread within the ``with`` block; afterwards anybody may lead it."""

    def work(watch: Watch, stop: threading.Event) -> None:
        try:
            lead_held(leadership, held, stop, watch.hear)
        except Deposed:
            _follow(leadership.store, watch, stop)

    with _in_thread(held.record, work) as watch:
        yield watch


@contextmanager
def followed(store: ObjectStore, record: PushRecord) -> Iterator[Watch]:
    """Look at the push within the ``with`` block, which somebody else leads."""
    with _in_thread(record, lambda watch, stop: _follow(store, watch, stop)) as watch:
        yield watch


@contextmanager
def _in_thread(
    record: PushRecord, work: Callable[[Watch, threading.Event], None]
) -> Iterator[Watch]:
    watch, stop = Watch(record), threading.Event()

    def run() -> None:
        try:
            work(watch, stop)
        except BaseException as exc:
            watch.fail(exc)

    thread = threading.Thread(target=run, daemon=True, name="push-lead")
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join(10.0)


def _follow(store: ObjectStore, watch: Watch, stop: threading.Event) -> None:
    pushes, number = PushStore(store), 0
    unled_at = time.monotonic() + UNLED_AFTER_S
    while not stop.is_set():
        newest = pushes.newest(watch.record.push_id)
        if newest.number != number:
            number = newest.number
            watch.hear(newest.record)
        if newest.record.over:
            return
        if time.monotonic() >= unled_at:
            unled_at = time.monotonic() + UNLED_AFTER_S
            if led_by(store, newest.record.push_id) is None:
                unled_at = time.monotonic() + UNLED_AGAIN_S
                watch.say(
                    f"{UNLED}: an `ingester controller` has to run for its regions,"
                    f" or `ingester pushes resume {newest.record.push_id}`"
                )
        stop.wait(LOOK_EVERY_S)
