"""Drives a shipper without a log: the test submits, and sees what is applied or answered."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from ingester.store_log.cleaner import KeptObject
from ingester.store_log.shipper import ShipHooks, ShipLimits, Shipper
from persist.manifest import Fenced, WriterIdentity
from tests.store_log.held_store import EPOCH, ID, HeldStore
from wal import Entry, LogError, RecordKind, Route

WRITER = WriterIdentity(ID, "incarnation-3", EPOCH)
AT_ONCE = ShipLimits(interval_s=0.0)


class Ship:
    """A shipper, and what it told its hooks."""

    def __init__(self, store: HeldStore, limits: ShipLimits = AT_ONCE, **hooks: Any) -> None:
        self.store = store
        self.answers: dict[Entry, LogError | None] = {}
        """By entry, in order: None if it was shipped, or its error."""
        self.acknowledged: list[KeptObject] = []
        self.fences: list[Fenced] = []
        self.flushing: list[str] = []
        self.flushed = trio.Event()
        """Flushes end when the test sets it."""
        self._sequences = itertools.count(1)
        self._changed = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self.shipper = Shipper(
            store,
            WRITER,
            limits,
            ShipHooks(
                **{
                    "shipped": self._shipped,
                    "flush": self._flush,
                    "catch_up": lambda: None,
                    "open_segment": lambda: 9,
                    "acknowledged": self._noted(self.acknowledged),
                    "fenced": self._noted(self.fences),
                    **hooks,
                }
            ),
        )

    def _shipped(self, entries: Sequence[Entry], error: LogError | None) -> None:
        for entry in entries:
            assert entry not in self.answers, "an entry is answered once"
            self.answers[entry] = error
        self._token.run_sync_soon(self._ring)

    def _noted(self, into: list[Any]) -> Callable[[Any], None]:
        def note(what: Any) -> None:
            into.append(what)
            self._ring()

        return note

    async def _flush(self, table: str) -> None:
        self.flushing.append(table)
        self._ring()
        await self.flushed.wait()

    def _ring(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, happened: Callable[[], bool]) -> None:
        """Return when the condition holds; checked after each call of a hook."""
        while not happened():
            await self._changed.wait()

    def entry(self, *routes: Route, nbytes: int = 10, segment: int = 1) -> Entry:
        """An entry as the log has numbered it."""
        entry = Entry(RecordKind.OPERATION, [bytes(nbytes)])
        entry.routes, entry.at_store = routes, True
        entry.seq, entry.segment = next(self._sequences), segment
        return entry

    def write(self, *entries: Entry) -> None:
        """Hand over a group, as the thread that writes the log does."""
        taken = [entry for entry in entries if self.shipper.takes(entry)]
        self.shipper.submit(taken)
        self.shipper.announce()

    async def write_one(self, **more: Any) -> Entry:
        """Write an entry, and return when its object is acknowledged."""
        entry = self.entry(**more)
        before = len(self.acknowledged)
        self.write(entry)
        # The first object of all has no entry.
        await self.until(lambda: entry in self.answers and len(self.acknowledged) > max(before, 1))
        assert self.answers[entry] is None
        return entry


@asynccontextmanager
async def shipping(
    store: HeldStore, limits: ShipLimits = AT_ONCE, **hooks: Any
) -> AsyncIterator[Ship]:
    """A running shipper, which is cancelled at the end."""
    ship = Ship(store, limits, **hooks)
    async with trio.open_nursery() as nursery:
        await nursery.start(ship.shipper.run)
        yield ship
        nursery.cancel_scope.cancel()
