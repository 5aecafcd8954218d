"""A queue that many share: whoever was served least is served next.

    put(tenant, item, cost) ─▶ the tenant's own line ─▶ take(): of the tenant with the lowest tag

A tenant's tag grows by the cost of each of its items that is taken. Who comes after a time without
items begins at the tag of now: nothing is saved up. So a tenant with ten thousand items holds
another's first one for the one that is being served, and two that have items all the time get the
same, by cost.

Law of this file: pure. Items of one tenant leave in the order in which they came; between two items
of a tenant, any other that waits is served unless it had more.

Source: start-time fair queueing, P. Goyal, H. Vin, H. Cheng, 1996.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")

KEPT_TAGS = 1024
"""So many tags are kept of tenants without items before those that say nothing are dropped."""


class FairQueue(Generic[Item]):
    """The lines of all tenants."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[tuple[Item, int]]] = {}
        self._tags: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        """Tag, order of coming, and name of each tenant with items."""
        self._now = 0
        self._came = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def put(self, tenant: str, item: Item, cost: int) -> None:
        """Put an item behind all earlier ones of its tenant. ``cost`` is more than 0."""
        line = self._lines.get(tenant)
        if line is not None:
            line.append((item, cost))
            return
        self._lines[tenant] = deque([(item, cost)])
        self._push(tenant, max(self._now, self._tags.get(tenant, 0)))

    def first(self) -> Item:
        """Return what :meth:`take` would take now."""
        return self._lines[self._heap[0][2]][0][0]

    def take(self) -> Item:
        """Take the next item. Only of a queue that has one."""
        tag, _, tenant = heapq.heappop(self._heap)
        line = self._lines[tenant]
        item, cost = line.popleft()
        self._now, tag = tag, tag + cost
        if line:
            self._push(tenant, tag)
        else:
            del self._lines[tenant]
            self._keep(tenant, tag)
        return item

    def _push(self, tenant: str, tag: int) -> None:
        self._came += 1
        heapq.heappush(self._heap, (tag, self._came, tenant))

    def _keep(self, tenant: str, tag: int) -> None:
        self._tags[tenant] = tag
        if len(self._tags) > KEPT_TAGS:
            self._tags = {name: each for name, each in self._tags.items() if each > self._now}
