"""One item made while the one before it is used: two steps of a job on two processors.

Law of this file: one thread makes the items, in their order and one ahead; it ends with the
iteration, however that ends. What making an item raises is raised where the item was wanted.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
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
