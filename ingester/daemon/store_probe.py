"""Probes of the store: one small request every ten seconds, sooner while it is doubted.

    our own claim is there ──▶ the store answers, and it is the one that this daemon began with
    writes have failed     ──▶ a small object is put and deleted, where reads work

Law of this file: off the loop, and with a time-out of its own: a store that swallows requests, or a
file system that hangs, is found out all the same. What hangs holds one of ``MOST`` threads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from persist.manifest.paths import claim_path
from persist.store import ObjectStore, StoreError, StoreWatch, WatchedStore
from persist.store.probe import FOLDER

EVERY_S, DOUBTED_S = 10.0, 2.0
TIMEOUT_S = 5.0
MOST = 2


class StoreProbe:
    """Asks the store whether it is there. Loop only; the requests run in threads.

    Args:
        timeout_s: a request without an answer for so long has failed.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.watch = StoreWatch(self._doubt)
        """What the store's requests have come to."""
        self._loop = trio.lowlevel.current_trio_token()
        self._doubted = trio.Event()
        self._store: ObjectStore | None = None
        self._claim: str | None = None
        self._writes_at = f"{FOLDER}/alive"
        self._limiter = trio.CapacityLimiter(MOST)

    def watched(self, store: ObjectStore) -> ObjectStore:
        """Return the store with its requests noted; it is the one that is probed from now on."""
        self._store = WatchedStore(store, self.watch)
        return self._store

    def expect(self, ingester_id: str, epoch: int) -> None:
        """Take a store for another one, from now on, that lacks the claim of this epoch."""
        self._claim = claim_path(ingester_id, epoch)
        self._writes_at = f"{FOLDER}/{ingester_id}.{epoch}"

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            self._doubted = trio.Event()
            await self.probe()
            if self.watch.standing().state == "away":
                await trio.sleep(DOUBTED_S)
                continue
            with trio.move_on_after(EVERY_S):
                await self._doubted.wait()

    async def probe(self) -> None:
        """Ask once; what comes of it is in the watch."""
        if self._store is None:
            return
        _, writes_doubted = self.watch.doubted()
        await self._ask("exists", partial(self._look, self._store))
        # Not into an empty mount point.
        if writes_doubted and self.watch.standing().reads:
            await self._ask("put", partial(self._write, self._store))

    def _doubt(self) -> None:
        """Have a second opinion: a request has failed. Any thread."""
        with suppress(trio.RunFinishedError):
            self._loop.run_sync_soon(lambda: self._doubted.set(), idempotent=True)

    async def _ask(self, operation: str, ask: Callable[[], None]) -> None:
        with trio.move_on_after(self._timeout_s) as limit:
            await trio.to_thread.run_sync(
                partial(_quietly, ask), limiter=self._limiter, abandon_on_cancel=True
            )
        if limit.cancelled_caught:
            self.watch.unanswered(operation, self._timeout_s)

    def _look(self, store: ObjectStore) -> None:
        if self._claim is None:
            store.exists(f"{FOLDER}/alive")
        elif store.exists(self._claim) is None:
            self.watch.found(
                f"{store.url} lacks {self._claim}, which this daemon has put there: it was emptied,"
                " is another store, or is not mounted"
            )
        else:
            self.watch.found(None)

    def _write(self, store: ObjectStore) -> None:
        store.put(self._writes_at, b"")
        store.delete(self._writes_at)


def _quietly(ask: Callable[[], None]) -> None:
    """Ask; a failure is noted already."""
    with suppress(StoreError, OSError):
        ask()
