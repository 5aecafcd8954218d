"""Makes tables of each kind through a real daemon; a test publishes them along the way.

A maker writes through the daemon and yields after each stage, where the table is published. It is
listed in :data:`MAKERS` with the filters that are tried on it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import inf, nan
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from ingester.client import Client
from persist.compaction import TARGET_FILE_BYTES, InProcess, Rewriting, plan_compaction
from persist.manifest import Manifest
from persist.store import ObjectStore
from persist.switching import roll_back, switch_version
from tests.drivers.all_types import all_types
from tests.drivers.pushing import push_some
from tests.drivers.wire import NOON_US, Table, create, delete, events, persist, put
from tests.open_tables.terms import Term, Terms

FOLDERS = ["a/b c%é", "", None, "007", "7", "null", "x=y", "a%2Fb", "+1 ?#&", "ü" * 20]
"""Values of an identity partition that are hard to encode, or easy to confuse."""
LONG = ["z" * 300, "é" * 300, "\U0010fffd" * 40, "a" * 299 + "b", "a" * 300]
"""Bounds of these must be cut, and the upper one rounded up."""
NOON = dt.datetime.fromtimestamp(NOON_US // 1_000_000, dt.UTC)
FAR_US = [-62_135_596_800_000_000, -1, 0, 1, -86_400_000_001, 253_402_300_799_999_999, NOON_US,
          NOON_US + 999, NOON_US + 1]  # fmt: skip
"""The year 1, around 1970, the last microsecond of 9999, and parts of a millisecond."""
BEYOND_US = [253_402_300_800_000_000, 1 << 60, -(1 << 60), (1 << 63) - 1, -(1 << 63)]
"""Years that Python's datetime does not have."""


@dataclass(frozen=True, slots=True)
class World:
    """What a maker may use."""

    client: fl.FlightClient
    endpoint: str
    store: ObjectStore

    def write(self, table: Table, *batches: pa.RecordBatch) -> None:
        """Write batches and flush them."""
        put(self.client, table, *batches)
        persist(self.client, table)

    def compact(self, table: Table) -> None:
        """Merge the small files of a table, which must have some."""
        runner = InProcess(self.store, 256 << 20)
        rewriting = Rewriting(Manifest(self.store, *table), runner, TARGET_FILE_BYTES)
        report = rewriting.run([plan_compaction])
        assert report.files_after < report.files_before


Maker = Callable[[World, Table], Iterator[None]]


def appended(world: World, table: Table) -> Iterator[None]:
    """Partitions by day, the default: three flushes."""
    for first in (0, 100, 200):
        world.write(table, events(first, 100, days=3))
        yield


def keyed(world: World, table: Table) -> Iterator[None]:
    """Rows by key: inserted, replaced, deleted."""
    schema = pa.schema([("n", pa.int64()), ("s", pa.string()), ("v", pa.float64())])
    create(world.client, table, schema, primary_key=["n"], partition_by=["bucket(3, n)"])
    world.write(table, _keyed(0, 60, "first"))
    yield
    world.write(table, _keyed(30, 60, "second"))
    yield
    delete(world.client, table, pa.record_batch({"n": pa.array(range(20, 70), pa.int64())}))
    persist(world.client, table)
    yield
    world.write(table, _keyed(25, 1, "again"))
    yield


def _keyed(first: int, count: int, text: str) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "n": pa.array(numbers, pa.int64()),
            "s": pa.array([None if n % 5 == 0 else f"{text} {n}" for n in numbers]),
            "v": pa.array([n / 4 for n in numbers]),
        }
    )


def emptied(world: World, table: Table) -> Iterator[None]:
    """A table without rows, with rows, and without again."""
    schema = pa.schema([("n", pa.int64()), ("s", pa.string()), ("v", pa.float64())])
    create(world.client, table, schema, primary_key=["n"])
    yield
    world.write(table, _keyed(0, 10, "x"))
    yield
    delete(world.client, table, pa.record_batch({"n": pa.array(range(10), pa.int64())}))
    persist(world.client, table)
    yield


def by_identity(world: World, table: Table) -> Iterator[None]:
    """Partitions by texts that are hard to encode."""
    schema = pa.schema([("n", pa.int64()), ("zip", pa.string()), ("v", pa.int64())])
    create(world.client, table, schema, partition_by=["identity(zip)"])
    for first in (0, 30):
        rows = range(first, first + 30)
        zips = pa.array([FOLDERS[n % len(FOLDERS)] for n in rows], pa.string())
        world.write(
            table,
            pa.record_batch(
                {"n": pa.array(rows, pa.int64()), "zip": zips, "v": pa.array(rows, pa.int64())}
            ),
        )
        yield


def by_values(world: World, table: Table) -> Iterator[None]:
    """Partitions by the identity of a boolean, a date, integers and a decimal."""
    create(
        world.client,
        table,
        _VALUES.schema,
        partition_by=["identity(b)", "identity(d)", "identity(i)", "identity(x)"],
    )
    world.write(table, _VALUES)
    yield


_VALUES = pa.record_batch(
    {
        "n": pa.array(range(6), pa.int64()),
        "b": pa.array([True, False, None, True, True, False]),
        "d": pa.array([0, -1, None, 20_000, -719_162, 2_932_896], pa.int32()).view(pa.date32()),
        "i": pa.array([-(1 << 31), (1 << 31) - 1, None, 0, 7, 7], pa.int32()),
        "x": pa.array([Decimal("-0.50"), Decimal("99999.99"), None, Decimal(0), Decimal("7.00"),
                       Decimal("7.00")], pa.decimal128(7, 2)),
    }
)  # fmt: skip


def _moments(first: int) -> pa.RecordBatch:
    count = len(FAR_US)
    micros = pa.array(FAR_US, pa.int64())
    return pa.record_batch(
        {
            "n": pa.array(range(first, first + count), pa.int64()),
            "t": micros.view(pa.timestamp("us", "UTC")),
            "wall": micros.view(pa.timestamp("us")),
            "d": pa.array([value // 86_400_000_000 for value in FAR_US], pa.int32()).view(
                pa.date32()
            ),
        }
    )


def by_time(*spec: str) -> Maker:
    """Partitions by parts of times, from the year 1 to 9999."""

    def make(world: World, table: Table) -> Iterator[None]:
        create(world.client, table, _moments(0).schema, partition_by=list(spec))
        for first in (0, 100):
            world.write(table, _moments(first))
            yield

    return make


def by_bucket(world: World, table: Table) -> Iterator[None]:
    """Partitions by buckets of several types."""
    batch = pa.record_batch(
        {
            "n": pa.array(range(40), pa.int64()),
            "s": pa.array([None if n % 9 == 0 else f"é{n}" for n in range(40)]),
            "d": pa.array([n * 300 - 6000 for n in range(40)], pa.int32()).view(pa.date32()),
            "x": pa.array([Decimal(n * 7 - 100) for n in range(40)], pa.decimal128(20, 2)),
            "y": pa.array([bytes([n]) * (n % 4) for n in range(40)], pa.binary()),
        }
    )
    spec = ["bucket(2, n)", "bucket(2, s)", "bucket(2, d)", "bucket(2, x)", "bucket(2, y)"]
    create(world.client, table, batch.schema, partition_by=spec)
    world.write(table, batch)
    yield


def evolved(world: World, table: Table) -> Iterator[None]:
    """Columns added between flushes, nested ones too."""
    schema = pa.schema([("n", pa.int64())])
    create(world.client, table, schema)
    added: list[tuple[str, pa.DataType, Any]] = [
        ("a", pa.string(), "x"),
        ("st", pa.struct([("k", pa.int32()), ("l", pa.list_(pa.string()))]), {"k": 1, "l": ["y"]}),
        ("d", pa.float64(), -0.5),
        ("m", pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        ("b", pa.bool_(), True),
    ]
    for count in range(len(added) + 1):
        columns = {name: pa.array([value] * 10, kind) for name, kind, value in added[:count]}
        numbers = pa.array(range(count * 10, count * 10 + 10), pa.int64())
        world.write(table, pa.record_batch({"n": numbers, **columns}))
        yield


def compacted(world: World, table: Table) -> Iterator[None]:
    """Small files of three days, merged twice, with rows in between."""
    for first in range(0, 150, 30):
        world.write(table, events(first, 30, days=3))
    yield
    world.compact(table)
    yield
    world.write(table, events(150, 60, days=3))
    yield
    world.compact(table)
    yield


def odd_names(world: World, table: Table) -> Iterator[None]:
    """Columns and partitions whose names are hard to quote or to encode."""
    names = ["a b", "a.b", "é", "select", "x=y", "1st", "Upper", "semi;colon"]
    numbers = range(12)
    columns = {name: pa.array([f"{name} {n % 3}" for n in numbers]) for name in names}
    batch = pa.record_batch({"n": pa.array(numbers, pa.int64()), **columns})
    spec = ["identity(a b)", "bucket(2, é)"]
    create(world.client, table, batch.schema, partition_by=spec)
    world.write(table, batch)
    yield


def switched(world: World, table: Table) -> Iterator[None]:
    """Another table version becomes current, rows arrive, it is rolled back, rows arrive."""
    for first in (0, 100):
        world.write(table, events(first, 100, days=2))
        yield
    first_file = min(Manifest(world.store, *table).load().files.values(), key=lambda add: add.at)
    number = push_some(world.store, table, wanted=lambda add: add.path == first_file.path)
    yield
    switch_version(world.store, *table, number)
    yield
    world.write(table, events(300, 50, days=2))
    yield
    roll_back(world.store, *table)
    yield
    world.write(table, events(400, 50, days=2))
    yield


def defined_again(world: World, table: Table) -> Iterator[None]:
    """A copy replaces the table by one with other columns under the same names."""
    create(world.client, table, events(0, 1).schema, primary_key=["i"])
    world.write(table, events(0, 50, days=2))
    yield
    schema = pa.schema([("n", pa.int64()), ("v", pa.string()), ("i", pa.date32())])
    rows = [{"n": n, "v": f"text {n}", "i": dt.date(2026, 1, 1)} for n in range(20)]
    with (
        Client(f"grpc://{world.endpoint.split('://')[-1]}") as client,
        client.copy(*table, ["n"]) as copy,
    ):
        copy.write(pa.Table.from_pylist(rows, schema))
        copy.finish("source", b"here")
    yield
    world.write(table, pa.RecordBatch.from_pylist([*rows[:5], {**rows[5], "v": "new"}], schema))
    yield


def every_type(world: World, table: Table) -> Iterator[None]:
    """A column of each type that can be published, with the extremes of each."""
    rows = _years_of_python(_signed(all_types("us")))
    create(world.client, table, rows.schema, partition_by=[])
    world.write(table, *rows.slice(0, 5).combine_chunks().to_batches())
    yield
    world.write(table, *rows.slice(5).combine_chunks().to_batches())
    yield


def beyond(world: World, table: Table) -> Iterator[None]:
    """Times and days that Python does not have: beyond the year 9999 and before the year 1."""
    micros = pa.array(BEYOND_US, pa.int64())
    batch = pa.record_batch(
        {
            "n": pa.array(range(len(BEYOND_US)), pa.int64()),
            "t": micros.view(pa.timestamp("us", "UTC")),
            "wall": micros.view(pa.timestamp("us")),
            "d": pa.array([2_932_897, -719_529, 1 << 30, -(1 << 30), 0], pa.int32()).view(
                pa.date32()
            ),
        }
    )
    create(world.client, table, batch.schema, partition_by=[])
    world.write(table, batch)
    yield


def _signed(rows: pa.Table) -> pa.Table:
    """Without the columns of unsigned types, which no format has."""
    wanted = [f.name for f in rows.schema if "uint" not in str(f.type)]
    return rows.select(wanted)


def _years_of_python(rows: pa.Table) -> pa.Table:
    """The same rows, without times and days outside the years 1 to 9999."""
    for index, field in enumerate(rows.schema):
        column = rows[field.name].combine_chunks()
        if pa.types.is_timestamp(field.type) or pa.types.is_date32(field.type):
            wide = pa.types.is_timestamp(field.type)
            numbers = column.view(pa.int64() if wide else pa.int32()).to_pylist()
            unit = 86_400_000_000 if wide else 1
            kept = [
                n if n is None or -719_162 * unit <= n < 2_932_897 * unit else None for n in numbers
            ]
            array = pa.array(kept, pa.int64() if wide else pa.int32()).view(field.type)
            rows = rows.set_column(index, field, array)
    return rows


def extremes(world: World, table: Table) -> Iterator[None]:
    """A file per row, so that bounds decide which files a filter reads."""
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("f", pa.float64()),
            ("f32", pa.float32()),
            ("s", pa.string()),
            ("y", pa.binary()),
            ("i", pa.int64()),
            ("x", pa.decimal128(38, 10)),
            ("t", pa.timestamp("us", "UTC")),
        ]
    )
    floats = [nan, inf, -inf, -0.0, 0.0, 0.1, None, 1e308]
    texts = [*LONG, "", None, "plain"]
    ints = [(1 << 63) - 1, -(1 << 63), 0, (1 << 53) + 1, None, -1, 1, 5]
    create(world.client, table, schema, partition_by=["identity(n)"])
    rows = [
        {
            "n": n,
            "f": floats[n],
            "f32": 3.4028234663852886e38 if n == 7 else floats[n],
            "s": text,
            "y": None if text is None else text.encode(),
            "i": number,
            "x": None if number is None else Decimal(f"{number}.0123456789"),
            "t": NOON + dt.timedelta(microseconds=n * 333),
        }
        for n, (text, number) in enumerate(zip(texts, ints, strict=True))
    ]
    world.write(table, pa.RecordBatch.from_pylist(rows[:6], schema))
    yield
    # Two rows in one file: -0.0 and 0.0, or a value and null.
    world.write(table, pa.RecordBatch.from_pylist([*rows[6:], {"n": 6, "f": -0.0}], schema))
    yield


def wide(world: World, table: Table) -> Iterator[None]:
    """A thousand columns and few rows."""
    kinds = (pa.int64(), pa.string(), pa.float64(), pa.timestamp("us", "UTC"))
    fields = [("n", pa.int64()), *((f"c{k}", kinds[k % 4]) for k in range(999))]
    schema = pa.schema(fields)
    create(world.client, table, schema, partition_by=[])
    values: tuple[Any, ...] = (1, "x", 0.5, NOON)
    rows = [{"n": n, **{f"c{k}": values[k % 4] for k in range(n, 999, 7)}} for n in range(3)]
    world.write(table, pa.RecordBatch.from_pylist(rows, schema))
    yield


def _days(column: str = "time") -> list[Terms]:
    return [
        (Term(column, ">=", NOON + dt.timedelta(days=1)),),
        (Term(column, "<", NOON + dt.timedelta(days=1)),),
        (Term(column, "=", NOON + dt.timedelta(days=1, microseconds=1)),),
        (Term("v", ">", 40.0), Term("host", "=", "h3")),
        (Term("host", "null"),),
    ]


def _times(column: str, zone: dt.tzinfo | None) -> list[Terms]:
    at = NOON.replace(tzinfo=zone)
    epoch = dt.datetime(1970, 1, 1, tzinfo=zone)
    return [
        (Term(column, "=", at + dt.timedelta(microseconds=999)),),
        (
            Term(column, ">", at + dt.timedelta(microseconds=1)),
            Term(column, "<", at + dt.timedelta(hours=1)),
        ),
        (Term(column, "<", epoch),),
        (Term(column, ">=", epoch),),
        (Term(column, "=", epoch - dt.timedelta(microseconds=1)),),
        (Term(column, "<=", dt.datetime(1, 1, 1, tzinfo=zone)),),
    ]


_TIMES: list[Terms] = [
    *_times("t", dt.UTC),
    *_times("wall", None),
    (Term("d", "=", dt.date(1969, 12, 31)),),
    (Term("d", "<=", dt.date(1970, 1, 1)),),
]

_KEYED: list[Terms] = [
    (Term("n", "=", 25),),
    (Term("n", ">", 65),),
    (Term("s", "null"),),
    (Term("s", "=", "second 71"),),
    (Term("v", "<=", 5.0), Term("n", "in", [1, 2, 20, 99])),
]

MAKERS: Mapping[str, tuple[Maker, list[Terms]]] = {
    "appended": (appended, _days()),
    "keyed": (keyed, _KEYED),
    "emptied": (emptied, [(Term("n", ">", 3),)]),
    "by_identity": (
        by_identity,
        [(Term("zip", "=", value),) for value in FOLDERS if value is not None]
        + [
            (Term("zip", "null"),),
            (Term("zip", "not null"), Term("v", "<", 12)),
            (Term("zip", "!=", "007"),),
            (Term("zip", ">", "a"),),
        ],
    ),
    "by_values": (
        by_values,
        [
            (Term("b", "=", True),),
            (Term("b", "null"),),
            (Term("d", "=", dt.date(1969, 12, 31)),),
            (Term("d", "<", dt.date(1970, 1, 1)),),
            (Term("i", "=", -(1 << 31)),),
            (Term("i", ">", 0), Term("b", "=", False)),
            (Term("x", "=", Decimal("7.00")),),
            (Term("x", "<", Decimal("0.00")),),
        ],
    ),
    "by_year": (by_time("year(t)", "year(wall)"), _TIMES),
    "by_month": (by_time("month(t)", "month(d)"), _TIMES),
    "by_day": (by_time("day(t)", "day(wall)", "day(d)"), _TIMES),
    "by_hour": (by_time("hour(t)", "hour(wall)"), _TIMES),
    "by_bucket": (
        by_bucket,
        [
            *((Term("n", "=", n),) for n in (0, 7, 39)),
            (Term("s", "=", "é7"),),
            (Term("s", "null"),),
            (Term("d", "=", dt.date(1970, 1, 1) + dt.timedelta(days=300 - 6000)),),
            (Term("x", "=", Decimal("-93.00")),),
            (Term("n", "in", [3, 4, 5]),),
        ],
    ),
    "evolved": (
        evolved,
        [(Term("a", "null"),), (Term("d", "=", -0.5),), (Term("b", "=", True), Term("n", ">", 55))],
    ),
    "compacted": (compacted, _days()),
    "odd_names": (
        odd_names,
        [
            (Term("a b", "=", "a b 1"),),
            (Term("é", "=", "é 2"), Term("select", "=", "select 2")),
            (Term("Upper", ">", "Upper 1"),),
        ],
    ),
    "switched": (switched, _days()),
    "defined_again": (defined_again, [(Term("v", "=", "new"),), (Term("v", "=", "text 7"),)]),
    "every_type": (
        every_type,
        [
            (Term("n", "<", 4),),
            (Term("s", "=", ""),),
            (Term("i64", "=", -(1 << 63)),),
            (Term("d10", ">", Decimal("0.00")),),
            (Term("f64", ">", 1e20),),
            (Term("b", "null"),),
        ],
    ),
    "beyond": (
        beyond,
        [
            (Term("t", ">", NOON),),
            (Term("t", "<", NOON),),
            (Term("wall", ">", NOON.replace(tzinfo=None)),),
            (Term("d", ">", NOON.date()),),
            (Term("d", "<", dt.date(1, 1, 1)),),
        ],
    ),
    "extremes": (
        extremes,
        [
            (Term("f", "=", 0.0),),
            (Term("f", "<", 0.0),),
            (Term("f", ">=", 0.1),),
            (Term("f", "null"),),
            (Term("f32", ">", 1.0),),
            *((Term("s", "=", text),) for text in LONG),
            (Term("s", ">", "z"),),
            (Term("s", "<", "a"),),
            (Term("y", ">", b"z"),),
            (Term("i", ">", 1 << 53),),
            (Term("i", "=", (1 << 63) - 1),),
            (Term("i", "=", -(1 << 63)),),
            *((Term("t", "=", NOON + dt.timedelta(microseconds=n * 333)),) for n in range(8)),
            (Term("t", ">", NOON + dt.timedelta(microseconds=1998)),),
        ],
    ),
    "wide": (wide, [(Term("c998", "null"),)]),
}
"""Each kind of table: how it is made, and the filters that are tried on its last version."""
