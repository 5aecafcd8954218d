"""The SQL types of Arrow's types, and GetXdbcTypeInfo. Pure.

Names are DuckDB's. Codes are those of JDBC and ODBC.

Source: apache/arrow ``format/FlightSql.proto`` (``XdbcDataType``, ``XdbcDatetimeSubcode``)
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_KINDS = {
    "text": pa.string(),
    "bytes": pa.binary(),
    "byte": pa.uint8(),
    "int": pa.int32(),
    "bool": pa.bool_(),
    "texts": pa.list_(pa.field("item", pa.string(), nullable=False)),
}


def columns(text: str) -> pa.Schema:
    """Return the schema of columns such as ``text a, int b!``; one with ``!`` is not nullable."""
    pairs = (column.split() for column in text.split(","))
    return pa.schema(
        [pa.field(name.rstrip("!"), _KINDS[kind], not name.endswith("!")) for kind, name in pairs]
    )


SCHEMA = columns("""
text type_name!, int data_type!, int column_size, text literal_prefix, text literal_suffix,
texts create_params, int nullable!, bool case_sensitive!, int searchable!, bool unsigned_attribute,
bool fixed_prec_scale!, bool auto_increment, text local_type_name, int minimum_scale,
int maximum_scale, int sql_data_type!, int datetime_subcode, int num_prec_radix,
int interval_precision
""")
_NULLABLE, _SEARCHABLE_BASIC, _SEARCHABLE_FULL, _DATETIME = 1, 2, 3, 9


def _row(name: str, code: int, size: int | None, **more: object) -> dict[str, Any]:
    return {
        "type_name": name,
        "data_type": code,
        "column_size": size,
        "nullable": _NULLABLE,
        "case_sensitive": name == "VARCHAR",
        "searchable": _SEARCHABLE_FULL if name == "VARCHAR" else _SEARCHABLE_BASIC,
        "fixed_prec_scale": False,
        "local_type_name": name,
        "sql_data_type": code,
        **more,
    }


def _number(
    name: str, code: int, size: int, *, unsigned: bool = False, radix: int = 10, **more: object
) -> dict[str, Any]:
    scales = {"minimum_scale": 0, "maximum_scale": 0} if radix == 10 else {}
    signs = {"unsigned_attribute": unsigned, "auto_increment": False, "num_prec_radix": radix}
    return _row(name, code, size, **{**scales, **signs, **more})


def _time(name: str, size: int, subcode: int, digits: int, prefix: str = "'") -> dict[str, Any]:
    quotes = {"literal_prefix": prefix, "literal_suffix": "'"}
    scales = {"minimum_scale": digits, "maximum_scale": digits}
    codes = {"sql_data_type": _DATETIME, "datetime_subcode": subcode}
    return _row(name, 91 if subcode == 1 else 93, size, **quotes, **scales, **codes)


_WHOLE = [("TINYINT", -6, 3), ("SMALLINT", 5, 5), ("INTEGER", 4, 10), ("BIGINT", -5, 19)]
_ROWS = [
    _row("BOOLEAN", -7, 1),
    *(_number(*each) for each in _WHOLE),
    *(_number(f"U{name}", code, size, unsigned=True) for name, code, size in _WHOLE[:3]),
    _number("UBIGINT", -5, 20, unsigned=True),
    _number("FLOAT", 7, 24, radix=2),
    _number("DOUBLE", 8, 53, radix=2),
    _number("DECIMAL", 3, 38, create_params=["precision", "scale"], maximum_scale=38),
    _row("VARCHAR", 12, None, literal_prefix="'", literal_suffix="'"),
    _row("BLOB", -3, None, literal_prefix="'", literal_suffix="'::BLOB"),
    _time("DATE", 10, 1, 0, "DATE '"),
    _time("TIMESTAMP", 26, 3, 6, "TIMESTAMP '"),
    _time("TIMESTAMP_NS", 29, 3, 9),
    _time("TIMESTAMP WITH TIME ZONE", 32, 5, 6),
    _time("TIMESTAMPTZ_NS", 35, 5, 9),
    # No code of ODBC: Power BI refuses a table with a column of a type that is not listed.
    *(_row(name, 0, None) for name in ("LIST", "MAP", "STRUCT")),
]
_ROWS.sort(key=lambda row: (row["data_type"], row["type_name"]))
_NAMES = {
    "bool": "BOOLEAN",
    **{f"int{8 << n}": name for n, (name, _, _) in enumerate(_WHOLE)},
    **{f"uint{8 << n}": f"U{name}" for n, (name, _, _) in enumerate(_WHOLE)},
    **{"float": "FLOAT", "double": "DOUBLE", "string": "VARCHAR", "binary": "BLOB"},
    **{"date32[day]": "DATE", "timestamp[us]": "TIMESTAMP", "timestamp[ns]": "TIMESTAMP_NS"},
}


def type_name(kind: pa.DataType) -> str:
    """Return the SQL name of a type without its parameters; "" if tables have no such type."""
    t = pa.types
    if t.is_timestamp(kind) and kind.tz is not None:
        return {"us": "TIMESTAMP WITH TIME ZONE", "ns": "TIMESTAMPTZ_NS"}.get(kind.unit, "")
    tests = {t.is_decimal: "DECIMAL", t.is_map: "MAP", t.is_list: "LIST", t.is_struct: "STRUCT"}
    return next((name for test, name in tests.items() if test(kind)), _NAMES.get(str(kind), ""))


def described(schema: pa.Schema, **facts: str) -> pa.Schema:
    """Return a schema with what Flight SQL tells of each column in the fields' metadata.

    The name of a type is the one that :func:`type_info` lists: ``DECIMAL``, ``LIST``.

    Args:
        facts: what is true of all columns, such as ``CATALOG_NAME``.
    """

    def field_of(field: pa.Field) -> pa.Field:
        found = {**facts, "TYPE_NAME": type_name(field.type)}
        if pa.types.is_decimal(field.type):
            found |= {"PRECISION": str(field.type.precision), "SCALE": str(field.type.scale)}
        return field.with_metadata(
            {f"ARROW:FLIGHT:SQL:{key}": value for key, value in found.items() if value}
        )

    return pa.schema([field_of(field) for field in schema])


def type_info(code: int | None) -> pa.RecordBatch:
    """Return the types that columns of tables can have, with a code or all; by code and name."""
    found = [row for row in _ROWS if code in (None, row["data_type"])]
    return pa.RecordBatch.from_pylist(found, SCHEMA)
