"""The promise of every sink of the write path.

Law of this file: an operation that is submitted is answered exactly once, on the event loop
whoever submitted it, after it is durable (as far as the fsync mode promises) and visible, or after
it is certain that it never will be. Answers of accepted operations come in the order of submission.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ingester.dml.operation import Operation

Answer = Callable[[Operation, BaseException | None], None]
"""A callback, called once per operation: with None when durable and visible, else the reason."""


class DmlSink(Protocol):
    """Takes operations in order, and never blocks.

    With an origin it is called on the event loop. Without one it is called in the thread that has
    prepared the operation: a reader's, the combiner's or the log's writer's.
    """

    def submit(self, operation: Operation, answer: Answer) -> None:
        """Take an operation and answer it now or later.

        Raises:
            Stopping: there is no loop any more to answer on.
        """
