"""Bounds the partitions with rows in buffers: of a table, of the daemon, of a namespace.

    a batch ── ``check`` ──▶ split ── ``enter`` ──▶ log ──▶ buffers ── ``leave``
          │ refused: not split      │ refused: nothing of it is logged

Each partition is a buffer, a job and a file: cheap to send, expensive to keep. Partitions that
admitted batches will open count before the log, so that many batches at a time open no more than
one after another would.

A batch whose partitions are all open is always admitted, at the cost of one look-up per partition.
A refused batch may come again, as the oldest buffers are flushed for it; one with more partitions
than the limit has to be sent in parts. If the daemon is short, a namespace above its share is
refused first (:mod:`ingester.quotas.fair_shares`). Replay and adoption do not ask.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from ingester.buffer import BufferTree, TableBuffer
from ingester.config.settings import LimitsSettings
from ingester.dml.operation import Operation
from ingester.errors import BadRequest, IngesterError, LimitReached, limit_facts
from ingester.quotas.fair_shares import bound
from ingester.quotas.use import NamespaceUse
from persist.manifest import PartitionKey
from persist.table import TableKey

RETRY_S = 1.0


class PartitionRoom:
    """Admits batches by the partitions that they open. Any thread.

    Args:
        on_full: receives the table or the namespace whose oldest buffers are to be flushed soon;
            None for those of all, and how many fewer there must be. Any thread; must not wait.
    """

    def __init__(
        self,
        tree: BufferTree,
        limits: LimitsSettings,
        on_full: Callable[[TableKey | str | None, int], None] = lambda whose, excess: None,
    ) -> None:
        self._tree = tree
        self._limits = limits
        self._on_full = on_full
        self._lock = threading.Lock()
        self._coming: dict[TableKey, Counter[PartitionKey]] = {}
        """Partitions that admitted batches will open, and the number of these batches."""
        self._coming_in_all = 0

    def check(self, key: TableKey, count: int) -> None:
        """Check that a batch with ``count`` partitions may find room, before it is split.

        Its table need not exist.

        Raises:
            BadRequest: it has more than the limit, and not all are open.
            OverQuota: the namespace has no room for them now.
        """
        table, namespaces = self._tree.tables.get(key), self._tree.namespaces
        there = 0 if table is None else len(table.partitions)
        use = namespaces.of(key[0]) if table is None else table.use
        if (new := count - there) <= 0:
            return
        self._check_size(key, count)  # it has them all open at once
        with self._lock:
            refusal = self._quota_refusal(use, 0, new, count)
        if refusal is not None:
            raise refusal

    def enter(self, table: TableBuffer, operation: Operation) -> None:
        """Admit the partitions of an operation; they count until :meth:`leave`.

        Raises:
            BadRequest: it has more than the limit.
            LimitReached, OverQuota: there is no room for them now.
        """
        spec_id, there = operation.spec_id, table.partitions
        new = [key for part in operation.parts if (key := (spec_id, part.values)) not in there]
        if not new:
            return
        self._check_size(table.key, len(new))
        with self._lock:
            coming = self._coming.setdefault(table.key, Counter())
            refusal = self._refusal(table, coming, sum(key not in coming for key in new))
            if refusal is None:
                before = len(coming)
                coming.update(new)
                self._coming_in_all += len(coming) - before
                operation.opens = tuple(new)
        if refusal is not None:
            raise refusal

    def leave(self, operation: Operation) -> None:
        """Stop counting the partitions of an operation: it is applied, or never will be."""
        if not operation.opens:
            return
        with self._lock:
            coming = self._coming[operation.table]
            for key in operation.opens:
                coming[key] -= 1
                if not coming[key]:
                    del coming[key]
                    self._coming_in_all -= 1
            if not coming:
                del self._coming[operation.table]
            operation.opens = ()

    def _check_size(self, key: TableKey, new: int) -> None:
        for limit in ("partitions", "daemon_partitions"):
            most = getattr(self._limits, limit)
            if new > most:
                raise BadRequest(
                    f"table {key[0]}/{key[1]}: the batch opens {new} partitions;"
                    f" limits.{limit} is {most}: send rows of fewer partitions at a time, or"
                    " partition the table by less (`partition_by`)",
                    details=limit_facts(f"limits.{limit}", most, new),
                )

    def _refusal(
        self, table: TableBuffer, coming: Counter[PartitionKey], new: int
    ) -> IngesterError | None:
        """Return why ``new`` more are refused; None if they are not. Under the lock."""
        tree, limits = self._tree, self._limits
        live = len(table.partitions) + len(coming)
        if live + new > limits.partitions:
            # Partitions applied just now are counted twice until the answer.
            live = len(table.partitions) + sum(key not in table.partitions for key in coming)
        if live + new > limits.partitions:
            return self._full(table.key, table.key, "partitions", live, new)
        in_all, most = tree.live_partitions + self._coming_in_all, limits.daemon_partitions
        if in_all + new > self._share(table, new, most):
            return self._full(table.key, None, "daemon_partitions", in_all, new)
        return self._over_quota(table, new)

    def _over_quota(self, table: TableBuffer, new: int) -> IngesterError | None:
        """Return why the namespace may not open ``new`` more; None if it may. Under the lock."""
        use, tables = table.use, self._tree.tables
        if not use.quota.partitions:
            return None
        coming = sum(
            key not in tables[where].partitions
            for where, keys in self._coming.items()
            if where[0] == use.name
            for key in keys
        )
        return self._quota_refusal(use, coming, new)

    def _quota_refusal(
        self, use: NamespaceUse, coming: int, new: int, in_all: int | None = None
    ) -> IngesterError | None:
        refusal = self._tree.namespaces.over_partitions(use, coming, new, in_all)
        if refusal is not None:
            self._on_full(use.name, 1)
        return refusal

    def _share(self, table: TableBuffer, new: int, most: int) -> int:
        """Return the total number of partitions up to which this namespace may open more."""
        own = table.use.partitions
        sharing = sum(1 for use in self._tree.namespaces.known() if use.partitions)
        return bound(most, own + new if own else 0, max(1, sharing))

    def _full(
        self, key: TableKey, relieved: TableKey | None, limit: str, live: int, new: int
    ) -> LimitReached:
        most = getattr(self._limits, limit)
        self._on_full(relieved, live + new - most)
        whose = "the daemon" if relieved is None else "it"
        return LimitReached(
            f"table {key[0]}/{key[1]}: the batch opens {new} partitions, {whose} has {live} with"
            f" rows in buffers, and limits.{limit} is {most}; the oldest are being persisted",
            retry_after_s=RETRY_S,
            details=limit_facts(f"limits.{limit}", most, live + new),
        )
