"""A table equals its model after writes, deletes, transactions, copies, kills and flushes.

The steps run in any order. The model is a dictionary. A copy replaces the whole table, including
key and columns; an abandoned copy changes nothing. Clean-up runs all the time with the shortest
limits.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from ingester.client import Client, SyncColumn, TableCopy
from tests.drivers.daemon import Daemon

STEPS = 60
NAMESPACE, TABLE, PARTITION = "n", "t", "source"
SHARP: dict[str, Any] = {
    "persist__max_age": "1h",
    "persist__target_file_bytes": 64 << 10,
    "manifest__retain": "100ms",
    "manifest__orphan_grace": "10s",
    "versions__keep": 1,
}


class Shape(NamedTuple):
    """The columns of a table, the key first, and a function from numbers to keys."""

    schema: pa.Schema
    key_of: Any

    @property
    def names(self) -> list[str]:
        return list(self.schema.names)

    def batch(self, rows: dict[Any, Any]) -> pa.RecordBatch:
        """Return a batch of rows, given as values by key."""
        columns = [
            pa.array(values, field.type)
            for values, field in zip((list(rows), list(rows.values())), self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


SHAPES = [
    Shape(pa.schema({"id": pa.int64(), "v": pa.string()}), int),
    Shape(pa.schema({"v": pa.string(), "id": pa.float64()}), str),
    Shape(pa.schema({"id": pa.string(), "w": pa.int32()}), str),
    Shape(pa.schema({"id": pa.int64(), "v": pa.int64()}), int),
]


class World:
    """A table, its daemon and its model."""

    def __init__(self, data: Path, seed: int) -> None:
        self.random = Random(seed)
        self.daemon = Daemon.start(data, **SHARP)
        self.client = Client(self.daemon.flight)
        self.shape = SHAPES[0]
        self.rows: dict[Any, Any] = {}
        self.state: bytes | None = None
        self.sequence = 0
        self.open: tuple[TableCopy, Shape, dict[Any, Any]] | None = None
        self.copied(SHAPES[0])

    def close(self) -> None:
        self.client.close()
        self.daemon.kill()

    def drawn(self, shape: Shape, most: int = 30) -> dict[Any, Any]:
        """Draw some rows."""
        kind = shape.schema.field(1).type
        rows: dict[Any, Any] = {}
        for _ in range(self.random.randrange(most)):
            number = self.random.randrange(40)
            value: Any = self.random.choice([None, number])
            if value is not None and pa.types.is_string(kind):
                value = f"v{number}"
            rows[shape.key_of(number)] = value
        return rows

    # Steps of the test.

    def write(self) -> None:
        rows = self.drawn(self.shape)
        if rows:
            self.client.write(NAMESPACE, TABLE, self.shape.batch(rows))
            self.rows |= rows

    def delete(self) -> None:
        keys = [key for key in self.rows if self.random.random() < 0.3]
        if keys:
            field = self.shape.schema.field(0)
            self.client.delete(NAMESPACE, TABLE, pa.table({field.name: pa.array(keys, field.type)}))
            for key in keys:
                del self.rows[key]

    def transaction(self) -> None:
        """Move some keys with their values, and insert rows."""
        key, value = self.shape.schema.field(0), self.shape.schema.field(1)
        olds: list[Any] = [key for key in self.rows if self.random.random() < 0.2]
        news = [f"{old}m" if isinstance(old, str) else old + 100 for old in olds]
        new = self.drawn(self.shape, 5)
        columns = [
            SyncColumn("old_pk", key.name),
            SyncColumn("new_pk", key.name),
            SyncColumn("value", value.name),
            SyncColumn("changed", value.name),
        ]
        none, kept = [None] * len(new), [None] * len(olds)
        batch = pa.record_batch(
            [
                pa.array([*olds, *none], key.type),
                pa.array([*news, *new], key.type),
                pa.array([*kept, *new.values()], value.type),
                pa.array([False] * len(olds) + [True] * len(new)),
            ],
            names=["a", "b", "c", "d"],
        )
        self.sequence += 1
        stream = self.client.sync(NAMESPACE, "changes")
        stream.send(TABLE, columns, batch, begin=True, sequence=self.sequence)
        for old, moved in zip(olds, news, strict=True):
            self.rows[moved] = self.rows.pop(old)
        self.rows |= new

    def put_state(self) -> None:
        self.state = str(self.random.random()).encode()
        self.client.put_checkpoint(NAMESPACE, TABLE, PARTITION, self.state)

    def persist(self) -> None:
        self.client.persist()

    def copy(self) -> None:
        self.copied(self.random.choice(SHAPES))

    def copied(self, shape: Shape) -> None:
        rows = self.drawn(shape)
        with self.client.copy(NAMESPACE, TABLE, shape.names[:1], schema=shape.schema) as copy:
            self.finished(copy, shape, rows)

    def finished(self, copy: TableCopy, shape: Shape, rows: dict[Any, Any]) -> None:
        copy.write(shape.batch(rows))
        self.state = str(self.random.random()).encode()
        copy.finish(PARTITION, self.state)
        self.shape, self.rows = shape, rows

    def slow_copy(self) -> None:
        """Start a copy; in a later step, continue, finish or abandon it."""
        if self.open is None:
            shape = self.random.choice(SHAPES)
            copy = self.client.copy(NAMESPACE, TABLE, shape.names[:1], schema=shape.schema)
            first = self.drawn(shape)
            copy.write(shape.batch(first))
            self.open = copy, shape, first
            return
        copy, shape, first = self.open
        self.open = None
        if self.random.random() < 0.4:
            copy.abort()
            return
        rest = {key: value for key, value in self.drawn(shape).items() if key not in first}
        self.finished(copy, shape, rest)
        self.rows = first | rest

    def kill(self) -> None:
        self.client.close()
        self.daemon.kill()
        self.daemon = self.daemon.again()
        self.client = Client(self.daemon.flight)
        self.open = None  # the process held the copy

    def check(self) -> None:
        found = self.client.query(NAMESPACE, TABLE)
        assert found.schema.names == self.shape.names
        key, values = (found[name].to_pylist() for name in self.shape.names)
        assert len(set(key)) == len(key)
        assert dict(zip(key, values, strict=True)) == self.rows
        assert self.client.checkpoint(NAMESPACE, TABLE, PARTITION).state == self.state


@pytest.mark.parametrize("seed", range(2))
def test_a_table_equals_its_model_whatever_comes(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path / "d", seed)
    steps = {
        world.write: 6,
        world.delete: 2,
        world.transaction: 4,
        world.put_state: 2,
        world.persist: 2,
        world.copy: 3,
        world.slow_copy: 4,
        world.kill: 1,
    }
    done: list[str] = []
    try:
        for _ in range(STEPS):
            [step] = world.random.choices(list(steps), list(steps.values()))
            done.append(step.__name__)
            step()
            world.check()
    except BaseException as exc:
        exc.add_note(f"seed {seed}: {', '.join(done)}")
        raise
    finally:
        world.close()
