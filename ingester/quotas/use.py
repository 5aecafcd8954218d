"""The present use of one namespace, and its quotas.

Each count has one owner, named beside it, that changes it; any thread may read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ingester.quotas.token_bucket import TokenBucket

QuotaName = Literal[
    "buffer_bytes", "bytes_per_s", "requests_per_s", "tables", "partitions", "streams"
]


@dataclass(frozen=True, slots=True)
class Quota:
    """The quotas of a namespace; 0 is none."""

    buffer_bytes: int = 0
    bytes_per_s: int = 0
    requests_per_s: int = 0
    tables: int = 0
    partitions: int = 0
    streams: int = 0


NO_QUOTA = Quota()


class NamespaceUse:
    """The counts of one namespace."""

    __slots__ = (
        "byte_rate",
        "frozen_bytes",
        "held_bytes",
        "name",
        "partitions",
        "pending_bytes",
        "queued_bytes",
        "quota",
        "refused",
        "request_rate",
        "tables",
        "wanted_until",
        "writers",
    )

    def __init__(self, name: str, quota: Quota = NO_QUOTA, now: float = 0.0) -> None:
        self.name = name
        self.quota = quota
        self.byte_rate = TokenBucket(quota.bytes_per_s, now)
        """The recent bytes; belongs to admission, under its lock."""
        self.request_rate = TokenBucket(quota.requests_per_s, now)
        """The recent requests; belongs to :class:`ingester.quotas.namespaces.Namespaces`."""
        self.pending_bytes = 0
        """Bytes of batches that are admitted and not yet in a buffer; belongs to admission."""
        self.held_bytes = 0
        """Bytes in buffers, including frozen ones; belongs to the loop."""
        self.frozen_bytes = 0
        """The part of these that is in frozen buffers; belongs to the loop."""
        self.queued_bytes = 0
        """Bytes of frozen buffers that wait to be flushed; belongs to the loop."""
        self.partitions = 0
        """Partitions with a buffer; belongs to the loop."""
        self.tables = 0
        """Tables that are open here; belongs to the loop."""
        self.writers = 0
        """Streams of writers; belongs to the loop."""
        self.refused = 0
        """Refusals by its quotas, or for having more than its share."""
        self.wanted_until = 0.0
        """Until then it counts among those who share: it was refused not long ago."""

    @property
    def bytes(self) -> int:
        """The bytes in admitted batches and in buffers."""
        return self.held_bytes + self.pending_bytes

    @property
    def idle(self) -> bool:
        """Whether it uses nothing, so that it can be forgotten."""
        return not (self.bytes or self.queued_bytes or self.tables or self.writers)
