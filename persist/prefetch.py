"""Makes one item in another thread while the caller uses the previous one.

Items come in order, at most two are held, and the threads end with the iteration, however it ends
(tests/persist/test_prefetch.py). An exception from making an item is raised where the item is
wanted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def one_ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items; the next one is made in another thread while the caller uses the last."""
    end = object()
    # The thread inherits the priority of its creator.
    with ThreadPoolExecutor(1, "one-ahead") as thread:
        coming = thread.submit(next, items, end)
        try:
            while (item := coming.result()) is not end:
                coming = thread.submit(next, items, end)
                yield item  # type: ignore[misc]
                del item  # released before the next one arrives
        finally:
            # An error refers to this frame, which would refer to the error and the item.
            del coming


def two_at_once(jobs: Iterator[Callable[[], T]]) -> Generator[T, None, None]:
    """The jobs' results in order; two jobs run at a time, ahead of the caller."""
    # The threads inherit the priority of their creator.
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
