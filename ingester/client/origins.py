"""The origins of a client's writers, and their sequences.

The daemon knows a batch by (origin, table, sequence). It keeps one small entry per origin for ever,
so a client makes up few of them: each is lent to one writer at a time and reused after it closed.
"""

import threading
import uuid
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass


@dataclass(eq=False, slots=True)
class OriginLease:
    """The origin of one writer, and its next sequence. Not thread-safe: the writer locks."""

    origin: str
    next_sequence: int
    _: KW_ONLY
    exclusive: bool
    """Whether we choose the sequences, so that a batch that the daemon calls a duplicate, though it
    was sent only once, was never written."""
    on_release: Callable[["OriginLease"], None] | None = None
    numbers_rows: bool = False
    """Whether a sequence is the number of a batch's last row."""

    @property
    def made_up(self) -> bool:
        """Whether the origin is ours alone, and of one table."""
        return self.on_release is not None

    def take(self, rows: int = 1) -> int:
        """The sequence of the next batch, of so many rows."""
        sequence = self.next_sequence + (rows - 1 if self.numbers_rows else 0)
        self.next_sequence = sequence + 1
        return sequence

    def release(self) -> None:
        """Give the origin back. Only after everything taken was answered."""
        if self.on_release is not None:
            self.on_release(self)


class OriginPool:
    """Made-up origins of one client, free ones by table. Thread-safe."""

    def __init__(self) -> None:
        self._free: dict[tuple[str, str], list[tuple[str, int]]] = {}
        self._lock = threading.Lock()

    def lease(self, namespace: str, table: str) -> OriginLease:
        """An origin that no open writer uses."""
        key = (namespace, table)
        with self._lock:
            free = self._free.setdefault(key, [])
            origin, next_sequence = free.pop() if free else (f"client-{uuid.uuid4().hex}", 1)

        def give_back(lease: OriginLease) -> None:
            with self._lock:
                self._free[key].append((lease.origin, lease.next_sequence))

        return OriginLease(origin, next_sequence, exclusive=True, on_release=give_back)
