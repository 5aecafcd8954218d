"""Publishes tables in open formats, behind their commits (:mod:`persist.publish`).

    version installed ─▶ due ─▶ ``publish.interval`` after the last time ─▶ a thread publishes
                          ▲                                                    │
                          └───────────────── failed, or newer by now ──────────┘

Which tables, in which formats: the settings and the table's own property, looked at with each
version, so a table is switched on and off while the daemon runs. Nothing here delays a commit, and
no row depends on it. A daemon that is killed leaves no trace: the next publisher continues
(tests/publishing). Event loop only; threads publish, each table in one at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import TypeVar, cast

import structlog
import trio

from ingester.buffer import TableBuffer
from ingester.config.settings import Settings
from ingester.errors import BadRequest, IngesterError
from ingester.observability.metrics import Metrics
from ingester.observability.status import PublishedFormat, PublishStatus
from ingester.registering import CatalogEntries
from ingester.tables.catalog import Catalog
from ingester.tables.opening import Shared, TableParts
from persist.backoff import Backoff
from persist.manifest import ManifestError, TableState
from persist.publish.format import FormatName
from persist.publish.listing import pinned_tables
from persist.publish.publisher import FormatStatus, Publisher
from persist.publish.steps import NotPublishable
from persist.store import ObjectStore, StoreError
from persist.switching import load_current
from persist.table import TableDefinition, TableKey

log = structlog.get_logger(__name__)

T = TypeVar("T")

THREADS = 2
LOOKS_EVERY = 10
"""Number of ``manifest.refresh`` periods between two looks for others' versions."""
RETRY_FIRST_S, RETRY_CAP_S = 1.0, 30.0
_FAILURES = (StoreError, ManifestError, OSError)


@dataclass(slots=True, eq=False)
class _Table:
    """A table that is published, or was until its switching off is carried out."""

    table: TableBuffer
    publisher: Publisher
    cleaner: Publisher
    """Deletes old metadata, which takes minutes on some stores: publishing does not wait for it."""
    formats: tuple[FormatName, ...] = ()
    leaving: set[FormatName] = field(default_factory=set)
    """Formats that were switched off."""
    told: dict[FormatName, FormatStatus] = field(default_factory=dict)
    """The result of the last attempt in each format."""
    upto: TableState | None = None
    """The version that was published up to."""
    waits: bool = False
    lock: trio.Lock = field(default_factory=trio.Lock)
    """Held while a thread uses the publisher."""
    began_at: float = float("-inf")
    backoff: Backoff | None = None
    """The waits between failed attempts; None after a success."""

    def versions_since(self) -> int:
        """Return the number of versions that were committed since the last attempt."""
        state, upto = self.table.state, self.upto
        if upto is None or state.place == upto.place:
            return 0
        same = state.table_version == upto.table_version
        return max(1, state.version - upto.version) if same else 1

    def is_behind(self, name: FormatName) -> bool:
        """Return whether a version is not published; a refused one counts as published."""
        told = self.told.get(name)
        if told is None or self.versions_since():
            return True
        return told.refused is None and (told.versions_behind > 0 or told.error is not None)


class Publishing:
    """Publishes the open tables of a daemon."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        metrics: Metrics,
        entries: CatalogEntries | None = None,
    ) -> None:
        """``entries`` follows what is published as Iceberg."""
        self._catalog, self._settings, self._metrics = catalog, settings, metrics
        self._entries = entries
        self._tables: dict[TableKey, _Table] = {}
        self._due: list[tuple[float, int, _Table]] = []
        """A heap by the time at which each table may be published."""
        self._numbers = count()
        self._running = 0
        self._changed = trio.Event()
        self._stopping = False
        self._behind: dict[tuple[TableKey, FormatName], float] = {}
        """Since when the oldest unpublished version waits, by the loop's clock."""
        self._refused: set[tuple[TableKey, FormatName]] = set()
        # A limiter of its own, so that no other store call waits for publishing.
        self._limiter = trio.CapacityLimiter(THREADS)
        self._random = Random()
        catalog.commits.followers.append(self.note)

    # Definitions

    def check_definition(self, key: TableKey, definition: TableDefinition) -> None:
        """Raise :class:`BadRequest` if a format that a table asks for cannot express it."""
        publisher = Publisher(self._catalog.store, *key)
        for name in cast(tuple[FormatName, ...], definition.publish or ()):
            if reasons := publisher.unsupported(name, definition):
                raise BadRequest(str(NotPublishable(name, key, reasons)))

    def formats_of(self, table: TableBuffer) -> tuple[FormatName, ...]:
        """Return the formats that a table is to be published in."""
        found = self._settings.formats_of(*table.key, table.definition.publish)
        return cast(tuple[FormatName, ...], found)

    # Status

    def statistics(self) -> PublishStatus:
        """Return the totals."""
        now = trio.current_time()
        return PublishStatus(
            tables=len(self._tables),
            behind=len({key for key, _ in self._behind}),
            seconds_behind=round(now - min(self._behind.values(), default=now), 3),
            stopped=len({key for key, _ in self._refused}),
        )

    def of_table(self, key: TableKey) -> list[PublishedFormat]:
        """Return how far a table is published in each of its formats."""
        one = self._tables.get(key)
        return [] if one is None else [self._status(one, name) for name in one.formats]

    def all(self) -> Iterator[tuple[TableKey, PublishedFormat]]:
        """Yield each published table in each of its formats."""
        for key in self._tables:
            for status in self.of_table(key):
                yield key, status

    def _status(self, one: _Table, name: FormatName) -> PublishedFormat:
        now, told = trio.current_time(), one.told.get(name)
        head = None if told is None else told.head
        return PublishedFormat(
            format=name,
            number=None if head is None else head.place.number,
            location=None if head is None else head.location,
            versions_behind=None if told is None else told.versions_behind + one.versions_since(),
            seconds_behind=round(now - self._behind.get((one.table.key, name), now), 3),
            refused=None if told is None else told.refused,
            error=None if told is None else told.error,
        )

    # What is due

    def note(self, table: TableBuffer) -> None:
        """Record that a table has a new version or was opened."""
        one, formats = self._tables.get(table.key), self.formats_of(table)
        if one is None:
            if not formats:
                return
            store = self._catalog.store
            one = _Table(table, Publisher(store, *table.key), Publisher(store, *table.key))
            self._tables[table.key] = one
        if formats != one.formats:
            self._switch(one, formats)
        self._plan(one)

    def _switch(self, one: _Table, formats: tuple[FormatName, ...]) -> None:
        gone = set(one.formats) - set(formats)
        one.leaving = (one.leaving | gone) - set(formats)
        one.formats = formats
        for name in gone:
            one.told.pop(name, None)
            self._behind.pop((one.table.key, name), None)
            self._refused.discard((one.table.key, name))
        log.info("publishing switched", table=one.table.key, formats=list(formats))

    def _plan(self, one: _Table, *, again: bool = False) -> None:
        """Make a table due if something of it is not published; with ``again`` also if that was
        refused.
        """
        now = trio.current_time()
        behind = [name for name in one.formats if one.is_behind(name)]
        for name in behind:
            if (told := one.told.get(name)) is None or told.refused is None:
                self._behind.setdefault((one.table.key, name), now)
        refused = again and any(told.refused for told in one.told.values())
        if one.waits or one.lock.locked() or not (behind or one.leaving or refused):
            return
        wait_s = 0.0 if one.backoff is None else one.backoff.next_s()
        at = max(now + wait_s, one.began_at + self._settings.publish.interval)
        one.waits = True
        heapq.heappush(self._due, (at, next(self._numbers), one))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # Publishing

    async def run(self) -> None:
        """Publish what is due, and look for others' versions, until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(THREADS):
                nursery.start_soon(self._work)
            nursery.start_soon(self._open_published)
            nursery.start_soon(self._look)
            if self._entries is not None:
                nursery.start_soon(self._entries.run)

    async def catch_up(self) -> None:
        """Publish what is due now, once, while :meth:`run` runs."""
        self._stopping = True
        self._wake()
        while self._due or self._running:
            await self._changed.wait()

    async def clean_up(self, table: TableBuffer) -> int:
        """Delete metadata that no kept version needs, and return the number of deleted objects.

        Raises:
            StoreError: the next clean-up deletes the rest.
        """
        one = self._tables.get(table.key)
        if one is None or not one.formats:
            return 0
        of = self._settings.manifest
        call = partial(
            one.cleaner.clean_up, one.formats, retain_s=of.retain, grace_s=of.orphan_grace
        )
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True)

    async def _open_published(self) -> None:
        """Open the published tables that this daemon has written: it may have stopped before it
        published their last versions.
        """
        backoff = Backoff(RETRY_FIRST_S, RETRY_CAP_S, self._random)
        own = partial(written_by, self._catalog.store, self._settings.id)
        while True:
            try:
                for key in await self._in_thread(own):
                    await self._catalog.open(*key)
            except (*_FAILURES, IngesterError) as exc:
                log.warning("published tables not opened", error=str(exc), runbook="store-away")
                await trio.sleep(backoff.next_s())
            else:
                return

    async def _look(self) -> None:
        every_s = LOOKS_EVERY * self._settings.manifest.refresh
        while True:
            await trio.sleep(every_s)
            for one in list(self._tables.values()):
                await self._catalog.look(one.table, every_s)
                self._plan(one, again=True)

    async def _work(self) -> None:
        while True:
            one = await self._next()
            self._running += 1
            try:
                await self._publish(one)
            finally:
                self._running -= 1
                self._wake()

    async def _next(self) -> _Table:
        while True:
            changed = self._changed
            at = self._due[0][0] if self._due else float("inf")
            if self._due and (self._stopping or at <= trio.current_time()):
                one = heapq.heappop(self._due)[2]
                one.waits = False
                return one
            with trio.move_on_at(at):
                await changed.wait()

    async def _publish(self, one: _Table) -> None:
        async with one.lock:
            one.began_at = trio.current_time()
            failed = not await self._attempt(one)
            self._metrics.published(trio.current_time() - one.began_at, failed)
        if not failed:
            one.backoff = None
        elif one.backoff is None:
            one.backoff = Backoff(RETRY_FIRST_S, RETRY_CAP_S, self._random)
        if not one.formats and not one.leaving:
            self._tables.pop(one.table.key, None)
        elif not (failed and self._stopping):
            self._plan(one)  # a newer version may exist by now

    async def _attempt(self, one: _Table) -> bool:
        """Publish a table's version in all its formats; return whether none has failed."""
        state, formats, leaving = one.table.state, one.formats, set(one.leaving)
        retain_s = self._settings.manifest.retain

        def publish() -> list[FormatStatus]:
            for name in leaving:
                one.publisher.switch_off(name)
            return one.publisher.publish(formats, retain_s=retain_s, upto=state) if formats else []

        try:
            told = await self._in_thread(publish)
        except _FAILURES as exc:
            _log_failure(one, str(exc))
            return False
        except Exception:
            # A fault here must not end a daemon that holds rows.
            log.exception("table not published", table=one.table.key, runbook="internal-error")
            return False
        one.upto, one.leaving = state, one.leaving - leaving
        for status in told:
            self._take(one, status)
        return all(status.error is None for status in told)

    def _take(self, one: _Table, status: FormatStatus) -> None:
        """Take the result of an attempt in one format."""
        name, key, refused = status.format, one.table.key, status.refused
        if name not in one.formats:
            return  # switched off meanwhile
        before, one.told[name] = one.told.get(name), status
        if status.versions_behind and refused is None:
            self._behind[key, name] = trio.current_time() - status.seconds_behind
        elif status.error is None:
            self._behind.pop((key, name), None)
        if status.error is not None:
            _log_failure(one, status.error, name)
        if refused is not None:
            self._refused.add((key, name))
            if before is None or before.refused != refused:
                log.warning(
                    "publishing stopped",
                    table=key,
                    format=name,
                    reason=refused,
                    runbook="publish-stopped",
                )
        elif (key, name) in self._refused and status.error is None:
            self._refused.discard((key, name))
            log.info("publishing resumed", table=key, format=name)
        head, earlier = status.head, None if before is None else before.head
        if self._entries is not None and name == "iceberg" and head not in (None, earlier):
            self._entries.note(key)
        if head is not None and earlier is None:
            at = {"number": head.place.number, "location": head.location}
            log.info("table published", table=key, format=name, **at)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        # Abandoned at a stop: what the thread leaves undone, the next publisher does.
        return await trio.to_thread.run_sync(call, limiter=self._limiter, abandon_on_cancel=True)


def written_by(store: ObjectStore, ingester_id: str) -> list[TableKey]:
    """The tables of a store that are published, and that this daemon has written. Blocks."""
    return [key for key in pinned_tables(store) if ingester_id in load_current(store, *key).writers]


def _log_failure(one: _Table, error: str, name: FormatName | None = None) -> None:
    log.warning(
        "table not published",
        table=one.table.key,
        format=name,
        error=error,
        runbook="publish-behind",
    )


def open_publishing(shared: Shared, tables: TableParts) -> Publishing:
    """Return the publisher of tables, which follows their versions. On the loop.

    Raises:
        ConfigError: a catalogue is set, and the extra ``iceberg`` is not installed.
    """
    options = shared.settings.catalog_options
    entries = CatalogEntries(shared.store, options) if options else None
    return Publishing(tables.catalog, shared.settings, shared.metrics, entries)
