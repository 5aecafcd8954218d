"""The SQL types of Arrow's types, and GetXdbcTypeInfo. Pure.

Names are DuckDB's. Codes are those of JDBC and ODBC.

Source: apache/arrow ``format/FlightSql.proto`` (``XdbcDataType``, ``XdbcDatetimeSubcode``)
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

_TEXT, _INT, _BOOL = pa.string(), pa.int32(), pa.bool_()
SCHEMA = pa.schema(
    [
        pa.field("type_name", _TEXT, nullable=False),
        pa.field("data_type", _INT, nullable=False),
        pa.field("column_size", _INT),
        pa.field("literal_prefix", _TEXT),
        pa.field("literal_suffix", _TEXT),
        pa.field("create_params", pa.list_(pa.field("item", _TEXT, nullable=False))),
        pa.field("nullable", _INT, nullable=False),
        pa.field("case_sensitive", _BOOL, nullable=False),
        pa.field("searchable", _INT, nullable=False),
        pa.field("unsigned_attribute", _BOOL),
        pa.field("fixed_prec_scale", _BOOL, nullable=False),
        pa.field("auto_increment", _BOOL),
        pa.field("local_type_name", _TEXT),
        pa.field("minimum_scale", _INT),
        pa.field("maximum_scale", _INT),
        pa.field("sql_data_type", _INT, nullable=False),
        pa.field("datetime_subcode", _INT),
        pa.field("num_prec_radix", _INT),
        pa.field("interval_precision", _INT),
    ]
)
_SEARCHABLE_BASIC, _SEARCHABLE_FULL, _NULLABLE, _DATETIME = 2, 3, 1, 9


class _SqlType(NamedTuple):
    name: str
    code: int
    size: int | None
    quotes: tuple[str | None, str | None] = (None, None)
    params: list[str] | None = None
    unsigned: bool | None = None
    scales: tuple[int | None, int | None] = (None, None)
    subcode: int | None = None
    radix: int | None = None


def _integer(name: str, code: int, digits: int, unsigned: bool = False) -> _SqlType:
    return _SqlType(name, code, digits, unsigned=unsigned, scales=(0, 0), radix=10)


def _time(name: str, size: int, subcode: int, digits: int) -> _SqlType:
    code = 91 if subcode == 1 else 93
    word = name.partition(" ")[0].partition("_")[0]
    quotes = f"{word} '" if word == name else "'", "'"
    return _SqlType(name, code, size, quotes, scales=(digits, digits), subcode=subcode)


_TYPES = [
    _SqlType("BOOLEAN", -7, 1),
    _integer("TINYINT", -6, 3),
    _integer("SMALLINT", 5, 5),
    _integer("INTEGER", 4, 10),
    _integer("BIGINT", -5, 19),
    _integer("UTINYINT", -6, 3, unsigned=True),
    _integer("USMALLINT", 5, 5, unsigned=True),
    _integer("UINTEGER", 4, 10, unsigned=True),
    _integer("UBIGINT", -5, 20, unsigned=True),
    _SqlType("FLOAT", 7, 24, unsigned=False, radix=2),
    _SqlType("DOUBLE", 8, 53, unsigned=False, radix=2),
    _SqlType(
        "DECIMAL", 3, 38, params=["precision", "scale"], unsigned=False, scales=(0, 38), radix=10
    ),
    _SqlType("VARCHAR", 12, None, ("'", "'")),
    _SqlType("BLOB", -3, None, ("'", "'::BLOB")),
    _time("DATE", 10, 1, 0),
    _time("TIMESTAMP", 26, 3, 6),
    _time("TIMESTAMP_NS", 29, 3, 9),
    _time("TIMESTAMP WITH TIME ZONE", 32, 5, 6),
    _time("TIMESTAMPTZ_NS", 35, 5, 9),
    # No code of ODBC: Power BI refuses a table with a column of a type that is not listed.
    *(_SqlType(name, 0, None) for name in ("LIST", "MAP", "STRUCT")),
]
_NAMES = frozenset(each.name for each in _TYPES)
_SIMPLE = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
}


def type_name(kind: pa.DataType) -> str:
    """Return the SQL name of a column's type: ``DECIMAL(10,2)``, ``VARCHAR[]``."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            return "TIMESTAMPTZ_NS" if kind.unit == "ns" else "TIMESTAMP WITH TIME ZONE"
        return "TIMESTAMP" if kind.unit == "us" else f"TIMESTAMP_{kind.unit.upper()}"
    if pa.types.is_map(kind):
        return f"MAP({type_name(kind.key_type)}, {type_name(kind.item_type)})"
    if pa.types.is_list(kind):
        return f"{type_name(kind.value_type)}[]"
    if pa.types.is_struct(kind):
        inside = (f'"{each.name}" {type_name(each.type)}' for each in kind)
        return f"STRUCT({', '.join(inside)})"
    return str(kind).upper()


def described(schema: pa.Schema, **facts: str) -> pa.Schema:
    """Return a schema with what Flight SQL tells of each column in the fields' metadata.

    The name of a type is the one that :func:`type_info` lists: ``DECIMAL``, ``LIST``.

    Args:
        facts: what is true of all columns, such as ``CATALOG_NAME``.
    """

    def field_of(field: pa.Field) -> pa.Field:
        found = {**facts, "TYPE_NAME": _listed_name(field.type)}
        if pa.types.is_decimal(field.type):
            found |= {"PRECISION": str(field.type.precision), "SCALE": str(field.type.scale)}
        return field.with_metadata(
            {f"ARROW:FLIGHT:SQL:{key}": value for key, value in found.items() if value}
        )

    return pa.schema([field_of(field) for field in schema])


def _listed_name(kind: pa.DataType) -> str:
    """Return the name of a type without its parameters; "" if tables have no such type."""
    if pa.types.is_list(kind):
        return "LIST"
    name = type_name(kind).partition("(")[0]
    return name if name in _NAMES else ""


def type_info(code: int | None) -> pa.RecordBatch:
    """Return the types that columns of tables can have, with a code or all; by code and name."""
    found = sorted(
        (each for each in _TYPES if code in (None, each.code)),
        key=lambda each: (each.code, each.name),
    )
    return pa.RecordBatch.from_pylist([_row(each) for each in found], SCHEMA)


def _row(each: _SqlType) -> dict[str, object]:
    return {
        "type_name": each.name,
        "data_type": each.code,
        "column_size": each.size,
        "literal_prefix": each.quotes[0],
        "literal_suffix": each.quotes[1],
        "create_params": each.params,
        "nullable": _NULLABLE,
        "case_sensitive": each.name == "VARCHAR",
        "searchable": _SEARCHABLE_FULL if each.name == "VARCHAR" else _SEARCHABLE_BASIC,
        "unsigned_attribute": each.unsigned,
        "fixed_prec_scale": False,
        "auto_increment": None if each.unsigned is None else False,
        "local_type_name": each.name,
        "minimum_scale": each.scales[0],
        "maximum_scale": each.scales[1],
        "sql_data_type": each.code if each.subcode is None else _DATETIME,
        "datetime_subcode": each.subcode,
        "num_prec_radix": each.radix,
        "interval_precision": None,
    }
