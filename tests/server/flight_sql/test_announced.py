"""The schema of a FlightInfo is that of the rows: drivers refuse any other.

Other servers announced dictionaries, or other nullability, than they sent: influxdb_iox 7279 and
7723, datafusion-flight-sql-server 51.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.wire import Table, put
from tests.server.flight_sql.raw import command, info

EXPRESSIONS = [
    "'a'::ENUM('a', 'b'), ['a'::ENUM('a', 'b')], {'e': 'a'::ENUM('a', 'b')}",
    "MAP {'a'::ENUM('a', 'b'): 1}, MAP {'k': 'a'::ENUM('a', 'b')}",
    "1::HUGEINT, 1::UHUGEINT, [1::HUGEINT], 1::BIGNUM, '101'::BIT, uuid(), hash(1)",
    "TIME '12:00:00', TIME '12:00:00'::TIME_NS, (TIMETZ '12:00:00+02')::VARCHAR, INTERVAL 1 DAY",
    "TIMESTAMP_S '2020-01-01', TIMESTAMP_MS '2020-01-01', TIMESTAMP_NS '2020-01-01'",
    "TIMESTAMPTZ '2020-01-01 00:00:00+00', now(), current_date",
    "[1, 2]::INT[2], [[1], [2]], {'a': 1, 'b': {'c': [1]}}, row(1, 'a'), union_value(num := 2)",
    "'{\"a\": 1}'::JSON, '1'::VARIANT, 1.5, 1.5::DECIMAL(38, 10), 'x'::BLOB",
    "NULL, [], 'a' || NULL, version(), 1 AS a, 2 AS a, 3 AS \"é ü\"",
    "sum(n), avg(n), min(n), max(s), count(*), array_agg(n), histogram(n) FROM T",
    "* FROM T",
    "a FROM T a",
    "* FROM T JOIN T b USING (n)",
    "row_number() OVER (ORDER BY n), lag(s) OVER (ORDER BY n) FROM T LIMIT 0",
    "* FROM (PIVOT T ON s IN ('a', 'b') USING sum(n))",
]
STATEMENTS = [
    *(f"SELECT {each}" for each in EXPRESSIONS),
    "VALUES (1, 'a'), (2, NULL)",
    "FROM T",
    "DESCRIBE T",
    "SUMMARIZE T",
    "SHOW ALL TABLES",
    "EXPLAIN ANALYZE SELECT 1",
    "SELECT * FROM information_schema.columns",
    "-- a comment\nSELECT 1; -- another",
]


@pytest.mark.parametrize("text", STATEMENTS)
def test_the_announced_schema_is_that_of_the_rows(
    client: fl.FlightClient, table: Table, text: str
) -> None:
    put(client, table, pa.record_batch({"n": [1, 2, 3], "s": ["a", "b", None]}))
    text = re.sub(r"\bT\b", ".".join(table), text)
    told = info(client, text)
    found = client.do_get(told.endpoints[0].ticket).read_all()
    assert found.schema.equals(told.schema)
    assert client.get_schema(command("CommandStatementQuery", (1, text))).schema == told.schema


def test_an_analyzed_statement_is_not_computed_to_describe_it(client: fl.FlightClient) -> None:
    endless = "SELECT count(*) FROM range(9999) a(i), range(9999999999999) b(j) WHERE i * j = -1"
    told = info(client, f"EXPLAIN ANALYZE {endless}")
    assert told.schema == info(client, "EXPLAIN SELECT 1").schema
