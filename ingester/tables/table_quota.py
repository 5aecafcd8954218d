"""The tables that a namespace has, held against its quota before another one is made.

Law of this file: what is in the store counts as well as what is open here: a restart makes no room.
The store is asked only where a quota is set, as far as that, and its answer holds for a while;
tables that others make meanwhile are seen then. Tables on their way count, so that many makers at a
time get no further than one. Loop only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice

from ingester.buffer import BufferTree
from ingester.tables.commits import Commits
from persist.manifest import tables_of
from persist.table import TableKey

STORED_HOLD_S = 30.0
"""The time for which the store's tables of a namespace are not listed again."""


class TableQuota:
    """Sees that a namespace makes no more tables than it may have."""

    def __init__(self, commits: Commits, tree: BufferTree) -> None:
        self._commits = commits
        self._tree = tree
        self._stored: dict[str, tuple[float, frozenset[str]]] = {}
        self._making: Counter[str] = Counter()

    def check_open(self, key: TableKey) -> None:
        """Raise OverQuota where the tables that are open here are as many as there may be."""
        if key not in self._tree.tables:
            use = self._tree.namespaces.of(key[0])
            self._tree.namespaces.check_tables(use, use.tables)

    @asynccontextmanager
    async def making(self, key: TableKey) -> AsyncIterator[None]:
        """Count a table as on its way inside the block.

        Raises:
            OverQuota: the namespace has as many as it may have.
            StoreAway: a quota is set, and the store cannot be listed.
        """
        namespace, use = key[0], self._tree.namespaces.of(key[0])
        if use.quota.tables:
            self.check_open(key)
            stored = await self._names_stored(namespace, use.quota.tables)
            # Atomic from here to the count: no await.
            here = {name for space, name in self._tree.tables if space == namespace}
            number = len((here | stored) - {key[1]}) + self._making[namespace]
            self._tree.namespaces.check_tables(use, number)
        self._making[namespace] += 1
        try:
            yield
        finally:
            self._making[namespace] -= 1
            if not self._making[namespace]:
                del self._making[namespace]

    async def _names_stored(self, namespace: str, most: int) -> frozenset[str]:
        at, names = self._stored.get(namespace, (-STORED_HOLD_S, frozenset[str]()))
        now = time.monotonic()
        if now - at < STORED_HOLD_S:
            return names
        self._stored = {
            n: each for n, each in self._stored.items() if now - each[0] < STORED_HOLD_S
        }
        listing = tables_of(self._commits.store, namespace)
        names = await self._commits.read(lambda: frozenset(islice(listing, most)), namespace)
        self._stored[namespace] = (now, names)
        return names
