"""The limit on open partitions: reserved before the log is written, exact, and released."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.buffer import BufferTree, FreezeLimits, TableBuffer, TreeHooks
from ingester.client import Client, RetryPolicy
from ingester.config.settings import LimitsSettings
from ingester.dml.operation import Operation, Part
from ingester.errors import BadRequest, LimitReached, limit_of
from ingester.memory.ledger import MemoryLedger, Watermarks
from ingester.origins.registry import Origins
from ingester.write.partition_room import PartitionRoom
from persist.manifest import TableState, apply
from persist.partitioning import PartitionSpec
from persist.table import TableDefinition, TableKey
from tests.drivers.daemon import Daemon

SCHEMA = pa.schema({"p": pa.int64()})
DEFINITION = TableDefinition(SCHEMA, PartitionSpec.parse(["identity(p)"]))


class Rooms:
    """Buffers without a daemon, and the partition limit in front of them."""

    def __init__(self, **limits: int) -> None:
        ledger = MemoryLedger(Watermarks(1 << 30, 1 << 29, 1 << 30))
        self.tree = BufferTree(ledger, Origins(), FreezeLimits(1 << 30), TreeHooks())
        self.full: list[TableKey | str | None] = []
        self.room = PartitionRoom(
            self.tree, LimitsSettings(**limits), lambda whose, _excess: self.full.append(whose)
        )
        self.seq = 0

    def table(self, namespace: str, name: str = "t") -> TableBuffer:
        key = (namespace, name)
        if key not in self.tree.tables:
            state = apply(TableState(), DEFINITION.actions())
            use = self.tree.namespaces.of(namespace)
            self.tree.tables[key] = TableBuffer(*key, state, use)
        return self.tree.tables[key]

    def operation(self, table: TableBuffer, partitions: Iterable[int]) -> Operation:
        batch = pa.record_batch({"p": [1]})
        parts = tuple(Part((str(each),), batch, batch.nbytes) for each in partitions)
        return Operation(table.key, parts, len(parts), 8 * len(parts), 1, 0)

    def live(self, table: TableBuffer) -> set[int]:
        return {int(str(values[0])) for _, values in table.partitions}

    def write(self, table: TableBuffer, partitions: Iterable[int]) -> None:
        operation = self.operation(table, partitions)
        self.room.enter(table, operation)
        self.seq += 1
        operation.seq = self.seq
        self.tree.apply(operation)
        self.room.leave(operation)


@given(st.lists(st.tuples(st.sets(st.integers(0, 15), min_size=1), st.sampled_from("wla"))))
def test_what_is_live_or_on_its_way_is_counted_once_and_never_over_the_limit(
    steps: list[tuple[set[int], str]],
) -> None:
    rooms, most = Rooms(partitions=8), 8
    table = rooms.table("ns")
    on_their_way: list[tuple[Operation, set[int]]] = []
    for partitions, step in steps:
        if step == "w":
            held = set().union(rooms.live(table), *(opened for _, opened in on_their_way))
            operation = rooms.operation(table, partitions)
            new = partitions - rooms.live(table)
            try:
                rooms.room.enter(table, operation)
            except BadRequest:
                assert len(new) > most
            except LimitReached:
                assert new and len(held | partitions) > most >= len(new)
            else:
                assert not new or len(held | partitions) <= most
                on_their_way.append((operation, partitions))
        elif on_their_way:
            operation, _ = on_their_way.pop(0)
            if step == "a":
                rooms.seq += 1
                operation.seq = rooms.seq
                rooms.tree.apply(operation)
            rooms.room.leave(operation)
    assert rooms.tree.live_partitions == len(table.partitions) <= most
    for operation, _ in on_their_way:
        rooms.room.leave(operation)
    if left := set(range(most)) - rooms.live(table):
        free = most - len(table.partitions)
        rooms.write(table, sorted(left)[:free])  # finished operations no longer count


def test_a_batch_that_can_find_no_room_is_refused_by_its_number_of_partitions() -> None:
    rooms, key = Rooms(partitions=3), ("ns", "t")
    with pytest.raises(BadRequest, match=r"opens 4 partitions; limits\.partitions is 3"):
        rooms.room.check(key, 4)  # the table does not exist yet
    rooms.write(rooms.table(*key), [1, 2])
    rooms.room.check(key, 2)
    rooms.room.check(key, 3)
    with pytest.raises(BadRequest, match=r"opens 4 partitions; limits\.partitions is 3"):
        rooms.room.check(key, 4)  # two of them may already be open; four never fit


def test_a_full_table_takes_rows_of_its_partitions_and_says_what_is_full_for_others() -> None:
    rooms = Rooms(partitions=3)
    table = rooms.table("ns")
    rooms.write(table, [1, 2, 3])
    rooms.write(table, [3, 1])
    with pytest.raises(LimitReached, match=r"limits\.partitions is 3") as refused:
        rooms.write(table, [3, 4])
    assert limit_of(refused.value) == "partitions"
    assert refused.value.retry_after_s
    assert rooms.full == [("ns", "t")]
    with pytest.raises(BadRequest, match=r"opens 4 partitions; limits\.partitions is 3"):
        rooms.write(table, [4, 5, 6, 7])
    assert rooms.live(table) == {1, 2, 3}
    rooms.write(rooms.table("ns", "other"), [4])


def test_a_tenant_with_all_that_it_may_have_leaves_room_for_another() -> None:
    rooms = Rooms(daemon_partitions=16)
    rooms.write(rooms.table("greedy"), range(10))
    with pytest.raises(LimitReached, match=r"limits\.daemon_partitions is 16"):
        rooms.write(rooms.table("greedy", "more"), range(6))
    assert rooms.full == [None]
    rooms.write(rooms.table("modest"), range(6))
    with pytest.raises(LimitReached, match="daemon_partitions"):
        rooms.write(rooms.table("modest"), [6])


def test_a_batch_with_as_many_partitions_as_are_allowed_finds_room_soon(tmp_path: Path) -> None:
    few, many = ({"p": list(range(start, start + 200))} for start in (0, 200))
    with (
        Daemon.start(tmp_path / "data", limits__partitions="200") as daemon,
        Client(daemon.flight, retry=RetryPolicy(for_s=15.0)) as client,
    ):
        client.create_table("ns", "t", SCHEMA, partition_by=["identity(p)"])
        client.write("ns", "t", few)
        client.write("ns", "t", many)
        assert sorted(client.query("ns", "t")["p"].to_pylist()) == list(range(400))
