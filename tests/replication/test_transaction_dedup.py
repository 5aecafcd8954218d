"""Transactions and write streams of one origin in one table."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

from ingester.origins.origin_table import Fates
from ingester.origins.registry import Origins
from ingester.replication.dedup import NewChanges, TransactionDedup

TABLE = ("ns", "t")


class WatchedFates(Fates):
    """Notes whether a stream's thread could begin a sequence while it is looked at."""

    __slots__ = ("could_begin",)

    def follows(self, sequence: int, whose: object) -> bool:
        thread = threading.Thread(target=self._try)
        thread.start()
        thread.join()
        return super().follows(sequence, whose)

    def _try(self) -> None:
        self.could_begin = self.lock.acquire(blocking=False)
        if self.could_begin:
            self.lock.release()


def test_no_stream_begins_a_sequence_between_the_check_and_the_begin_of_a_transaction() -> None:
    origins = Origins()
    origin_table = origins.table("o", TABLE)
    origin_table.fates = fates = WatchedFates(origins.get("o").lock)
    dedup = TransactionDedup(cast(Any, None), cast(Any, SimpleNamespace(origins=origins)))
    table = cast(Any, SimpleNamespace(key=TABLE))
    tables = [NewChanges(table, cast(Any, None), frozenset())]
    dedup.begin(tables, "o", 7)
    assert not fates.could_begin
    assert list(fates.under_way) == [7]
    dedup.end(tables, "o", 7, None)
    assert not fates.under_way
