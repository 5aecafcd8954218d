"""Uploads with retries, in threads that yield to writes and queries.

    begin   waits for memory, sorts the rows ─▶ finish   encodes and uploads them

Event loop only; the work runs in threads of its own. An upload that the store refuses is retried
under a new name; a buffer that cannot be encoded is reported to the caller (tests/flush).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

import structlog
import trio

from ingester.buffer import FlushJob, TableBuffer
from ingester.flush.file_writer import CannotEncode, FileWriter, Ordered, Upload
from ingester.memory.ledger import MemoryLedger
from ingester.observability.logs import store_away
from persist.jobs import ByteBudget
from persist.manifest import TableState
from persist.parquet.encode import job_bytes
from persist.store import ObjectNotFound, StoreError, StoreRetry, retry_async

log = structlog.get_logger(__name__)
T = TypeVar("T")

NICENESS = 10
LANES, MOST_LANES = 8, 64
"""Partitions served at a time: per encoding thread, and at most."""
SMALL_BYTES = 256 << 10
"""Buffers up to this size are sorted and encoded in one step."""
UPLOAD_RETRY = StoreRetry(first_s=0.1, cap_s=10.0, unreachable=(StoreError, OSError))


def _give_way() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def lanes(workers: int) -> int:
    """Number of partitions served at a time."""
    return max(workers, min(workers * LANES, MOST_LANES))


async def _done_in(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Return or raise the outcome of the work in a thread, even if no task waits for it any
    more.
    """
    token, ended = trio.lowlevel.current_trio_token(), trio.Event()
    done: list[tuple[T | None, BaseException | None]] = []

    def do() -> None:
        # Not a future: its thread would still hold the error when it is seen here, and a logged
        # error keeps its frames alive, and with them the rows.
        try:
            done.append((work(), None))
        except BaseException as exc:
            done.append((None, exc))
        token.run_sync_soon(ended.set)

    threads.submit(do)
    with trio.CancelScope(shield=True):
        await ended.wait()
    result, error = done.pop()
    try:
        if error is not None:
            raise error
        return cast(T, result)
    finally:
        del result, error


async def _as_it_is(table: TableBuffer) -> None:
    """No-op."""


def _job_bytes(job: FlushJob) -> int:
    handle, columns = job.handle, len(job.table.definition.schema)
    return job_bytes(handle.total_rows, handle.nbytes, columns, handle.rows.mixed)


def step(job: FlushJob, name: str, error: BaseException | None = None) -> None:
    """Record a step in the buffer's trace, if it has one."""
    if (trace := job.handle.flush_trace) is not None:
        trace.step(name, error)


@dataclass(slots=True)
class Begun:
    """A buffer's first upload, with its memory reserved."""

    job: FlushJob
    nbytes: int
    at: float
    """When the flush began, by the monotonic clock."""
    ordered: Ordered | None = None
    """The sorted rows; None if they are sorted together with encoding."""


class WorkerPool:
    """Threads that sort, encode and upload, and the memory of their jobs. Event loop only."""

    def __init__(
        self,
        file_writer: FileWriter,
        ledger: MemoryLedger,
        on_failed: Callable[[FlushJob, Exception], None],
        look: Callable[[TableBuffer], Awaitable[None]] = _as_it_is,
        *,
        workers: int,
    ) -> None:
        """``on_failed``: called with the reason of each failed attempt; ``look``: refreshes a
        table.
        """
        self._on_failed = on_failed
        self._look = look
        self._file_writer = file_writer
        self._ledger = ledger
        # Jobs wait here for a thread, so that one is free for each turn.
        self._turns = ByteBudget(workers)
        self._workers = workers
        # Threads of their own, because they yield to threads that acknowledge writes and answer
        # queries.
        self._threads = ThreadPoolExecutor(lanes(workers), "persist", initializer=_give_way)
        self._budget = ByteBudget(ledger.watermarks.jobs)

    def hurry(self) -> None:
        """Use one thread per partition served: the daemon is stopping and accepts no writes.

        With small files, most of the time is spent waiting for the store.
        """
        self._turns.raise_limit(lanes(self._workers))

    async def begin(self, job: FlushJob) -> Begun:
        """Wait for memory; then sort the rows, in a table without a primary key.

        Follow with :meth:`finish` or :meth:`drop`. A keyed table's rows depend on its
        partition's files at the end. Few rows are sorted at the end as well, because two trips
        to a thread take longer.
        """
        begun = Begun(job, _job_bytes(job), time.monotonic())
        await self._budget.spend(begun.nbytes, job.table.namespace)
        self._ledger.jobs += begun.nbytes
        step(job, "queue")
        try:
            if not job.handle.keyed and job.handle.nbytes > SMALL_BYTES:
                order = partial(self._file_writer.order, job.rows, job.table.state)
                begun.ordered = await self._run(order, job)
                step(job, "order")
        except (CannotEncode, StoreError, OSError):
            pass  # raised again where it is reported or retried
        except BaseException:
            self.drop(begun)
            raise
        return begun

    async def finish(self, begun: Begun) -> Upload:
        """Complete a buffer's first upload.

        Raises:
            CannotEncode: the rows cannot be written to files now.
        """
        try:
            upload = await self.until_done(begun.job, ordered=begun.ordered)
            step(begun.job, "put" if begun.ordered is not None else "order and put")
            return upload
        finally:
            self.drop(begun)

    def drop(self, begun: Begun) -> None:
        """Free the memory reserved for an upload."""
        begun.ordered = None
        self._ledger.jobs -= begun.nbytes
        self._budget.give_back(begun.nbytes)

    async def until_done(
        self,
        job: FlushJob,
        base: TableState | None = None,
        *,
        after_seq: int = -1,
        left_out: Collection[int] = (),
        ordered: Ordered | None = None,
    ) -> Upload:
        """Upload a buffer, or what is left of it, for the table at ``base`` or now.

        Args:
            ordered: the sorted rows, if available.

        Raises:
            CannotEncode: the rows cannot be written to files now.
        """

        async def once() -> Upload:
            if ordered is not None:
                return await self._run(partial(self._file_writer.put, ordered), job)
            state = job.table.state if base is None else base
            upload = partial(self._file_writer.upload, job.rows, state, after_seq, left_out)
            try:
                return await self._run(upload, job)
            except ObjectNotFound:
                if base is None:
                    # A file to replace is gone: another writer replaced it, the table was switched,
                    # or the whole store is gone. Look at the newest version and retry.
                    await self._look(job.table)
                raise

        def tell(error: Exception, wait_s: float) -> None:
            self._on_failed(job, error)
            step(job, "failed attempt", error)
            warn(error, wait_s)

        where = {"table": job.table.key, "partition": job.partition_name}
        warn = store_away("upload failed, trying again", **where)
        try:
            return await retry_async(once, UPLOAD_RETRY, tell, sleep=trio.sleep)
        except CannotEncode:
            # Not assigned to a name: a logged traceback would keep the frame alive, and with it the
            # rows.
            self._on_failed(job, cast(CannotEncode, sys.exc_info()[1]))
            log.exception("buffer cannot be encoded", **where, runbook="persist-failing")
            raise

    async def _run(self, work: Callable[[], T], job: FlushJob) -> T:
        """Run work in a thread, in the namespace's turn.

        Its error, which holds the rows, lives no longer than the caller's.
        """
        await self._turns.spend(1, job.table.namespace)
        try:
            return await _done_in(self._threads, work)
        finally:
            self._turns.give_back(1)
