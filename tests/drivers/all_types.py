"""A column per type with the values that are hard to keep, and an exact comparison."""

from __future__ import annotations

from decimal import Decimal
from math import inf, nan
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

I64 = (1 << 63) - 1
FLOATS = [nan, inf, -inf, -0.0, 0.0, 0.1, 1e20, 16777216.0, None, 1e7, -2.5]
TEXTS = [
    "", None, '"', 'a,b;c\td|e', "line\nand\r\nline\rend\n", "null", "NA", "\\N", "007", " x ",
    "NaN", "-", "é😀", "true", "2020-01-01", "'", "\ufeff", "{}", "[1]", "=1", "#", "a\\", "\x01",
]  # fmt: skip
DAYS = [-(1 << 31), (1 << 31) - 1, 0, -1, None, -719_529, -719_528, 2_932_896, 2_932_897]
TIMES = [-I64 - 1, I64, 0, -1, None, 1, 999_999, -62_135_596_800_000_001, 253_402_300_800_000_000]
BERLIN_1880 = -2_840_140_800_000_000  # its offset had seconds then
DST = 1_792_889_999_999_999  # within the repeated hour
STRUCT = pa.struct(
    [("a", pa.int64()), ("b", pa.string()), ("d", pa.decimal128(20, 8)), ("f", pa.float32())]
)


def all_types(unit: str) -> pa.Table:
    """Return a column per supported type, with the values that are hard to write."""
    columns: dict[str, pa.Array] = {"b": pa.array([True, False, None])}
    for bits in (8, 16, 32, 64):
        signed, unsigned = (1 << bits - 1) - 1, (1 << bits) - 1
        columns[f"i{bits}"] = pa.array([-signed - 1, signed, 0, None], f"int{bits}")
        columns[f"u{bits}"] = pa.array([0, unsigned, None], f"uint{bits}")
    columns["i53"] = pa.array([(1 << 53) + 1, -(1 << 53) - 1, I64 - 1], pa.int64())
    columns["f32"] = pa.array([*FLOATS, 1e-45, 3.4028234663852886e38], pa.float32())
    columns["f64"] = pa.array([*FLOATS, 5e-324, 1.7976931348623157e308, 2**53 + 2.0], pa.float64())
    nines = "9" * 28 + "." + "9" * 10
    decimals = [
        Decimal(nines),
        Decimal(f"-{nines}"),
        Decimal("1E-10"),
        Decimal(0),
        None,
        Decimal("-0.5"),
    ]
    columns["d38"] = pa.array(decimals, pa.decimal128(38, 10))
    columns["d10"] = pa.array(
        [Decimal("-12345678.90"), None, Decimal("0.10")], pa.decimal128(10, 2)
    )
    columns["d0"] = pa.array([Decimal("9" * 38), None, Decimal(7)], pa.decimal128(38, 0))
    columns["s"] = pa.array(TEXTS, pa.string())
    columns["x"] = pa.array([b"", None, b"\x00\xff", b"null", bytes(range(256))], pa.binary())
    columns["day"] = pa.array(DAYS, pa.int32()).view(pa.date32())
    for name, zone in {"t": None, "utc": "UTC", "berlin": "Europe/Berlin", "p": "+05:30"}.items():
        far = [*TIMES, BERLIN_1880 if unit == "us" else -1, DST]
        columns[name] = pa.array(far, pa.int64()).view(pa.timestamp(unit, zone))
    columns |= nested(unit)
    rows = max(map(len, columns.values()))
    filled = {
        name: pa.concat_arrays([column, pa.nulls(rows - len(column), column.type)])
        for name, column in columns.items()
    }
    return pa.table({"n": pa.array(range(rows), pa.int64())} | filled)


def nested(unit: str) -> dict[str, pa.Array]:
    stamp = pa.timestamp(unit, "UTC")
    return {
        "ls": pa.array([["", None, 'q"', "a,b"], [], None, ["\n"]], pa.list_(pa.string())),
        "lf": pa.array([[nan, inf, -inf, -0.0, 0.1, None], []], pa.list_(pa.float64())),
        "ll": pa.array([[[1, None], [], None], None], pa.list_(pa.list_(pa.uint64()))),
        "lt": pa.array([[0, 1, -1, None]], pa.list_(pa.int64())).cast(pa.list_(stamp)),
        "st": pa.array(
            [
                {"a": I64, "b": "", "d": Decimal("0.00000001"), "f": 0.1},
                {"a": None, "b": None, "d": None, "f": nan},
                {"a": None, "b": None, "d": None, "f": None},
                None,
            ],
            STRUCT,
        ),
        "m": pa.array(
            [[("b", 2), ("a", None), ("", -1)], [], None], pa.map_(pa.string(), pa.int64())
        ),
        "mm": pa.array(
            [[(2, [b"\x00", None]), (1, [])]], pa.map_(pa.int32(), pa.list_(pa.binary()))
        ),
        "sl": pa.array(
            [[{"k": b"\x01"}, None, {"k": None}]], pa.list_(pa.struct([("k", pa.binary())]))
        ),
    }


def plain(column: pa.Array) -> list[Any]:
    """Return comparable values: floats as bits, times as integers."""
    kind, t = column.type, pa.types
    if t.is_floating(kind):
        bits = pc.if_else(pc.is_nan(column), pa.scalar(nan, kind), column)
        return list(bits.view(f"int{kind.bit_width}").to_pylist())
    if t.is_timestamp(kind):
        return list(column.view(pa.int64()).to_pylist())
    if t.is_date32(kind):
        return list(column.view(pa.int32()).to_pylist())
    if t.is_struct(kind):
        rows = zip(*map(plain, column.flatten()), strict=True)
        return [row if v.as_py() else None for v, row in zip(column.is_valid(), rows, strict=True)]
    if t.is_map(kind):
        pairs = list(zip(plain(column.keys), plain(column.items), strict=True))
    elif t.is_list(kind):
        pairs = plain(column.values)
    else:
        return list(column.to_pylist())
    ends = column.offsets.to_pylist()
    return [
        pairs[ends[i] : ends[i + 1]] if column[i].is_valid else None for i in range(len(column))
    ]


def check_same(found: pa.Table, wanted: pa.Table) -> None:
    found, wanted = (t.sort_by("n").combine_chunks() for t in (found, wanted))
    assert found.schema.names == wanted.schema.names
    for name in wanted.schema.names:
        assert found.schema.field(name).type == wanted.schema.field(name).type
        there, here = (plain(t[name].combine_chunks()) for t in (found, wanted))
        assert there == here, name
