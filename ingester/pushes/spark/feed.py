"""The records of a push as they are saved: from a thread that leads it, or by following its leader.

    led        ``leading.lead_held`` in a thread ─▶ each record it saves
    followed   the newest record, once a second; and a warning while the push has no leader

The driver that writes the data only listens. A deposed leader continues as a follower. Regions that
a job leads count with Spark the nulls that manifests do not know.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ingester.pushes.config import PushConfig, RegionSettings
from ingester.pushes.driver import HookPanel, utc_now
from ingester.pushes.hooks import Comparison, VersionStatistics
from ingester.pushes.leading import Leadership, lead_held, led_by
from ingester.pushes.record import HistoryEvent, PushRecord, new_events
from ingester.pushes.regions.region import StoreRegion, open_regions, statistics_of
from ingester.pushes.spark.frames import named
from ingester.pushes.store import Deposed, HeldPush, PushStore
from ingester.spark.read.read_table import read_table
from persist.manifest import Manifest
from persist.store import ObjectStore

LOOK_EVERY_S = 1.0
UNLED = "this push has no leader"
UNLED_AFTER_S = 10.0
"""A running controller takes a push over sooner."""
UNLED_AGAIN_S = 600.0


class RecordFeed:
    """The saved records of one push."""

    def __init__(self, first: PushRecord) -> None:
        self._heard: queue.SimpleQueue[PushRecord | HistoryEvent | BaseException] = (
            queue.SimpleQueue()
        )
        self.record = first
        """The newest record that was yielded."""

    def hear(self, record: PushRecord) -> None:
        """Add a record; from any thread."""
        self._heard.put(record)

    def say(self, what: str) -> None:
        """Add an event that is not in a record; from any thread."""
        self._heard.put(HistoryEvent(utc_now(), None, what))

    def fail(self, error: BaseException) -> None:
        """End the feed with an error; from any thread."""
        self._heard.put(error)

    def wait(self, timeout_s: float) -> Iterator[tuple[HistoryEvent, PushRecord]]:
        """Wait for events, at most ``timeout_s``, and yield them.

        Raises:
            StoreError, PushDamaged: the push can no longer be led or followed.
        """
        try:
            heard = self._heard.get(timeout=timeout_s)
        except queue.Empty:
            return
        while True:
            if isinstance(heard, BaseException):
                raise heard
            if isinstance(heard, HistoryEvent):
                yield heard, self.record
            else:
                before, self.record = self.record, heard
                for event in new_events(before, heard):
                    yield event, heard
            try:
                heard = self._heard.get_nowait()
            except queue.Empty:
                return


@contextmanager
def led(leadership: Leadership, held: HeldPush) -> Iterator[RecordFeed]:
    """Lead the push in a thread within the ``with`` block."""

    def work(feed: RecordFeed, stop: threading.Event) -> None:
        try:
            lead_held(leadership, held, stop, feed.hear)
        except Deposed:
            _follow(leadership.store, feed, stop)

    with _in_thread(held.record, work) as feed:
        yield feed


@contextmanager
def followed(store: ObjectStore, record: PushRecord) -> Iterator[RecordFeed]:
    """Follow a push with another leader within the ``with`` block."""
    with _in_thread(record, lambda feed, stop: _follow(store, feed, stop)) as feed:
        yield feed


@contextmanager
def _in_thread(
    record: PushRecord, work: Callable[[RecordFeed, threading.Event], None]
) -> Iterator[RecordFeed]:
    feed, stop = RecordFeed(record), threading.Event()

    def run() -> None:
        try:
            work(feed, stop)
        except BaseException as exc:
            feed.fail(exc)

    thread = threading.Thread(target=run, daemon=True, name="push-lead")
    thread.start()
    try:
        yield feed
    finally:
        stop.set()
        thread.join(10.0)


def _follow(store: ObjectStore, feed: RecordFeed, stop: threading.Event) -> None:
    pushes, number = PushStore(store), 0
    unled_at = time.monotonic() + UNLED_AFTER_S
    while not stop.is_set():
        newest = pushes.newest(feed.record.push_id)
        if newest.number != number:
            number = newest.number
            feed.hear(newest.record)
        if newest.record.over:
            return
        if time.monotonic() >= unled_at:
            unled_at = time.monotonic() + UNLED_AFTER_S
            if led_by(store, newest.record.push_id) is None:
                unled_at = time.monotonic() + UNLED_AGAIN_S
                feed.say(
                    f"{UNLED}: run an `ingester controller` for its regions,"
                    f" or `ingester pushes resume {newest.record.push_id}`"
                )
        stop.wait(LOOK_EVERY_S)


# ------------------------------------------------------------ leading in a job: complete statistics


class NullCounter:
    """Counts nulls in the tables of regions. Thread-safe."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str, int, int, str], int] = {}

    def count(
        self,
        region: RegionSettings,
        table: tuple[str, str],
        version: tuple[int, int],
        columns: Collection[str],
    ) -> dict[str, int]:
        """Return the number of nulls in these columns.

        Args:
            version: the generation, and the version of its manifest.

        Raises:
            ManifestError, StoreError, TailUnavailable: they cannot be counted now.
        """
        with self._lock:  # two hooks share one count
            keys = {name: (region.url, *table, *version, name) for name in columns}
            missing = [name for name, key in keys.items() if key not in self._known]
            if missing:
                frame = read_table(
                    self._spark,
                    region.url,
                    *table,
                    version=version[1],
                    table_version=version[0],
                    store_options=region.store_options,
                )
                counts = [F.count(F.when(named(name).isNull(), 1)) for name in missing]
                [row] = frame.agg(*counts).collect()
                self._known.update({keys[name]: row[i] for i, name in enumerate(missing)})
            return {name: self._known[key] for name, key in keys.items()}


@dataclass(slots=True, kw_only=True)
class CountingRegion(StoreRegion):
    """A region with complete statistics."""

    settings: RegionSettings
    counter: NullCounter

    def statistics(self, push: PushRecord) -> Comparison | None:
        """Return the statistics of both generations; None before the push's data."""
        found = StoreRegion.statistics(self, push)
        if found is None:
            return None
        current = None if found.current is None else self._completed(push, found.current)
        return Comparison(self._completed(push, found.new), current)

    def _completed(self, push: PushRecord, said: VersionStatistics) -> VersionStatistics:
        if None not in said.nulls.values():
            return said
        with self.home.reached() as store:
            table = (push.namespace, push.table)
            state = Manifest(store, *table, said.table_version).load()
            said = statistics_of(state)
            unknown = [name for name, nulls in said.nulls.items() if nulls is None]
            version = (said.table_version, state.version)
            counted = self.counter.count(self.settings, table, version, unknown)
        nulls = {**said.nulls, **counted}
        return VersionStatistics(said.table_version, said.rows, said.bytes, nulls)


def leadership_of(
    config: PushConfig, store: ObjectStore, name: str, panel: HookPanel, spark: SparkSession
) -> Leadership:
    """Return the leadership of a push in ``store``; ``name`` is the leader."""
    counter = NullCounter(spark)

    def regions() -> Mapping[str, StoreRegion]:
        plain = open_regions(config.regions)
        return {
            each.name: CountingRegion(
                plain[each.name].home,
                plain[each.name].daemons,
                plain[each.name].peers,
                settings=each,
                counter=counter,
            )
            for each in config.regions
        }

    return Leadership(
        store=store, controller=name, regions=regions, panel=panel, rules=config.rules()
    )
