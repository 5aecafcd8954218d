"""Uploads that are tried until the store takes them, in threads that give way.

Law of this file: loop only; the work runs in threads of its own. What the store does not take now
is tried again, with a new name each time; what no file can be made of is the caller's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from random import Random

import structlog
import trio

from ingester.buffer import BufferHandle
from ingester.memory import MemoryLedger
from ingester.uploading import CannotEncode, Upload, Uploader
from persist.backoff import Backoff
from persist.budget import ByteBudget
from persist.manifest import TableState
from persist.store import StoreError

log = structlog.get_logger(__name__)

NICENESS = 10
JOB_BYTES = 48 << 20
"""Buffers that are sorted and encoded at the same time, in bytes; a larger one goes alone. What a
job costs in memory comes on top of the buffers, which stay readable until the commit."""


def _give_way() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class Uploads:
    """Loop only."""

    def __init__(self, uploader: Uploader, ledger: MemoryLedger, *, workers: int) -> None:
        self.on_failed: Callable[[], None] = lambda: None
        self._uploader = uploader
        self._ledger = ledger
        self._limiter = trio.CapacityLimiter(workers)
        # Threads of their own: they give way to those that acknowledge writes and answer queries.
        self._threads = ThreadPoolExecutor(workers, "persist", initializer=_give_way)
        self._budget = ByteBudget(JOB_BYTES)

    async def first(self, handle: BufferHandle) -> Upload:
        """A buffer's first upload, of which only so many go on at a time.

        Raises:
            CannotEncode: no file can be made of it now.
        """
        nbytes = handle.nbytes
        async with self._budget.spent(nbytes):
            self._ledger.jobs += nbytes
            try:
                return await self.until_done(handle)
            finally:
                self._ledger.jobs -= nbytes

    async def until_done(
        self,
        handle: BufferHandle,
        base: TableState | None = None,
        *,
        after_seq: int = -1,
        left_out: Collection[int] = (),
    ) -> Upload:
        """Upload a buffer, or what is left of it, as the table is at ``base``, or now.

        Raises:
            CannotEncode: no file can be made of it now.
        """
        backoff = Backoff(0.1, 10.0, Random())
        while True:
            try:
                state = handle.partition.table.state if base is None else base
                return await self._run(
                    partial(self._uploader.upload, handle, state, after_seq, left_out)
                )
            except (StoreError, OSError) as exc:
                wait_s = backoff.next_s()
                self.on_failed()
                log.warning(
                    "upload failed, trying again",
                    table=handle.partition.table.key,
                    partition=handle.partition.name,
                    error=str(exc),
                    wait_s=round(wait_s, 3),
                    runbook="store-away",
                )
                await trio.sleep(wait_s)
            except CannotEncode:
                self.on_failed()
                log.exception(
                    "buffer cannot be encoded",
                    table=handle.partition.table.key,
                    partition=handle.partition.name,
                    runbook="persist-failing",
                )
                raise

    async def _run(self, upload: Callable[[], Upload]) -> Upload:
        """In a thread. Its error is let go of when the caller does: it holds the rows."""
        running = self._threads.submit(upload)
        try:
            # Not the result itself: trio would keep the error until a collection.
            await trio.to_thread.run_sync(wait, [running], limiter=self._limiter)
            return running.result()
        finally:
            del running
