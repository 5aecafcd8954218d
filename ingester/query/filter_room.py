"""The memory of the filters of answers under way, which namespaces may take so much of each.

Law of this file: what is taken is left once, in whatever thread.
"""

from __future__ import annotations

import threading

from ingester.errors import TooManyStreams

FEW_BYTES = 64 << 10
"""The size up to which a filter is always let in: an answer takes more than that anyway."""


class FilterRoom:
    """Counts the bytes of filters. Any thread.

    Args:
        most: the bytes that a namespace may have.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: dict[str, int] = {}
        # Reentrant: a collection inside it may free a stream, which leaves.
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        """The bytes of all filters."""
        with self._lock:
            return sum(self._taken.values())

    def take(self, namespace: str, nbytes: int) -> None:
        """Count a filter, until :meth:`leave`.

        Raises:
            TooManyStreams: the namespace would have too much, and not by this one alone.
        """
        with self._lock:
            taken = self._taken.get(namespace, 0)
            if taken and nbytes > FEW_BYTES and taken + nbytes > self._most:
                raise TooManyStreams(
                    f"filters of namespace {namespace} under way have {taken} B, this one"
                    f" {nbytes} B; at most {self._most} B are taken, eight times"
                    " query.max_filter_bytes: ask with fewer values, or fewer queries at a time",
                    retry_after_s=1.0,
                )
            if nbytes:
                self._taken[namespace] = taken + nbytes

    def leave(self, namespace: str, nbytes: int) -> None:
        """Count a filter no more: its answer has ended."""
        if not nbytes:
            return
        with self._lock:
            self._taken[namespace] -= nbytes
            if not self._taken[namespace]:
                del self._taken[namespace]
