"""Changes of a keyed table are carried over by a switch, and back by a rollback, each once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from itertools import chain
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.manifest import (
    EMPTY,
    Action,
    Manifest,
    PartitionKey,
    Properties,
    Proposal,
    Remove,
    Schema,
    Spec,
    TableState,
    VersionSealed,
    apply,
    commit,
)
from persist.parquet.copy_on_write import RewriteLimits
from persist.parquet.reading import FileDamaged
from persist.partitioning import UNPARTITIONED, PartitionSpec
from persist.switching import finish_switch, held_bytes, roll_back, switch_version
from persist.switching.keyed import apply_changes, changed_partitions
from persist.table import TableDefinition
from tests.drivers.keyed_files import Key, add_file, flushed, rows_of
from tests.drivers.memory_store import MemoryStore
from tests.drivers.pushing import Killed, KillingStore, PausingStore
from tests.persist.manifest.samples import ME, OTHER

WHOLE: PartitionKey = (1, ())
LONG = "x" * 70
"""Longer than the bounds that a file's statistics keep."""
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), st.integers(-20, 20)),
    "text": (pa.string(), st.text("ab", max_size=3) | st.just(LONG)),
    "day": (pa.date32(), st.dates()),
    "decimal": (pa.decimal128(6, 2), st.integers(-9, 9).map(lambda n: Decimal(n) / 4)),
}
VALUES = st.tuples(
    st.none() | st.sampled_from([0.0, 1.0, math.nan]),
    st.none() | st.lists(st.none() | st.sampled_from([1.0, math.nan]), max_size=2),
)
Content = dict[Key, tuple[Any, ...]]


def same(one: object, other: object) -> bool:
    """Whether two values are the same; NaN equals itself."""
    return repr(one) == repr(other)


def applied_to(content: Mapping[Key, Any], before: Content, after: Content) -> Content:
    """The rows after the changes between two other states are applied to them."""
    made = {key: row for key, row in content.items() if key in after or key not in before}
    written = {k: row for k, row in after.items() if k not in before or not same(before[k], row)}
    return made | written


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data(), room=st.sampled_from([1, 600, 1 << 20]))
def test_changes_are_applied_whatever_the_memory_limit(
    kind: str, data: st.DataObject, room: int
) -> None:
    arrow, values = KINDS[kind]
    fields = [("k", arrow), ("l", pa.int64()), ("v", pa.float64()), ("w", pa.list_(pa.float64()))]
    definition = TableDefinition(pa.schema(fields), UNPARTITIONED, primary_key=("k", "l"))
    keys = st.tuples(values, st.integers(0, 1))
    store = MemoryStore()
    source, target = (Manifest(store, "ns", "t", version) for version in (1, 2))
    here = made(target, definition, data, keys, "push")
    before = after = made(source, definition, data, keys)
    for _ in range(data.draw(st.integers(0, 3))):
        changes = data.draw(st.dictionaries(keys, st.none() | VALUES, max_size=6))
        after = apply(after, flushed(source, definition, after, WHOLE, changes))
        if data.draw(st.booleans()):
            after = apply(after, compacted(source, definition, after))
    expected = applied_to(
        rows_of(target, definition, here.files.values()),
        rows_of(source, definition, before.files.values()),
        rows_of(source, definition, after.files.values()),
    )

    changed = changed_partitions(before, after)
    done = apply_changes(source, changed, target, here, RewriteLimits(500, room))
    found = apply(here, chain.from_iterable(done.values()))
    rows = rows_of(target, definition, found.files.values())
    assert same(sorted(rows.items()), sorted(expected.items()))
    listed = {target.object_path(path) for path in [*here.files, *found.files]}
    assert listed == {info.path for info in store.list("ns/t/v2/data/")}, "no file is left over"


def made(
    manifest: Manifest,
    definition: TableDefinition,
    data: st.DataObject,
    keys: st.SearchStrategy[Key],
    kind: str = "persist",
) -> TableState:
    """A state with some files, in which each key occurs once."""
    state, there = apply(EMPTY, definition.actions()), set[Key]()
    for drawn in data.draw(st.lists(st.dictionaries(keys, VALUES, max_size=6), max_size=4)):
        rows = {key: row for key, row in drawn.items() if key not in there}
        if rows:
            state = apply(state, [add_file(manifest, definition, WHOLE, rows, kind)])
            there |= rows.keys()
    return state


def compacted(manifest: Manifest, definition: TableDefinition, state: TableState) -> list[Action]:
    """All files compacted into one."""
    files = [*state.files.values()]
    if not files:
        return []
    rows = rows_of(manifest, definition, files)
    removes = flushed(manifest, definition, state, WHOLE, dict.fromkeys(rows))
    return [*removes, add_file(manifest, definition, WHOLE, rows, "rewrite")]


# Through switches


TABLE = ("ns", "scores")
SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("v", pa.int64())])
DEFINITION = TableDefinition(
    SCHEMA, PartitionSpec.parse(["identity(p)"]), primary_key=("p", "k"), sort_by=("v",)
)
WIDER = DEFINITION.with_schema(SCHEMA.append(pa.field("w", pa.int64())))
STEPS = 12


class World:
    """A keyed table of two partitions, and the expected rows of its versions."""

    def __init__(self, random: Random) -> None:
        self.store = MemoryStore()
        self.random = random
        self.definition = DEFINITION
        self.stack = [1]
        self.rows: dict[int, Content] = {1: {}}
        self.past: dict[int, list[tuple[int, Content]]] = {1: [(0, {})]}
        """The rows of a table version at each version of its manifest since it became current."""
        self.pushes = 1
        self.value = 0
        commit(self.manifest(1), None, Proposal(DEFINITION.actions()), ME)
        self.note(1)

    @property
    def current(self) -> int:
        return self.stack[-1]

    def manifest(self, version: int) -> Manifest:
        return Manifest(self.store, *TABLE, version)

    def note(self, version: int) -> None:
        """Record the current rows of a version."""
        head = self.manifest(version).head()
        self.past[version].append((head, dict(self.rows[version])))

    def write(self) -> None:
        """Flush new rows, changed rows and deletes into the current version."""
        manifest, rows = self.manifest(self.current), self.rows[self.current]
        state = manifest.load()
        for values in ("a", "b"):
            changes: dict[Key, tuple[Any, ...] | None] = {}
            for key in {(values, self.random.randint(0, 9)) for _ in range(3)}:
                self.value += 1
                again = rows.get(key)
                new = (self.value, *[None] * (len(self.definition.schema) - 3))
                changes[key] = self.random.choice([None, new, new, again])
            actions = flushed(manifest, self.definition, state, (1, (values,)), changes)
            if actions:
                state = commit(manifest, state, Proposal(actions), ME)
            for key, row in changes.items():
                rows.pop(key, None)
                if row is not None:
                    rows[key] = row
        self.note(self.current)

    def compact(self) -> None:
        """Compact all files of a partition into one."""
        manifest = self.manifest(self.current)
        state = manifest.load()
        for key in state.partitions:
            rows = rows_of(manifest, self.definition, state.partitions[key])
            removes = [Remove(add.path, "compaction") for add in state.partitions[key]]
            add = add_file(manifest, self.definition, key, rows, "rewrite")
            state = commit(manifest, state, Proposal([*removes, add]), ME)
        self.note(self.current)

    def widen(self) -> None:
        """Add a column to the table."""
        if self.definition is DEFINITION:
            self.definition = WIDER
            action = WIDER.schema_action()
            commit(self.manifest(self.current), None, Proposal([action]), ME)
            self.rows = {v: {k: (*r, None) for k, r in rs.items()} for v, rs in self.rows.items()}
            self.past = {
                v: [(at, {k: (*r, None) for k, r in rs.items()}) for at, rs in past]
                for v, past in self.past.items()
            }
            self.note(self.current)

    def swap(self) -> None:
        """Push other rows and swap them in, with or without the changes made meanwhile."""
        self.pushes += 1
        version, old = self.pushes, self.current
        manifest, definition = self.manifest(version), self.definition
        state = self.manifest(old).load()
        defining = [a for a in state.actions() if isinstance(a, Schema | Spec | Properties)]
        commit(manifest, None, Proposal(defining), OTHER)
        width = [None] * (len(definition.schema) - 3)
        pushed: Content = {
            (values, k): (-self.random.randint(0, 99), *width)
            for values in ("a", "b")
            for k in range(10)
            if self.random.random() < 0.5
        }
        for values in ("a", "b"):
            rows = {key: row for key, row in pushed.items() if key[0] == values}
            if rows:
                add = add_file(manifest, definition, (1, (values,)), rows, "push")
                commit(manifest, None, Proposal([add]), OTHER)
        since: int | None = None
        base: Content = {}
        if self.random.random() < 0.8:
            since, base = self.random.choice(self.past[old])
        for _ in range(self.random.randint(0, 2)):
            self.write()
        self.until_done(
            lambda store: switch_version(
                store, *TABLE, version, push_id=f"push-{version}", since=since, previous=old
            )
        )
        along = pushed if since is None else applied_to(pushed, base, self.rows[old])
        self.rows[version], self.past[version] = dict(along), []
        self.stack.append(version)
        self.note(version)

    def back(self) -> None:
        """Roll back; changes made since the version became current are carried over."""
        if len(self.stack) == 1:
            return
        left = self.current
        began = self.past[left][0][1]
        self.until_done(lambda store: roll_back(store, *TABLE, left))
        self.stack.pop()
        self.rows[self.current] = applied_to(self.rows[self.current], began, self.rows[left])
        self.note(self.current)

    def until_done(self, move: Callable[[Any], object]) -> None:
        """Run a move in processes that are killed at some change, with concurrent or later ones."""
        while True:
            store: Any = PausingStore(self.store, self.random.randint(1, 150), self.write_beside)
            killing: Any = KillingStore(
                store, self.random.randint(1, 14), done=self.random.random() < 0.5
            )
            try:
                move(killing)
            except Killed:
                if self.random.random() < 0.5:
                    finish_switch(self.store, *TABLE)
            else:
                return

    def write_beside(self) -> None:
        """Flush during a move, before its seal."""
        with suppress(VersionSealed):
            self.write()

    def check(self) -> None:
        """The current version has exactly the expected rows, each key once."""
        manifest = Manifest(self.store, *TABLE)
        assert manifest.table_version == self.current
        state = manifest.load()
        assert TableDefinition.of_state(state).schema == self.definition.schema
        assert rows_of(manifest, self.definition, state.files.values()) == self.rows[self.current]
        for key, files in state.partitions.items():
            assert all(row[0] == key[1][0] for row in rows_of(manifest, self.definition, files))


@pytest.mark.parametrize("seed", range(12))
def test_the_current_version_has_the_changes_of_the_others(seed: int) -> None:
    random = Random(seed)
    world = World(random)
    world.write()
    moves = (world.write, world.compact, world.swap, world.swap, world.back, world.widen)
    for _ in range(STEPS):
        random.choice(moves)()
        world.check()


def test_a_damaged_file_is_found_before_anything_is_sealed() -> None:
    world = World(Random(1))
    world.write()
    manifest = world.manifest(2)
    keys: Content = {("a", k): (0,) for k in range(10)}
    pushed = add_file(manifest, DEFINITION, (1, ("a",)), keys, "push")
    commit(manifest, None, Proposal([*DEFINITION.actions(), pushed]), OTHER)
    world.store.put(manifest.object_path(pushed.path), b"\0" * pushed.bytes)
    with pytest.raises(FileDamaged, match=pushed.path):
        switch_version(world.store, *TABLE, 2, since=0)
    assert world.manifest(1).load().sealed is None
    world.write()
    world.check()


def test_rows_held_by_a_switch_are_counted() -> None:
    """A daemon that completes a switch holds them in its memory."""
    world = World(Random(1))
    for _ in range(3):
        world.write()
    manifest = world.manifest(2)
    keys: Content = {("a", k): (0,) for k in range(10)}
    pushed = add_file(manifest, DEFINITION, (1, ("a",)), keys, "push")
    commit(manifest, None, Proposal([*DEFINITION.actions(), pushed]), OTHER)
    held: list[int] = []

    class Watched(PausingStore):
        """Records the held bytes while files are read."""

        def open(self, path: str) -> Any:
            held.append(held_bytes())
            return self._inner.open(path)

    store: Any = Watched(world.store, 1 << 30, lambda: None)
    switch_version(store, *TABLE, 2, since=0)
    streamed = sum(add.bytes for add in world.manifest(1).load().files.values())
    assert held and min(held) > 0 and max(held) > streamed
    assert held_bytes() == 0
