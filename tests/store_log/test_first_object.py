"""An epoch's first object counts before any operation is in the store."""

from __future__ import annotations

from collections.abc import Sequence

import trio
import trio.testing

from ingester.store_log.shipper import ShipHooks, ShipLimits, Shipper
from persist.manifest import WriterIdentity, claim_epoch
from tests.drivers.memory_store import MemoryStore
from tests.fencing.pausing import PausingStore
from tests.wal.driving import operation
from wal import Entry, LogError
from wal.objects import epoch_folder

ID = "machine"
WRITER = WriterIdentity(ID, "old", 1)
LISTS_CLAIMS = 1
"""The number of calls before that one: the first object is created."""


async def _nothing(table: str) -> None:
    """No table has earlier rows."""


def test_no_operation_is_stored_before_the_first_object_counts() -> None:
    """A successor that looked before it puts no fence, and would not replay that operation."""
    memory = MemoryStore()
    claim_epoch(memory, ID, 1, {"incarnation": "old"})
    answers: list[LogError | None] = []

    def shipped(entries: Sequence[Entry], error: LogError | None) -> None:
        answers.extend(error for _ in entries)

    def stored() -> int:
        return len(list(memory.list(epoch_folder(ID, 1))))

    async def ship() -> None:
        store = PausingStore(memory)
        hooks = ShipHooks(shipped, _nothing, lambda: None, lambda: 1, lambda kept: None)
        shipper = Shipper(store, WRITER, ShipLimits(interval_s=0.0), hooks)
        entry = operation(b"one")
        entry.at_store, entry.seq = True, 1
        store.pause_at = LISTS_CLAIMS
        async with trio.open_nursery() as nursery:
            await nursery.start(shipper.run)
            assert shipper.takes(entry)
            shipper.submit([entry])
            with trio.fail_after(20):
                await trio.to_thread.run_sync(store.still.wait)
                await trio.testing.wait_all_tasks_blocked()
                assert stored() == 1
                assert answers == []
                store.go_on.set()
                while not answers:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            assert answers == [None]
            assert stored() == 2
            nursery.cancel_scope.cancel()

    trio.run(ship)
