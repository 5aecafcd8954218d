"""Frozen buffers on their way to workers: a queue a worker, a partition always at the same one.

    put(key, job) ──▶ worker_for(key) ──▶ that worker's queue ──▶ begin(job) ──▶ finish(job, begun)
                                                     the next one: begin(job) ──▶ waits ──▶ finish

Law of this file: jobs of one key are begun in the order they were put, one at a time, and finished
in that order, one at a time; a worker begins the next job while it finishes one. Jobs of different
keys run in parallel on different workers. A job stays counted until it is finished. The queue is
not bounded here: the daemon refuses writes when ``queued_bytes`` grows too large, and dropping or
blocking a frozen buffer could not give its memory back.

Imports trio: not for Spark executors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from persist.jobs.placement import worker_for

Job = TypeVar("Job")
Begun = TypeVar("Begun")


class PersistQueue(Generic[Job, Begun]):
    """The queue and its workers. Loop only.

    Jobs are ``active`` from the moment they are begun until they are finished.
    """

    def __init__(self, workers: int) -> None:
        self.queued_jobs = 0
        self.queued_bytes = 0
        self.active = 0
        self._lanes: list[deque[tuple[Job, int]]] = [deque() for _ in range(workers)]
        self._wake = [trio.Event() for _ in range(workers)]

    def put(self, key: str, job: Job, nbytes: int) -> None:
        """Queue a job behind all earlier ones of its key."""
        lane = worker_for(key, len(self._lanes))
        self._lanes[lane].append((job, nbytes))
        self.queued_jobs += 1
        self.queued_bytes += nbytes
        self._wake[lane].set()

    async def run(
        self,
        begin: Callable[[Job], Awaitable[Begun]],
        finish: Callable[[Job, Begun], Awaitable[None]],
    ) -> None:
        """Serve all lanes until cancelled; both retry by themselves and do not fail.

        Args:
            begin: does what need not wait for earlier jobs of the key to be finished.
            finish: does the rest, with what ``begin`` returned.
        """
        async with trio.open_nursery() as nursery:
            for lane in range(len(self._lanes)):
                nursery.start_soon(self._serve, lane, begin, finish)

    async def _serve(
        self,
        lane: int,
        begin: Callable[[Job], Awaitable[Begun]],
        finish: Callable[[Job, Begun], Awaitable[None]],
    ) -> None:
        jobs = self._lanes[lane]
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
                    self._wake[lane] = trio.Event()
                    await self._wake[lane].wait()
                job, nbytes = jobs.popleft()
                self.active += 1
                begun = await begin(job)
                await one_at_a_time.acquire()
                nursery.start_soon(finish_begun, job, begun, nbytes)
                # Not kept until the next one comes: it holds rows.
                del job, begun
