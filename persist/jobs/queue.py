"""Frozen buffers on their way to workers: a queue a worker, a partition always at the same one.

    put(key, job) ──▶ worker_for(key) ──▶ that worker's queue ──▶ begin(job) ──▶ finish(job, begun)
                                                     the next one: begin(job) ──▶ waits ──▶ finish

Law of this file: jobs of one key are begun in the order they were put, one at a time, and finished
in that order, one at a time; a worker begins the next job while it finishes one. Jobs of different
keys run in parallel on different workers. A worker serves the tenants in turn, by the bytes of
their jobs: however many wait of one, another's next job waits for those under way, and for one of
each other tenant (``fair_queue``). A job stays counted until it is finished. The queue is
not bounded here: the daemon refuses writes when ``queued_bytes`` grows too large, and dropping or
blocking a frozen buffer could not give its memory back.

Imports trio: not for Spark executors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import mmh3
import trio

from persist.jobs.fair_queue import FairQueue

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
