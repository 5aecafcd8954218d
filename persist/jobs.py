"""A queue that many share: whoever was served least is served next.

    put(tenant, item, cost) ─▶ the tenant's own line ─▶ take(): of the tenant with the lowest tag

A tenant's tag grows by the cost of each of its items that is taken. Who comes after a time without
items begins at the tag of now: nothing is saved up. So a tenant with ten thousand items holds
another's first one for the one that is being served, and two that have items all the time get the
same, by cost.

Law of this file: pure. Items of one tenant leave in the order in which they came; between two items
of a tenant, any other that waits is served unless it had more.

Source: start-time fair queueing, P. Goyal, H. Vin, H. Cheng, 1996.
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
"""So many tags are kept of tenants without items before those that say nothing are dropped."""


class FairQueue(Generic[Item]):
    """The lines of all tenants."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[tuple[Item, int]]] = {}
        self._tags: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        """Tag, order of coming, and name of each tenant with items."""
        self._now = 0
        self._came = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def put(self, tenant: str, item: Item, cost: int) -> None:
        """Put an item behind all earlier ones of its tenant. ``cost`` is more than 0."""
        line = self._lines.get(tenant)
        if line is not None:
            line.append((item, cost))
            return
        self._lines[tenant] = deque([(item, cost)])
        self._push(tenant, max(self._now, self._tags.get(tenant, 0)))

    def first(self) -> Item:
        """Return what :meth:`take` would take now."""
        return self._lines[self._heap[0][2]][0][0]

    def take(self) -> Item:
        """Take the next item. Only of a queue that has one."""
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


class _Waiter:
    """A job that waits for its bytes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.granted = trio.Event()
        self.gone = False


class ByteBudget:
    """A number of bytes that jobs share. Loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._spent = 0
        self._waiting: FairQueue[_Waiter] = FairQueue()

    def raise_limit(self, limit_bytes: int) -> None:
        """Have more bytes to share from now on."""
        self._limit_bytes = max(self._limit_bytes, limit_bytes)
        self._grant()

    async def spend(self, nbytes: int, tenant: str = "") -> None:
        """Wait for that many bytes, and hold them until they are given back."""
        waiter = _Waiter(nbytes)
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
        """Free the bytes that were spent."""
        self._spent -= nbytes
        self._grant()

    def _grant(self) -> None:
        """Serve those who wait, as far as there is room."""
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
"""A job costs its tenant's turn so much beside its bytes: a file, and its part of a commit."""
_MASK = (1 << 64) - 1


class PersistQueue(Generic[Job, Begun]):
    """The queue and its workers. Loop only.

    Jobs are ``active`` from the moment they are begun until they are finished.
    """

    def __init__(self, workers: int) -> None:
        self.queued_jobs = 0
        self.queued_bytes = 0
        self.active = 0
        self._queues: list[FairQueue[tuple[Job, int]]] = [FairQueue() for _ in range(workers)]
        self._wake = [trio.Event() for _ in range(workers)]

    def put(self, key: str, job: Job, nbytes: int, tenant: str = "") -> None:
        """Queue a job behind all earlier ones of its key; a key has one tenant."""
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
        """Serve all queues until cancelled; both retry by themselves and do not fail.

        Args:
            begin: does what need not wait for earlier jobs of the key to be finished.
            finish: does the rest, with what ``begin`` returned.
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
                # Not kept until the next one comes: it holds rows.
                del job, begun


def worker_for(key: str, workers: int) -> int:
    """The worker, ``0 <= worker < workers``, that serves this key.

    The same key goes to the same of ``n`` workers in every process, and of ``n + 1`` workers only
    one key in ``n + 1`` moves: consistent hashing by Lamping and Veach, "A Fast, Minimal Memory,
    Consistent Hash Algorithm", 2014.
    """
    seed = mmh3.hash64(key.encode(), signed=False)[0]
    chosen, candidate = -1, 0
    while candidate < workers:
        chosen = candidate
        seed = (seed * 2_862_933_555_777_941_757 + 1) & _MASK
        candidate = int((chosen + 1) * ((1 << 31) / ((seed >> 33) + 1)))
    return chosen
