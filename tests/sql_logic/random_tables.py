"""Random tables at a daemon, and an exact model of their rows in memory.

plain      all types, in the order of writing
keyed      a primary key; rows are updated and deleted
daily      partitioned by day and bucket, sorted
named      partitioned by the value of a text
evolved    begins with few columns and gets others, which older files lack
nanos      nanoseconds
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf, nan
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ingester.client import Client

BOUNDARY = 1_000_000
"""Rows with a larger ``id`` are of the writer that writes during queries."""
_US, _UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")
_INNER = pa.struct([("c", pa.float64()), ("d", pa.list_(pa.int16()))])
_ITEM = pa.struct([("k", pa.int32()), ("v", pa.string())])
COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(), "g": pa.int32(), "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(),
    "i64": pa.int64(), "u8": pa.uint8(), "u16": pa.uint16(), "u32": pa.uint32(),
    "u64": pa.uint64(), "f32": pa.float32(), "f64": pa.float64(), "b": pa.bool_(),
    "s": pa.string(), "x": pa.binary(), "d10": pa.decimal128(10, 2),
    "d38": pa.decimal128(38, 10), "d4": pa.decimal128(4, 1), "day": pa.date32(), "t": _US,
    "utc": _UTC, "berlin": pa.timestamp("us", "Europe/Berlin"), "li": pa.list_(pa.int32()),
    "ls": pa.list_(pa.string()),
    "st": pa.struct([("a", pa.int64()), ("b", pa.string()), ("n", _INNER)]),
    "m": pa.map_(pa.string(), pa.int64()), "sl": pa.list_(_ITEM),
}  # fmt: skip
TEXTS = [
    "", "a", "b", "ab", "A", "Ab%", "a_b", "a\\b", "'", '"', "\n", " a ", "é", "e\u0301", "ß",
    "😀", "日本語", "null", "NaN", "0", "-1", "1e3", "2024-02-30", "x" * 40, "a\x00b", "\U0010ffff",
]  # fmt: skip
FLOATS = [nan, inf, -inf, 0.0, -0.0, 0.1, -2.5, 1.0, 16777217.0, 1e300, 5e-324]
TIMES = [
    dt.datetime(1970, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.datetime(2024, 2, 29, 12, 0, 0, 1), dt.datetime(2024, 3, 31, 1, 30),
    dt.datetime(2024, 10, 27, 0, 30), dt.datetime(2024, 10, 27, 1, 30), dt.datetime(1890, 1, 1),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1, 1, 1),
]  # fmt: skip


def value(random: Random, kind: pa.DataType) -> Any:
    """Return a value of a type: often from a small set, sometimes an extreme, sometimes null."""
    if random.random() < 0.12:
        return None
    t = pa.types
    if t.is_integer(kind):
        bits, signed = kind.bit_width, t.is_signed_integer(kind)
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        rare = [low, high, low + 1, high - 1, 0]
        return random.choice(rare) if random.random() < 0.1 else random.randint(max(low, -3), 9)
    if t.is_floating(kind):
        number = random.choice(FLOATS) if random.random() < 0.4 else random.randint(-40, 40) / 4
        return 3e38 if kind == pa.float32() and number == 1e300 else number
    if t.is_boolean(kind):
        return random.random() < 0.5
    if t.is_string(kind):
        return random.choice(TEXTS)
    if t.is_binary(kind):
        return random.choice([b"", b"\x00", b"\xff\xfe", b"ab", b"a\x00", bytes(range(20))])
    if t.is_decimal(kind):
        digits = kind.precision if random.random() < 0.1 else min(kind.precision, 4)
        unscaled = random.choice([1, -1]) * random.choice([0, 5, random.randrange(10**digits)])
        return Decimal(unscaled).scaleb(-kind.scale)
    if t.is_date32(kind):
        return (_time(random)).date()
    if t.is_timestamp(kind):
        found = _time(random)
        if kind.unit == "ns":
            found = found.replace(year=min(max(found.year, 1700), 2200))
        return found.replace(tzinfo=dt.UTC) if kind.tz else found
    return _nested(random, kind)


def _time(random: Random) -> dt.datetime:
    if random.random() < 0.3:
        return random.choice(TIMES)
    return dt.datetime(2024, 2, 28) + dt.timedelta(minutes=random.randrange(-9000, 9000) * 10)


def _nested(random: Random, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {each.name: value(random, each.type) for each in kind}
    length = random.choice([0, 1, 2, 3, 5])
    if pa.types.is_map(kind):
        keys = random.sample(TEXTS, length)
        return [(key, value(random, kind.item_type)) for key in keys]
    return [value(random, kind.value_type) for _ in range(length)]


def rows(random: Random, schema: pa.Schema, ids: list[int]) -> pa.RecordBatch:
    """Return a row for each id. Of many rows, other columns repeat those of the first 200."""
    count = min(len(ids), 200)
    columns = {
        each.name: pa.array([value(random, each.type) for _ in range(count)], each.type)
        for each in schema
    }
    if count < len(ids):
        order = pa.array([random.randrange(count) for _ in ids])
        columns = {name: column.take(order) for name, column in columns.items()}
    groups = [*range(max(12, len(ids) // 4)), None]
    columns["id"] = pa.array(ids, pa.int64())
    columns["g"] = pa.array([random.choice(groups) for _ in ids], pa.int32())
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


@dataclass
class RandomTable:
    """A table and all its rows.

    Attributes:
        schema: The columns that are written now.
        rows: As the daemon stores them.
    """

    name: str
    schema: pa.Schema
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    unit: str = "us"
    rows: pa.Table = field(init=False)

    def __post_init__(self) -> None:
        self.rows = self.schema.empty_table()


def tables() -> list[RandomTable]:
    """Return the tables, without rows."""
    whole = pa.schema(COLUMNS)
    few = pa.schema({name: COLUMNS[name] for name in ("id", "g", "i32", "s", "t")})
    nanos = {**COLUMNS, "t": pa.timestamp("ns"), "utc": pa.timestamp("ns", "UTC")}
    del nanos["berlin"]
    return [
        RandomTable("plain", whole),
        RandomTable("keyed", whole, key=("id",)),
        RandomTable("daily", whole, partition_by=("month(t)", "bucket(3, s)"), sort_by=("g", "s")),
        RandomTable("named", whole, key=("id",), partition_by=("bucket(4, id)",)),
        RandomTable("valued", whole, partition_by=("identity(g)",)),
        RandomTable("evolved", few),
        RandomTable("nanos", pa.schema(nanos), unit="ns"),
    ]


class World:
    """All tables of one seed. Methods may be called from several threads for different tables."""

    def __init__(self, client: Client, namespace: str, random: Random) -> None:
        self.client = client
        self.namespace = namespace
        self.random = random
        self.tables = {table.name: table for table in tables()}
        self.changed: set[str] = set(self.tables)
        self._next = 0
        for table in self.tables.values():
            client.create_table(
                namespace,
                table.name,
                table.schema,
                primary_key=table.key or None,
                partition_by=table.partition_by or None,
                sort_by=table.sort_by or None,
                timestamp_unit="ns" if table.unit == "ns" else None,
            )

    def write(self, name: str, count: int) -> None:
        """Write new rows; of a keyed table also new values of old keys."""
        table = self.tables[name]
        ids = [self._next + i for i in range(count)]
        self._next += count
        if table.key and table.rows.num_rows:
            old = table.rows["id"].to_pylist()
            ids = [i for i in ids if self.random.random() < 0.5]
            ids += self.random.sample(old, min(len(old), count // 2))
        if ids:
            self.put(name, rows(self.random, table.schema, ids))

    def put(self, name: str, batch: pa.RecordBatch) -> None:
        """Write a batch and put it into the model."""
        self.client.write(self.namespace, name, batch)
        self.remember(name, batch)

    def remember(self, name: str, batch: pa.RecordBatch) -> None:
        """Put a written batch into the model."""
        table = self.tables[name]
        kept = table.rows
        if table.key:
            kept = kept.filter(pc.invert(pc.is_in(kept["id"], batch.column("id"))))
        table.rows = pa.concat_tables([kept, pa.Table.from_batches([batch])])
        self.changed.add(name)

    def delete(self, name: str, share: float) -> None:
        """Delete some rows of a keyed table, and keys that do not exist."""
        table = self.tables[name]
        ids = [i for i in table.rows["id"].to_pylist() if self.random.random() < share]
        gone = pa.array([*ids, 900_000], pa.int64())
        self.client.delete(self.namespace, name, pa.table({"id": gone}))
        table.rows = table.rows.filter(pc.invert(pc.is_in(table.rows["id"], gone)))
        self.changed.add(name)

    def evolve(self) -> None:
        """Add columns to the table ``evolved``."""
        table = self.tables["evolved"]
        left = [name for name in COLUMNS if name not in table.schema.names]
        for name in self.random.sample(left, min(len(left), 4)):
            table.schema = table.schema.append(pa.field(name, COLUMNS[name]))
        missing = table.schema.names[len(table.rows.schema) :]
        for name in missing:
            nulls = pa.nulls(table.rows.num_rows, COLUMNS[name])
            table.rows = table.rows.append_column(table.schema.field(name), nulls)
        self.write("evolved", 5)

    def persist(self, name: str) -> int:
        """Flush a table; return the version with all its rows."""
        (done,) = self.client.persist(self.namespace, name)
        assert done.manifest_version is not None
        return done.manifest_version

    def persist_all(self) -> None:
        """Flush all tables."""
        self.client.persist(self.namespace)

    def take_changed(self) -> Mapping[str, pa.Table]:
        """Return the rows of the tables that changed since the last call."""
        found = {name: self.tables[name].rows for name in self.changed}
        self.changed = set()
        return found


class Writer(threading.Thread):
    """Writes rows beyond the boundary into some tables, and flushes, until it is stopped."""

    def __init__(self, world: World, names: list[str], seed: int) -> None:
        super().__init__()
        self._world = world
        self._names = names
        self._random = Random(seed)
        self._ended = threading.Event()
        self.written: list[tuple[str, pa.RecordBatch]] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        """See :class:`Writer`."""
        try:
            while not self._ended.wait(0.05):
                self._step()
        except BaseException as exc:
            self.failure = exc

    def _step(self) -> None:
        world, name = self._world, self._random.choice(self._names)
        ids = [BOUNDARY + self._random.randrange(500) for _ in range(20)]
        batch = rows(self._random, world.tables[name].schema, sorted(set(ids)))
        if not world.tables[name].key:
            fresh = BOUNDARY + 1000 * (len(self.written) + 1) + self._random.randrange(1 << 40)
            batch = batch.set_column(
                0, batch.schema.field(0), pa.array([fresh + i for i in range(batch.num_rows)])
            )
        world.client.write(world.namespace, name, batch)
        self.written.append((name, batch))
        if self._random.random() < 0.2:
            world.client.persist(world.namespace, name)

    def finish(self) -> None:
        """Stop, and put what was written into the model."""
        self._ended.set()
        self.join()
        if self.failure is not None:
            raise self.failure
        for name, batch in self.written:
            self._world.remember(name, batch)
