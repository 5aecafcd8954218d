"""Random tables of every type, and random conditions in SQL with values that tempt to err."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Context, Decimal
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
from hypothesis import strategies as st

from ingester.sql.worker.sources import OpenScan
from persist.parquet.stats import column_stats
from persist.predicate.parse import parse_predicate

NAN, INF = float("nan"), float("inf")
PART_ROWS = 4


class Column(NamedTuple):
    """A column: its type, its values beside null, and what conditions name."""

    type: pa.DataType
    values: Sequence[Any]
    literals: Sequence[str]


def _integers(kind: pa.DataType) -> Column:
    bits, is_signed = kind.bit_width, pa.types.is_signed_integer(kind)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    values = sorted({low, low + 1, -1 if is_signed else 1, 0, 1, 2, 3, high - 1, high})
    return Column(kind, values, [*map(str, values), "1.5", "3.0", str(high + 1), str(low - 1)])


def _floats(kind: pa.DataType, name: str, tiny: float, huge: float) -> Column:
    values = [0.0, -0.0, 1.0, -1.0, 1.5, 0.1, tiny, -tiny, huge, INF, -INF, NAN]
    texts = ["0.1", "1", "0", "-0.0", "16777217", "1e300", repr(tiny), repr(huge)]
    exact = [f"'{text}'::{name}" for text in ("nan", "inf", "-inf", "0.1", "-0.0", "1.5")]
    return Column(kind, values, texts + exact)


def _timestamps(kind: pa.DataType, name: str) -> Column:
    per_second = 10**6 if kind.unit == "us" else 10**9
    values = [0, 1, -1, 1500, per_second, 86400 * per_second, 1577836800 * per_second + 1, -(2**62)]
    texts = ["1970-01-01", "1970-01-02", "1970-01-01 00:00:00.000001", "1969-12-31 23:59:59.999999"]
    texts += ["2020-01-01 00:00:00.000001", "1823-11-12"]
    if kind.unit == "us":
        texts += ["infinity", "9999-12-31", "0001-01-01"]
    literals = [f"{name} '{text}'" for text in texts]
    return Column(kind, values, [*literals, "'1970-01-01 00:00:01'", "DATE '1970-01-02'"])


def _decimals(precision: int, scale: int) -> Column:
    kind = pa.decimal128(precision, scale)
    most = Decimal(10**precision - 1).scaleb(-scale, Context(prec=precision))
    values = [Decimal(0), Decimal(1), Decimal(-1), Decimal(1).scaleb(-scale), most, -most]
    values = [value for value in values if abs(value) <= most]
    literals = [*(f"{value:f}" for value in values), "1.001", "0.5", "1e20", "1::DOUBLE", "0.05"]
    return Column(kind, values, literals)


STRUCT = pa.struct({"x": pa.int64(), "f": pa.float64(), "y": pa.struct({"z": pa.string()})})
_STRUCTS = [
    {"x": 1, "f": 0.0, "y": {"z": "a"}},
    {"x": 2, "f": -0.0, "y": {"z": None}},
    {"x": None, "f": NAN, "y": None},
    {"x": 3, "f": 1.5, "y": {"z": ""}},
]
_STRINGS = ["", "a", "A", "ab", "a\0b", "a\0", "b", "ü", "\U0001f600", "\uffff", "%", "a" * 300]
_BINARIES = [b"", b"\0", b"a", b"a\0", b"ab", b"\xff", b"\xff\xff", b"\x7f"]
COLUMNS: dict[str, Column] = {
    "i8": _integers(pa.int8()),
    "i16": _integers(pa.int16()),
    "i32": _integers(pa.int32()),
    "i64": _integers(pa.int64()),
    "u8": _integers(pa.uint8()),
    "u16": _integers(pa.uint16()),
    "u32": _integers(pa.uint32()),
    "u64": _integers(pa.uint64()),
    "f32": _floats(pa.float32(), "FLOAT", 1e-45, 3.4028234663852886e38),
    "f64": _floats(pa.float64(), "DOUBLE", 5e-324, 1.7976931348623157e308),
    "t": _timestamps(pa.timestamp("us"), "TIMESTAMP"),
    "tz": _timestamps(pa.timestamp("us", "UTC"), "TIMESTAMPTZ"),
    "berlin": _timestamps(pa.timestamp("us", "Europe/Berlin"), "TIMESTAMPTZ"),
    "ns": _timestamps(pa.timestamp("ns"), "TIMESTAMP_NS"),
    "nsz": _timestamps(pa.timestamp("ns", "UTC"), "TIMESTAMPTZ"),
    "d3": _decimals(3, 2),
    "d9": _decimals(9, 0),
    "d18": _decimals(18, 18),
    "d38": _decimals(38, 10),
    "day": Column(
        pa.date32(),
        [0, 1, -1, 18262, -719162, 2932896],
        [
            *(f"DATE '{day}'" for day in ("1970-01-01", "2020-01-01", "0001-01-01", "9999-12-31")),
            *(
                "DATE 'infinity'",
                "DATE '10000-01-01'",
                "'1970-01-02'",
                "TIMESTAMP '1970-01-01 01:00'",
            ),
        ],
    ),
    "b": Column(pa.bool_(), [True, False], ["true", "false"]),
    "Name": Column(
        pa.string(),
        _STRINGS,
        [*("'" + s.replace("\0", "' || chr(0) || '") + "'" for s in _STRINGS), "'zz'"],
    ),
    'odd "name".x': Column(
        pa.binary(), _BINARIES, [f"from_hex('{raw.hex()}')" for raw in _BINARIES]
    ),
    "none": Column(pa.null(), [None], ["1"]),
    "s": Column(STRUCT, _STRUCTS, ["{'x': 1, 'f': 0.0, 'y': {'z': 'a'}}"]),
    "l": Column(pa.list_(pa.int64()), [[], [1], [1, None]], ["[1]", "[]::BIGINT[]"]),
    "m": Column(pa.map_(pa.string(), pa.int32()), [[], [("a", 1)]], ["MAP {'a': 1}"]),
}
SCHEMA = pa.schema({"id": pa.int64()} | {name: column.type for name, column in COLUMNS.items()})
_INSIDE = {
    "s.x": COLUMNS["i64"],
    "s.f": COLUMNS["f64"],
    "s.y.z": COLUMNS["Name"],
}


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


PLACES = (
    {quoted(name): column for name, column in COLUMNS.items()}
    | _INSIDE
    | {"id": Column(pa.int64(), [], ["0", "1", "5", "100"])}
)
"""What conditions compare: columns and fields of structs."""


@st.composite
def tables(draw: st.DrawFn, most_rows: int = 12) -> pa.Table:
    """Tables of :data:`SCHEMA`, a third of their values null."""
    rows = draw(st.integers(1, most_rows))
    random = draw(st.randoms(use_true_random=False))
    columns: dict[str, pa.Array] = {"id": pa.array(range(rows), pa.int64())}
    for name, column in COLUMNS.items():
        picked = [
            None if random.random() < 0.3 else random.choice(column.values) for _ in range(rows)
        ]
        columns[name] = pa.array(picked, column.type)
    return pa.table(columns, schema=SCHEMA)


@st.composite
def _simple(draw: st.DrawFn) -> str:
    place = draw(st.sampled_from(sorted(PLACES)))
    literal = st.sampled_from(PLACES[place].literals)
    kind = draw(st.integers(0, 11))
    if kind < 6:
        operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM"]))
        pair = [place, draw(literal)]
        return f" {operator} ".join(pair if draw(st.booleans()) else pair[::-1])
    if kind < 9:
        values = draw(st.lists(literal, min_size=1, max_size=5))
        values += draw(st.sampled_from([[], [], [], ["NULL"]]))
        return f"{place} {draw(st.sampled_from(['IN', 'NOT IN']))} ({', '.join(values)})"
    if kind == 9:
        return f"{place} BETWEEN {draw(literal)} AND {draw(literal)}"
    others = (f"{place} IS NULL", f"{place} IS NOT NULL", '"b"', "\"Name\" LIKE 'a%'", "isnan(f64)")
    return draw(
        st.sampled_from((*others, "CAST(t AS DATE) = DATE '1970-01-01'", "i8::INT + 1 > i16"))
    )


def conditions() -> st.SearchStrategy[str]:
    """Conditions as in WHERE."""
    return st.recursive(
        _simple(),
        lambda inner: st.one_of(
            st.builds("NOT ({})".format, inner),
            st.builds(
                lambda parts, word: f" {word} ".join(f"({part})" for part in parts),
                st.lists(inner, min_size=2, max_size=4),
                st.sampled_from(["AND", "OR"]),
            ),
        ),
        max_leaves=8,
    )


def scans_of(table: pa.Table) -> OpenScan:
    """Finds the rows of a table that meet a ticket's filter, as the daemon does: parts that cannot
    have a match by their bounds are not looked at.
    """
    parts = [
        (batch, column_stats(pa.table(batch)))
        for batch in table.to_batches(max_chunksize=PART_ROWS)
    ]

    def open_scan(columns: list[str], terms: Any) -> Iterator[pa.RecordBatch]:
        predicate = parse_predicate(terms, table.schema)
        for batch, bounds in parts:
            if predicate.may_match(bounds, batch.num_rows):
                yield predicate.select(batch).select(columns)

    return open_scan


def connection() -> duckdb.DuckDBPyConnection:
    """A database in memory."""
    made = duckdb.connect(config={"threads": 2})
    made.execute("SET TimeZone = 'UTC'")
    return made
