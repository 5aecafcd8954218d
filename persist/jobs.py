"""The order in which frozen buffers are flushed, and the memory that they share.

    put(key, job) ─▶ worker_for(key) ─▶ the worker's queue ─▶ begin(job) ─▶ finish(job, begun)
                                          tenants in turn       next job: begin, wait, finish

A partition always has the same worker. Its jobs are begun and finished in the order they were put,
one at a time; a worker begins the next job while it finishes one. Jobs of different partitions run
in parallel. `FairQueue` serves tenants in turn by the bytes of their jobs, and `ByteBudget` limits
the bytes of all jobs together (tests/persist/jobs).

The queue has no bound: the daemon refuses writes when ``queued_bytes`` grows too large, because
dropping or blocking a frozen buffer would not free its memory.

Imports trio: not for Spark executors.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import mmh3
import trio

Item = TypeVar("Item")

KEPT_TAGS = 1024
"""The number of tags kept for tenants without items before outdated ones are dropped."""


class FairQueue(Generic[Item]):
    """A queue shared by tenants; the tenant that was served least is served next. Pure.

    A tenant's tag grows by the cost of each item taken. A tenant that had no items starts at the
    current tag, so nothing is saved up. Items of one tenant leave in order of arrival.

    Source: start-time fair queueing, P. Goyal, H. Vin, H. Cheng, 1996.
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[tuple[Item, int]]] = {}
        self._tags: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        """Tag, order of arrival and name of each tenant with items."""
        self._now = 0
        self._came = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def put(self, tenant: str, item: Item, cost: int) -> None:
        """Append an item to its tenant's line. ``cost`` is positive."""
        line = self._lines.get(tenant)
        if line is not None:
            line.append((item, cost))
            return
        self._lines[tenant] = deque([(item, cost)])
        self._push(tenant, max(self._now, self._tags.get(tenant, 0)))

    def first(self) -> Item:
        """Return the item that :meth:`take` would take."""
        return self._lines[self._heap[0][2]][0][0]

    def take(self) -> Item:
        """Take the next item of a queue that is not empty."""
        tag, _, tenant = heapq.heappop(self._heap)
        line = self._lines[tenant]
        item, cost = line.popleft()
        self._now, tag = tag, tag + cost
        if line:
            self._push(tenant, tag)
        else:
            del self._lines[tenant]
            self._keep(tenant, tag)
        return item

    def _push(self, tenant: str, tag: int) -> None:
        self._came += 1
        heapq.heappush(self._heap, (tag, self._came, tenant))

    def _keep(self, tenant: str, tag: int) -> None:
        self._tags[tenant] = tag
        if len(self._tags) > KEPT_TAGS:
            self._tags = {name: each for name, each in self._tags.items() if each > self._now}


class _BudgetWaiter:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.granted = trio.Event()
        self.gone = False


class ByteBudget:
    """Bytes, or turns, that jobs share. Loop only.

    A job larger than the whole budget runs alone, so no job waits for ever. Waiting tenants are
    served in turn; smaller jobs do not overtake the next one.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._spent = 0
        self._waiting: FairQueue[_BudgetWaiter] = FairQueue()

    def raise_limit(self, limit_bytes: int) -> None:
        """Raise the limit, never lower it."""
        self._limit_bytes = max(self._limit_bytes, limit_bytes)
        self._grant()

    async def spend(self, nbytes: int, tenant: str = "") -> None:
        """Wait for the bytes, and hold them until `give_back`."""
        waiter = _BudgetWaiter(nbytes)
        self._waiting.put(tenant, waiter, max(1, nbytes))
        self._grant()
        try:
            await waiter.granted.wait()
        except BaseException:
            if waiter.granted.is_set():
                self.give_back(nbytes)
            else:
                waiter.gone = True
                self._grant()
            raise

    def give_back(self, nbytes: int) -> None:
        """Return spent bytes."""
        self._spent -= nbytes
        self._grant()

    def _grant(self) -> None:
        """Serve waiting jobs while there is room."""
        while self._waiting:
            waiter = self._waiting.first()
            if waiter.gone:
                self._waiting.take()
                continue
            if self._spent and self._spent + waiter.nbytes > self._limit_bytes:
                return
            self._waiting.take()
            self._spent += waiter.nbytes
            waiter.granted.set()


Job = TypeVar("Job")
Begun = TypeVar("Begun")

JOB_COST_BYTES = 1 << 20
"""The cost of a job beside its bytes: a file, and its share of a commit."""
_MASK = (1 << 64) - 1


class PersistQueue(Generic[Job, Begun]):
    """The queue and its workers. Loop only.

    Jobs are ``active`` from `begin` until they are finished.
    """

    def __init__(self, workers: int) -> None:
        self.queued_jobs = 0
        self.queued_bytes = 0
        self.active = 0
        self._queues: list[FairQueue[tuple[Job, int]]] = [FairQueue() for _ in range(workers)]
        self._wake = [trio.Event() for _ in range(workers)]

    def put(self, key: str, job: Job, nbytes: int, tenant: str = "") -> None:
        """Queue a job after all earlier ones of its key; a key has one tenant."""
        worker = worker_for(key, len(self._queues))
        self._queues[worker].put(tenant, (job, nbytes), nbytes + JOB_COST_BYTES)
        self.queued_jobs += 1
        self.queued_bytes += nbytes
        self._wake[worker].set()

    async def run(
        self,
        begin: Callable[[Job], Awaitable[Begun]],
        finish: Callable[[Job, Begun], Awaitable[None]],
    ) -> None:
        """Serve all queues until cancelled.

        Args:
            begin: does the part that need not wait for earlier jobs of the key; retries, never
                fails.
            finish: does the rest with the result of ``begin``; retries, never fails.
        """
        async with trio.open_nursery() as nursery:
            for worker in range(len(self._queues)):
                nursery.start_soon(self._serve, worker, begin, finish)

    async def _serve(
        self,
        worker: int,
        begin: Callable[[Job], Awaitable[Begun]],
        finish: Callable[[Job, Begun], Awaitable[None]],
    ) -> None:
        jobs = self._queues[worker]
        one_at_a_time = trio.Semaphore(1)

        async def finish_begun(job: Job, begun: Begun, nbytes: int) -> None:
            await finish(job, begun)
            self.active -= 1
            self.queued_jobs -= 1
            self.queued_bytes -= nbytes
            one_at_a_time.release()

        async with trio.open_nursery() as nursery:
            while True:
                while not jobs:
                    self._wake[worker] = trio.Event()
                    await self._wake[worker].wait()
                job, nbytes = jobs.take()
                self.active += 1
                begun = await begin(job)
                await one_at_a_time.acquire()
                nursery.start_soon(finish_begun, job, begun, nbytes)
                # Released before the wait for the next job, because it holds rows.
                del job, begun


def worker_for(key: str, workers: int) -> int:
    """The worker, ``0 <= worker < workers``, that serves this key.

    The same key maps to the same of ``n`` workers in every process; with ``n + 1`` workers one key
    in ``n + 1`` moves. Source: Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash
    Algorithm", 2014.
    """
    seed = mmh3.hash64(key.encode(), signed=False)[0]
    chosen, candidate = -1, 0
    while candidate < workers:
        chosen = candidate
        seed = (seed * 2_862_933_555_777_941_757 + 1) & _MASK
        candidate = int((chosen + 1) * ((1 << 31) / ((seed >> 33) + 1)))
    return chosen
