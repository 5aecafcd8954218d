"""One item made while another is made or used: a job on two processors.

Law of this file: items come in their order, at most two are held; threads end with the iteration,
however that ends. What making an item raises is raised where the item was wanted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def one_ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items; the next one is made, in another thread, while the caller has the last."""
    end = object()
    # It has the priority of the thread that starts it.
    with ThreadPoolExecutor(1, "one-ahead") as thread:
        coming = thread.submit(next, items, end)
        try:
            while (item := coming.result()) is not end:
                coming = thread.submit(next, items, end)
                yield item  # type: ignore[misc]
                del item  # not kept until the next one is there
        finally:
            # An error holds this frame, which would hold the error, and what was being made.
            del coming


def two_at_once(jobs: Iterator[Callable[[], T]]) -> Generator[T, None, None]:
    """The jobs' results; the next one is done meanwhile, or while the caller has the last."""
    # They have the priority of the thread that starts them.
    with ThreadPoolExecutor(2, "two-at-once") as threads:
        running: deque[Future[T]] = deque()
        try:
            for job in jobs:
                running.append(threads.submit(job))
                if len(running) > 1:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for left in running:
                left.cancel()
