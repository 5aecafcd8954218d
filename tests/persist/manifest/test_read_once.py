"""Immutable objects are read once, after any number of switches."""

from __future__ import annotations

import msgspec

from persist.manifest import Switch, last_switch, switches
from tests.drivers.memory_store import MemoryStore

TABLE = ("ns", "flights")


class CountingStore(MemoryStore):
    """Counts reads."""

    gets = 0

    def get(self, path: str) -> bytes:
        self.gets += 1
        return super().get(path)

    def switch(self, number: int, version: int) -> None:
        """Record a switch."""
        switch = Switch(version, previous=version - 1, at="2026-11-26T08:00:00+00:00")
        self.put(f"ns/flights/_current/{number:020d}", msgspec.json.encode(switch))


def test_switch_records_are_read_once() -> None:
    store = CountingStore()
    for number in range(1, 31):
        store.switch(number, number + 1)
    for _ in range(3):
        done = switches(store, *TABLE)
        assert [each.switch.table_version for each in done] == list(range(2, 32))
    assert store.gets == 30
    store.switch(31, 32)
    assert last_switch(store, *TABLE)[1].table_version == 32
    assert switches(store, *TABLE)[-1].switch.table_version == 32
    assert store.gets == 31
    store.switch(31, 42)
    assert switches(store, *TABLE)[-1].switch.table_version == 42, "of a table that was made anew"
    other = CountingStore()
    assert switches(other, *TABLE) == [] and last_switch(other, *TABLE)[0] == 0
