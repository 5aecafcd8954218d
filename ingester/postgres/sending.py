"""What is being sent of transactions: which messages wait, and of which tables some are gone.

Law of this file: a transaction is closed by its last message, so that one of each waits. A table
can be left out of a transaction as long as nothing of it was sent.
"""

from __future__ import annotations

from collections.abc import Iterator

from ingester.postgres.positions import Sent
from ingester.postgres.sync_messages import SyncMessage


class Sending:
    """The messages of one transaction, or of one for each table: the last of each waits.

    It is sent with the sequence that closes the transaction.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Sent, SyncMessage]] = {}
        self._tables: dict[str, set[str]] = {}
        """The tables that something was sent of, by origin."""

    def put(self, sent: Sent, message: SyncMessage) -> SyncMessage | None:
        """Have a message wait, and return the one that waited before it."""
        before = self._waiting.get(sent.stream.origin)
        self._waiting[sent.stream.origin] = (sent, message)
        return None if before is None else before[1]

    def begins(self, sent: Sent) -> bool:
        """Return whether nothing of the origin's transaction was sent yet."""
        return sent.stream.origin not in self._tables

    def note_sent(self, sent: Sent, message: SyncMessage) -> None:
        """Take note of a message that was sent."""
        self._tables.setdefault(sent.stream.origin, set()).add(message.table)

    def forget(self, sent: Sent, target: str) -> bool:
        """Leave a table out; return whether that can be: nothing of it was sent, nor is it last."""
        origin = sent.stream.origin
        if target in self._tables.get(origin, ()):
            return False
        waits = self._waiting.get(origin)
        if waits is not None and waits[1].table == target:
            del self._waiting[origin]
            return origin not in self._tables  # Else nothing would close what was sent.
        return True

    def last(self) -> Iterator[tuple[Sent, SyncMessage]]:
        """Yield the messages that close their transactions."""
        yield from self._waiting.values()
