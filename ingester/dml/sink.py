"""What every sink of the write path promises.

Law of this file: an operation that is submitted is answered exactly once, on the event loop
whoever submitted it, after
it is durable (as far as the fsync mode promises) and visible, or after it is certain that it never
will be. Answers of accepted operations come in the order of submission.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ingester.dml.operation import Operation

Answer = Callable[[Operation, BaseException | None], None]
"""Called once per operation: ``None`` when it is durable and visible, else why it is not."""


class DmlSink(Protocol):
    """Takes operations in order. Never blocks.

    On the event loop; but operations without an origin, which nothing has to be known of, also in
    the one thread that has all of their stream.
    """

    def submit(self, operation: Operation, answer: Answer) -> None:
        """Take an operation and answer it now or later.

        Raises:
            Stopping: there is no loop any more to answer on.
        """
