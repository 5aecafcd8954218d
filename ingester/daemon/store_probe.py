"""Probes the store: one small request every ten seconds, more often while it is in doubt.

    our own claim is read ──▶ the store is reachable, and the one this daemon started with
    a later claim of our id exists ──▶ another process has started under it
    another kind of request failed or is overdue ──▶ one of that kind
                              (a write is a small object that is created and deleted)
    nothing was written for five minutes ──▶ such a write: a store may be readable only

The probes run in threads with a time-out of their own, so that a store that never answers, or a
file system that hangs, is detected. A hanging probe occupies one of its operation's ``MOST``
threads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from persist.manifest.paths import claim_path
from persist.store import ObjectNotFound, ObjectStore, StoreError, StoreWatch, WatchedStore
from persist.store.opening import FOLDER

EVERY_S, DOUBTED_S = 10.0, 2.0
TIMEOUT_S = 5.0
WRITES_EVERY_S = 300.0
"""A store that was not written to for this long gets a probing write."""
MOST = 2


class StoreProbe:
    """Asks whether the store is reachable. Loop only; the requests run in threads.

    Args:
        timeout_s: a request without an answer for this long has failed.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.watch = StoreWatch(self._doubt)
        """What the store's requests have come to."""
        self._loop = trio.lowlevel.current_trio_token()
        self._doubted = trio.Event()
        self._store: ObjectStore | None = None
        self._claim: str | None = None
        self._later_claim: str | None = None
        self.superseded = False
        """Whether another process has claimed this ingester's id since."""
        self._writes_at = f"{FOLDER}/alive"
        self._limiters: dict[str, trio.CapacityLimiter] = {}

    def watched(self, store: ObjectStore) -> ObjectStore:
        """Return the store with its requests counted; it is probed from now on."""
        self._store = WatchedStore(store, self.watch)
        return self._store

    def expect(self, ingester_id: str, epoch: int) -> None:
        """From now on require the claim of this epoch in the store."""
        self._claim = claim_path(ingester_id, epoch)
        self._later_claim = claim_path(ingester_id, epoch + 1)
        self._writes_at = f"{FOLDER}/{ingester_id}.{epoch}"

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            self._doubted = trio.Event()
            await self.probe()
            if self.watch.status().state == "away":
                await trio.sleep(DOUBTED_S)
                continue
            with trio.move_on_after(EVERY_S):
                await self._doubted.wait()

    async def probe(self) -> None:
        """Probe once; the result is in ``watch``."""
        if self._store is None:
            return
        store, doubted = self._store, self.watch.doubted()
        is_there = await self._ask("get", partial(self._look, store))
        if is_there and self._later_claim is not None and not self.superseded:
            self.superseded = await self._ask("exists", partial(self._is_later, store))
        for kind in sorted(doubted & _AGAIN.keys()):
            await self._ask(kind, partial(_AGAIN[kind], store))
        # Not into an empty mount point.
        if is_there and ("write" in doubted or self._is_quiet()):
            await self._ask("put", partial(self._write, store))

    def _is_quiet(self) -> bool:
        """Whether the last write is too old to show that the store accepts writes."""
        return self._claim is not None and self.watch.quiet_s("write") > WRITES_EVERY_S

    def _doubt(self) -> None:
        """Probe soon: a request has failed. Any thread."""
        with suppress(trio.RunFinishedError):
            self._loop.run_sync_soon(lambda: self._doubted.set(), idempotent=True)

    async def _ask(self, operation: str, ask: Callable[[], bool]) -> bool:
        """Call the store in a thread; return its result, or False without an answer in time.

        Each operation has its own threads: one that hangs does not affect the others.
        """
        limiter = self._limiters.setdefault(operation, trio.CapacityLimiter(MOST))
        with trio.move_on_after(self._timeout_s):
            return await trio.to_thread.run_sync(
                partial(_quietly, ask), limiter=limiter, abandon_on_cancel=True
            )
        self.watch.unanswered(operation, self._timeout_s)
        return False

    def _look(self, store: ObjectStore) -> bool:
        """Read our claim: a store may list an object and fail to return it."""
        claim = self._claim
        try:
            store.get(claim or f"{FOLDER}/alive")
        except ObjectNotFound:
            if claim is None:
                return True
            self.watch.found(
                f"{store.url} lacks {claim}, which this daemon has put there: it was emptied,"
                " is another store, or is not mounted"
            )
            return False
        self.watch.found(None)
        return True

    def _is_later(self, store: ObjectStore) -> bool:
        return self._later_claim is not None and store.exists(self._later_claim) is not None

    def _write(self, store: ObjectStore) -> bool:
        store.put(self._writes_at, b"")
        store.delete(self._writes_at)
        return True


def _exists(store: ObjectStore) -> bool:
    store.exists(f"{FOLDER}/alive")
    return True


def _list(store: ObjectStore) -> bool:
    next(store.list(f"{FOLDER}/"), None)
    return True


_AGAIN: dict[str, Callable[[ObjectStore], bool]] = {"exists": _exists, "list": _list}
"""The probes of operations that are in doubt."""


def _quietly(ask: Callable[[], bool]) -> bool:
    """Call, and return the result; a failure is already counted."""
    try:
        return ask()
    except (StoreError, OSError):
        return False
