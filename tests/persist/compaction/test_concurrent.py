"""Compactions, writers and crashes in any order lose no row and duplicate none.

Everything that may happen while a compaction works happens between its tasks and its commit: the
rows of its groups are read before, and the commit decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.compaction import (
    FileGroup,
    InProcess,
    RewriteTask,
    Rewriting,
    Rewritten,
    plan_compaction,
    plan_move,
    plan_rewrite,
)
from persist.manifest import Manifest, verify, write_snapshot
from tests.drivers.memory_store import MemoryStore
from tests.persist.publish.tables import BuiltTable

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])


class Killed(Exception):
    """The process of a compaction ends before its commit."""


class World:
    """A table, its acknowledged rows, and the writers and compactions that change it."""

    def __init__(self, keyed: bool) -> None:
        self.keyed = keyed
        key = ["k"] if keyed else []
        self.built = BuiltTable(MemoryStore(), SCHEMA, ["bucket(2, k)"], key=key)
        self.model: list[tuple[int, int]] = []
        self.written = 0

    def write(self, keys: Sequence[int]) -> None:
        self.written += 1
        self.built.state = self.built.manifest.load()
        distinct = sorted(set(keys))
        rows = [{"k": key, "v": self.written} for key in distinct]
        table = pa.Table.from_pylist(rows, self.built.definition.schema)
        if self.keyed:
            self.built.upsert(table)
            self.model = [row for row in self.model if row[0] not in distinct]
        else:
            self.built.append(table)
        self.model += [(key, self.written) for key in distinct]

    def delete(self, key: int) -> None:
        if not self.keyed:
            return
        self.built.state = self.built.manifest.load()
        if any(row[0] == key for row in self.model):
            gone = pa.table({"k": [key]}, schema=pa.schema([SCHEMA.field("k")]))
            self.built.upsert(self.built.definition.schema.empty_table(), gone)
            self.model = [row for row in self.model if row[0] != key]

    def repartition(self, buckets: int) -> None:
        if not self.keyed:
            self.built.state = self.built.manifest.load()
            text = f"bucket({buckets}, k)"
            if self.built.definition.spec.texts() != (text,):
                self.built.partition_by(text)

    def widen(self, _: None) -> None:
        self.built.state = self.built.manifest.load()
        number = len(self.built.definition.schema)
        self.built.add_columns(pa.field(f"c{number}", pa.int64()))

    def snapshot(self, _: None) -> None:
        """A later reader starts here, so that it sees removals only as missing files."""
        write_snapshot(self.built.manifest, self.built.manifest.load())

    def compact(self, target: int, memory: int, meanwhile: Callable[[], None]) -> None:
        store, calls = self.built.store, 0
        runner = InProcess(store, memory)

        def overtaken(task: RewriteTask, groups: Sequence[FileGroup]) -> list[Rewritten]:
            nonlocal calls
            results = runner(task, groups)
            calls += 1
            if calls == 1:
                meanwhile()
            return results

        rewriting = Rewriting(Manifest(store, "ns", "t", 1), overtaken, target)
        rewriting.wave_bytes = 4_000
        planner = plan_rewrite if target == 1 else plan_compaction
        if planner is plan_rewrite:
            rewriting.rounds = 1
        report = rewriting.run([plan_move, planner])
        assert report.left == 0 or planner is plan_rewrite or report.refused

    def rows(self) -> list[tuple[int, int]]:
        state = self.built.manifest.load()
        tables = [self.built._read(self.built.manifest, add) for add in state.files.values()]
        found = [row for table in tables for row in table.to_pylist()]
        assert all(value is None for row in found for value in [*row.values()][2:])
        return sorted((row["k"], row["v"]) for row in found)


keys = st.lists(st.integers(0, 30), min_size=1, max_size=8)
plain = st.one_of(
    st.tuples(st.just("write"), keys),
    st.tuples(st.just("delete"), st.integers(0, 30)),
    st.tuples(st.just("repartition"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["die", "widen", "snapshot"]), st.none()),
)
sizes = st.tuples(st.sampled_from([1, 2_000, 100_000]), st.sampled_from([600, 1 << 30]))
operations = st.recursive(
    plain,
    lambda inner: st.tuples(st.just("compact"), st.tuples(sizes, st.lists(inner, max_size=4))),
)


def act(world: World, operation: Any) -> None:
    name, argument = operation
    if name == "compact":
        (target, memory), inner = argument

        def meanwhile() -> None:
            for each in inner:
                if each[0] == "die":
                    raise Killed
                act(world, each)

        with contextlib.suppress(Killed):
            world.compact(target, memory, meanwhile)
    elif name != "die":
        getattr(world, name)(argument)


@settings(max_examples=60, deadline=None)
@given(keyed=st.booleans(), steps=st.lists(operations, min_size=3, max_size=12))
def test_rows_stay_as_they_are_acknowledged(keyed: bool, steps: list[Any]) -> None:
    world = World(keyed)
    for step in steps:
        act(world, step)
        assert world.rows() == sorted(world.model)
    found = verify(Manifest(world.built.store, "ns", "t", 1))
    assert not found.damaged


def test_a_replaced_row_does_not_come_back_with_a_compaction() -> None:
    world = World(keyed=True)
    for first in range(0, 12, 4):
        world.write(range(first, first + 4))

    def meanwhile() -> None:
        world.write([1])
        world.delete(2)

    world.compact(100_000, 1 << 30, meanwhile)
    assert world.rows() == sorted(world.model)
    assert (1, 1) not in world.rows() and 2 not in dict(world.rows())
