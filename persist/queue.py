"""Frozen buffers on their way to workers: a queue a worker, a partition always at the same one.

    put(key, job) ──▶ worker_for(key) ──▶ that worker's queue ──▶ process(job), one after another

Law of this file: jobs of one key are processed in the order they were put, never two at a time;
jobs of different keys run in parallel on different workers. A job stays counted until it is
processed. The queue is not bounded here: the daemon refuses writes when ``queued_bytes`` grows too
large, and dropping or blocking a frozen buffer could not give its memory back.

Imports trio: not for Spark executors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from persist.placement import worker_for

Job = TypeVar("Job")


class PersistQueue(Generic[Job]):
    """The queue and its workers. Loop only."""

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

    async def run(self, process: Callable[[Job], Awaitable[None]]) -> None:
        """Serve all lanes until cancelled; ``process`` retries by itself and does not fail."""
        async with trio.open_nursery() as nursery:
            for lane in range(len(self._lanes)):
                nursery.start_soon(self._serve, lane, process)

    async def _serve(self, lane: int, process: Callable[[Job], Awaitable[None]]) -> None:
        jobs = self._lanes[lane]
        while True:
            while not jobs:
                self._wake[lane] = trio.Event()
                await self._wake[lane].wait()
            job, nbytes = jobs.popleft()
            self.active += 1
            try:
                await process(job)
            finally:
                self.active -= 1
                self.queued_jobs -= 1
                self.queued_bytes -= nbytes
