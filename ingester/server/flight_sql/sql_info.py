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


KEYWORDS = _words("""
ALL ANALYSE ANALYZE AND ANY ARRAY AS ASC ASYMMETRIC BOTH CASE CAST CHECK COLLATE COLUMN CONSTRAINT
CREATE DEFAULT DEFERRABLE DESC DESCRIBE DISTINCT DO ELSE END EXCEPT FALSE FETCH FOR FOREIGN FROM
GROUP HAVING IN INITIALLY INTERSECT INTO LAMBDA LATERAL LEADING LIMIT NOT NULL OFFSET ON ONLY OR
ORDER PIVOT PIVOT_LONGER PIVOT_WIDER PLACING PRIMARY QUALIFY REFERENCES RETURNING SELECT SHOW SOME
SUMMARIZE SYMMETRIC TABLE THEN TO TRAILING TRUE UNION UNIQUE UNPIVOT USING VARIADIC WHEN WHERE
WINDOW WITH
""")
"""The reserved words of DuckDB (tests/server/flight_sql/test_metadata)."""
_NUMERIC = _words("""
ABS ACOS ASIN ATAN ATAN2 CEILING COS COT DEGREES EXP FLOOR LOG LOG10 MOD PI POWER RADIANS ROUND SIGN
SIN SQRT TAN
""")
_STRING = _words("""
ASCII CHR CONCAT LCASE LEFT LENGTH LOWER LTRIM REPEAT REPLACE RIGHT RTRIM SUBSTRING UCASE UPPER
""")
_DATES = _words("""
CURRENT_DATE DAYNAME DAYOFMONTH DAYOFWEEK DAYOFYEAR EXTRACT HOUR MINUTE MONTH MONTHNAME NOW QUARTER
SECOND WEEK YEAR
""")

Fact = str | bool | int | list[str] | dict[int, list[int]]
_BIGINTS = frozenset((503, 505, 507, *range(541, 556), *range(557, 563)))
"""Facts of 64 bits: the limits, and what the drivers of ODBC and JDBC read as such."""

FACTS: dict[int, Fact] = {
    **{0: "ingester", 1: __version__, 2: pa.__version__, 6: "", 7: ""},
    # Read only (rows are written by bulk ingestion), SQL, cancelling, bulk ingestion; all tables
    # are selectable, column aliases, NULL + 1 is NULL, table correlation names, ORDER BY of
    # expressions and of columns that are not selected, LIKE … ESCAPE, columns that are not
    # nullable, the catalogue at the start of a name, correlated subqueries.
    **dict.fromkeys((3, 4, 9, 10, 506, 515, 516, 518, 520, 521, 523, 524, 532, 539), True),
    # Substrait, ingestion in transactions, CREATE and DROP, correlation names that must differ,
    # integrity enhancement, SELECT FOR UPDATE, procedures, transactions, batch updates, savepoints.
    **dict.fromkeys((5, 11, 500, 501, 502, 519, 527, 536, 537, 556, 563, 565, 566), False),
    **dict.fromkeys(range(572, 577), False),
    # Transactions and isolation: none. Handles do not expire. Limits: none, or not known.
    **dict.fromkeys((8, 100, 101, 533, 534, 535, *range(541, 556), 558, 560, 561, 562), 0),
    **dict.fromkeys((568, 570, 571), 0),
    **{543: 255, 552: _MAX_NAME, 557: MAX_SQL_BYTES, 559: _MAX_NAME},
    **{503: 1, 504: '"', 505: 1},  # identifiers are case-insensitive, also in quotes
    507: 3,  # nulls are sorted at the end
    **{508: KEYWORDS, 509: _NUMERIC, 510: _STRING, 511: [], 512: _DATES},
    **{513: "\\", 514: ""},  # the escape of patterns; further characters of names
    517: {},  # the escape syntax of CONVERT
    **{522: 3, 525: 7, 526: 1},  # GROUP BY: both options; grammar: extended, entry level
    528: 6,  # outer joins: limited, full
    **{529: "schema", 530: "", 531: "catalog"},
    **{538: 15, 540: 3},  # all subqueries; UNION, UNION ALL
    564: 1,  # no transactions
    **{567: 2, 569: 2},  # results: forward only, read only
}


def sql_info(numbers: Collection[int]) -> pa.RecordBatch:
    """Return the facts of these numbers, those that exist; all for none."""
    asked = [number for number in dict.fromkeys(numbers) if number in FACTS] if numbers else FACTS
    kinds = [2 if n in _BIGINTS else _KINDS[type(FACTS[n])] for n in asked]
    values: list[list[Fact]] = [[] for _ in _UNION]
    offsets: list[int] = []
    for number, kind in zip(asked, kinds, strict=True):
        offsets.append(len(values[kind]))
        values[kind].append(FACTS[number])
    union = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(found, field.type) for found, field in zip(values, _UNION, strict=True)],
        [field.name for field in _UNION],
    )
    return pa.record_batch([pa.array(asked, pa.uint32()), union], schema=SCHEMA)
