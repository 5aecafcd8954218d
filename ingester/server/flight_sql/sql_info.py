"""GetSqlInfo: facts about the server and its SQL, by the numbers of ``SqlInfo``. Pure.

Drivers read most of them when an application asks for them: JDBC's ``DatabaseMetaData``, ADBC's
``adbc_get_info``. Older JDBC drivers fail on a fact that is missing, so all are here. Source:
apache/arrow ``format/FlightSql.proto``
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from ingester import __version__
from ingester.sql.request import MAX_SQL_BYTES

_UNION = pa.dense_union(
    [
        pa.field("string_value", pa.string()),
        pa.field("bool_value", pa.bool_()),
        pa.field("bigint_value", pa.int64()),
        pa.field("int32_bitmask", pa.int32()),
        pa.field("string_list", pa.list_(pa.string())),
        pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
    ],
    [0, 1, 2, 3, 4, 5],
)
SCHEMA = pa.schema(
    [
        pa.field("info_name", pa.uint32(), nullable=False),
        pa.field("value", _UNION, nullable=False),
    ]
)
_KINDS: dict[type, int] = {str: 0, bool: 1, int: 3, list: 4, dict: 5}
_MAX_NAME = 128


def _words(text: str) -> list[str]:
    return text.split()


KEYWORDS = _words(
    "ALL ANALYSE ANALYZE AND ANY ARRAY AS ASC ASYMMETRIC BOTH CASE CAST CHECK COLLATE COLUMN "
    "CONSTRAINT CREATE DEFAULT DEFERRABLE DESC DESCRIBE DISTINCT DO ELSE END EXCEPT FALSE "
    "FETCH FOR FOREIGN FROM GROUP HAVING IN INITIALLY INTERSECT INTO LAMBDA LATERAL LEADING "
    "LIMIT NOT NULL OFFSET ON ONLY OR ORDER PIVOT PIVOT_LONGER PIVOT_WIDER PLACING PRIMARY "
    "QUALIFY REFERENCES RETURNING SELECT SHOW SOME SUMMARIZE SYMMETRIC TABLE THEN TO TRAILING "
    "TRUE UNION UNIQUE UNPIVOT USING VARIADIC WHEN WHERE WINDOW WITH"
)
"""The reserved words of DuckDB (tests/server/flight_sql/test_metadata)."""
_NUMERIC = _words(
    "ABS ACOS ASIN ATAN ATAN2 CEILING COS COT DEGREES EXP FLOOR LOG LOG10 MOD PI POWER "
    "RADIANS ROUND SIGN SIN SQRT TAN"
)
_STRING = _words(
    "ASCII CHR CONCAT LCASE LEFT LENGTH LOWER LTRIM REPEAT REPLACE RIGHT RTRIM SUBSTRING "
    "UCASE UPPER"
)
_DATES = _words(
    "CURRENT_DATE DAYNAME DAYOFMONTH DAYOFWEEK DAYOFYEAR EXTRACT HOUR MINUTE MONTH MONTHNAME "
    "NOW QUARTER SECOND WEEK YEAR"
)
_FIRST_ONLY = 1
"""A bitmask with its first option."""

Fact = str | bool | int | list[str] | dict[int, list[int]]
_BIGINTS = frozenset((503, 505, 507, *range(541, 556), *range(557, 563)))
"""Facts of 64 bits: the limits, and what the drivers of ODBC and JDBC read as such."""

FACTS: dict[int, Fact] = {
    0: "ingester",
    1: __version__,
    2: pa.__version__,
    3: True,  # read only: rows are written by bulk ingestion, not by SQL
    4: True,  # SQL
    5: False,  # Substrait
    6: "",
    7: "",
    8: 0,  # transactions: none
    9: True,  # CancelQuery, CancelFlightInfo
    10: True,  # bulk ingestion
    11: False,  # in transactions
    100: 0,  # handles of prepared statements do not expire
    101: 0,
    **dict.fromkeys((500, 501, 502), False),  # CREATE and DROP
    503: 1,  # identifiers: case-insensitive
    504: '"',
    505: 1,  # quoted identifiers: case-insensitive
    506: True,  # all tables are selectable
    507: 3,  # nulls are sorted at the end
    508: KEYWORDS,
    509: _NUMERIC,
    510: _STRING,
    511: [],
    512: _DATES,
    513: "\\",  # escapes % and _ in patterns
    514: "",
    515: True,  # column aliases
    516: True,  # null plus a value is null
    517: {},  # the escape syntax of CONVERT
    518: True,  # table correlation names
    519: False,  # they may equal the names of tables
    520: True,  # expressions in ORDER BY
    521: True,  # ORDER BY columns that are not selected
    522: 3,  # GROUP BY: both options
    523: True,  # LIKE … ESCAPE
    524: True,  # columns that are not nullable
    525: 7,  # grammar: minimum, core, extended
    526: _FIRST_ONLY,  # ANSI 92 entry level
    527: False,  # integrity enhancement facility
    528: 6,  # outer joins: limited, full
    529: "schema",
    530: "",
    531: "catalog",
    532: True,  # the catalogue is at the start of a qualified name
    533: 0,
    534: 0,
    535: 0,
    536: False,  # SELECT FOR UPDATE
    537: False,  # stored procedures
    538: 15,  # subqueries: comparisons, EXISTS, IN, quantified
    539: True,  # correlated subqueries
    540: 3,  # UNION, UNION ALL
    **dict.fromkeys(range(541, 556), 0),  # no limit, or not known
    543: 255,  # column names
    552: _MAX_NAME,
    556: False,
    557: MAX_SQL_BYTES,
    558: 0,
    559: _MAX_NAME,
    560: 0,
    561: 0,
    562: 0,  # isolation: no transactions
    563: False,
    564: _FIRST_ONLY,  # no transactions
    565: False,
    566: False,
    567: 2,  # results: forward only
    568: 0,
    569: 2,  # … and read only
    570: 0,
    571: 0,
    572: False,  # batch updates
    573: False,  # savepoints
    574: False,
    575: False,
    576: False,
}


def sql_info(numbers: Collection[int]) -> pa.RecordBatch:
    """Return the facts of these numbers, those that exist; all for none."""
    asked = [number for number in dict.fromkeys(numbers) if number in FACTS] if numbers else FACTS
    values: list[list[Fact]] = [[] for _ in range(_UNION.num_fields)]
    kinds: list[int] = []
    offsets: list[int] = []
    for number in asked:
        kind = 2 if number in _BIGINTS else _KINDS[type(FACTS[number])]
        kinds.append(kind)
        offsets.append(len(values[kind]))
        values[kind].append(FACTS[number])
    children = [
        pa.array(found, field.type)
        for found, field in zip(
            [*values[:5], [list(each.items()) for each in values[5] if isinstance(each, dict)]],
            _UNION,
            strict=True,
        )
    ]
    union = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        children,
        [field.name for field in _UNION],
    )
    return pa.record_batch([pa.array(asked, pa.uint32()), union], schema=SCHEMA)
