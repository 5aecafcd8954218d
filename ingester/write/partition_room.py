"""The room for partitions with rows in buffers: so many of a table, of the daemon, of a namespace.

    a batch ── ``check`` ──▶ split ── ``enter`` ──▶ log ──▶ buffers ── ``leave``
          │ refused: not split      │ refused: nothing of it is logged

Each of them is a buffer, a job and a file: what costs little to send costs much to keep. Partitions
that batches on their way will open count from before the log, so that many batches at a time open
no more than one after another would.

Law of this file: a batch whose partitions are all open already costs a look at each and is let in,
whatever is full. What is refused can come again, as the oldest buffers are persisted for it; but a
batch with more partitions than there may be at all has to be sent in parts. Where the daemon is
short, a namespace with more than its share is refused first (:mod:`ingester.quotas.fair_shares`).
Replay and adoption do not ask.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from ingester.buffer import BufferTree, TableBuffer
from ingester.config.settings import LimitsSettings
from ingester.dml.operation import Operation
from ingester.errors import IngesterError, InvalidRequest, LimitReached, limit_facts
from ingester.quotas.fair_shares import bound
from ingester.quotas.use import NamespaceUse
from persist.manifest import PartitionKey
from persist.table import TableKey

RETRY_S = 1.0


class PartitionRoom:
    """Lets batches open partitions as far as the limits allow. Any thread.

    Args:
        on_full: is told the table, or the namespace, whose oldest buffers are to be persisted soon,
            or None for those of all. Any thread; must not wait.
    """

    def __init__(
        self,
        tree: BufferTree,
        limits: LimitsSettings,
        on_full: Callable[[TableKey | str | None], None] = lambda whose: None,
    ) -> None:
        self._tree = tree
        self._limits = limits
        self._on_full = on_full
        self._lock = threading.Lock()
        self._coming: dict[TableKey, Counter[PartitionKey]] = {}
        """Partitions that batches on their way open, and how many of these do."""
        self._coming_in_all = 0

    def check(self, key: TableKey, count: int) -> None:
        """See that a batch with so many partitions may find room, before it is split.

        Its table need not be there yet.

        Raises:
            InvalidRequest: it has more than there may be at all, and not all are open.
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
        """Let an operation open its partitions; they count until :meth:`leave`.

        Raises:
            InvalidRequest: it has more than there may be at all.
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
        """Stop counting what an operation was to open: it is applied, or never will be."""
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
                raise InvalidRequest(
                    f"table {key[0]}/{key[1]}: the batch opens {new} partitions;"
                    f" limits.{limit} is {most}: send rows of fewer partitions at a time, or"
                    " partition the table by less (`partition_by`)",
                    details=limit_facts(f"limits.{limit}", most, new),
                )

    def _refusal(
        self, table: TableBuffer, coming: Counter[PartitionKey], new: int
    ) -> IngesterError | None:
        """Return why so many more are refused, if they are. Under the lock."""
        tree, limits = self._tree, self._limits
        live = len(table.partitions) + len(coming)
        if live + new > limits.partitions:
            # What was applied just now is counted twice until its answer.
            live = len(table.partitions) + sum(key not in table.partitions for key in coming)
        if live + new > limits.partitions:
            return self._full(table.key, table.key, "partitions", live, new)
        in_all, most = tree.live_partitions + self._coming_in_all, limits.daemon_partitions
        if in_all + new > self._share(table, new, most):
            return self._full(table.key, None, "daemon_partitions", in_all, new)
        return self._over_quota(table, new)

    def _over_quota(self, table: TableBuffer, new: int) -> IngesterError | None:
        """Return why the namespace may not open so many more, if it may not. Under the lock."""
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
            self._on_full(use.name)
        return refusal

    def _share(self, table: TableBuffer, new: int, most: int) -> int:
        """Return up to how many in all this namespace may open more."""
        own = table.use.partitions
        sharing = sum(1 for use in self._tree.namespaces.known() if use.partitions)
        return bound(most, own + new if own else 0, max(1, sharing))

    def _full(
        self, key: TableKey, relieved: TableKey | None, limit: str, live: int, new: int
    ) -> LimitReached:
        self._on_full(relieved)
        most = getattr(self._limits, limit)
        whose = "the daemon" if relieved is None else "it"
        return LimitReached(
            f"table {key[0]}/{key[1]}: the batch opens {new} partitions, {whose} has {live} with"
            f" rows in buffers, and limits.{limit} is {most}; the oldest are being persisted",
            retry_after_s=RETRY_S,
            details=limit_facts(f"limits.{limit}", most, live + new),
        )
