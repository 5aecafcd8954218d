"""Sinks in memory: a bag of rows or rows by key, with or without transactions."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ingester.followers import FollowedTable, FollowerSink, Rows, StateKey

Row = tuple[Any, ...]


class Crash(Exception):
    """A simulated crash of the process."""


@dataclass
class Kept:
    """The rows of one copy."""

    rows: list[tuple[str, int, Row]] = field(default_factory=list)
    """Partition, group and row, for a table without a key."""
    by_key: dict[Row, tuple[str, Row]] = field(default_factory=dict)


@dataclass
class Disk:
    """The data that outlives a sink: the visible copy, one in progress, and the states."""

    shown: Kept | None = None
    building: Kept | None = None
    states: dict[StateKey, bytes] = field(default_factory=dict)

    @property
    def target(self) -> Kept:
        """The copy that takes new rows."""
        kept = self.shown if self.building is None else self.building
        assert kept is not None, "rows before any version was begun"
        return kept


class PlainSink(FollowerSink):
    """A sink with only the six required calls."""

    version = "1"

    def __init__(self, table: FollowedTable, disk: Disk) -> None:
        self.table = table
        self.disk = disk
        self.calls: list[str] = []
        self.before_call: Callable[[str], None] = lambda call: None

    def _called(self, call: str) -> None:
        self.calls.append(call)
        self.before_call(call)

    def on_start_version(self, partitions: Sequence[str], is_current: bool) -> None:
        self._called("on_start_version")
        if is_current:
            self.disk.shown, self.disk.building = Kept(), None
        else:
            self.disk.building = Kept()

    def put(self, rows: Rows) -> None:
        self._called("put")
        table = rows.tagged()
        names = table.column_names[:-2]
        kept = self.disk.target
        for values in table.to_pylist():
            row = tuple((name, values[name]) for name in names if values[name] is not None)
            if self.table.keyed:
                key = tuple(values[name] for name in self.table.primary_key)
                kept.by_key[key] = (values["_part"], row)
            else:
                kept.rows.append((values["_part"], values["_at"], row))

    def delete(self, keys: pa.Table) -> None:
        self._called("delete")
        assert keys.column_names == list(self.table.primary_key)
        for values in keys.to_pylist():
            self.disk.target.by_key.pop(tuple(values.values()), None)

    def on_end_version(self, current: bool) -> None:
        self._called("on_end_version")
        if self.disk.building is not None:
            self.disk.shown, self.disk.building = self.disk.building, None

    def on_recovery(self) -> None:
        self._called("on_recovery")


class OwnStates:
    """The state store of a sink."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def get(self, key: StateKey) -> bytes | None:
        return self._disk.states.get(key)

    def put(self, key: StateKey, state: bytes) -> None:
        self._disk.states[key] = state

    def delete(self, key: StateKey) -> None:
        self._disk.states.pop(key, None)


class StatefulSink(PlainSink):
    """A plain sink that stores its own states."""

    def checkpoint_store(self) -> OwnStates:
        return OwnStates(self.disk)


class MemorySink(StatefulSink):
    """A sink with transactions that can remove rows again."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        before = copy.deepcopy(self.disk.__dict__)
        try:
            yield
            self._called("commit")
        except BaseException:
            self.disk.__dict__.update(before)
            raise

    def take_back(self, part: str, groups: Sequence[int]) -> None:
        self._called("take_back")
        kept = self.disk.target
        assert 0 not in groups
        kept.rows = [row for row in kept.rows if row[0] != part or row[1] not in groups]

    def take_back_all(self, part: str, keep: Sequence[int] = ()) -> None:
        self._called("take_back_all")
        kept = self.disk.target
        kept.rows = [row for row in kept.rows if row[0] != part or row[1] in keep]
        kept.by_key = {key: row for key, row in kept.by_key.items() if row[0] != part}


def content(disk: Disk, keyed: bool) -> Counter[Row]:
    """The rows that readers see."""
    if disk.shown is None:
        return Counter()
    if keyed:
        return Counter(row for _, row in disk.shown.by_key.values())
    return Counter(row for _, _, row in disk.shown.rows)
