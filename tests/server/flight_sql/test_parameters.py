"""The announced types of parameters, which JDBC's driver binds, and values of other types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import adbc_driver_flightsql.dbapi as flight_sql
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.sql_tables import fill


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[flight_sql.Connection]:
    folder = tmp_path_factory.mktemp("parameters")
    with Daemon.start(folder / "data") as daemon:
        with fl.connect(daemon.flight) as client:
            fill(client)
        with flight_sql.connect(daemon.flight, autocommit=True) as connection:
            yield connection


MS = pa.timestamp("ms", "UTC")


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("SELECT CAST(? AS BIGINT), $2::DECIMAL(10,2)", [pa.int64(), pa.decimal128(10, 2)]),
        ("SELECT 'é', CAST($n AS DATE)", [pa.date32()]),
        ("SELECT TRY_CAST(? AS DOUBLE)", [pa.float64()]),
        ("SELECT 1 FROM shop.orders WHERE id = ? AND ? < paid", [pa.int64(), pa.bool_()]),
        ("SELECT 1 FROM shop.orders AS o WHERE o.ID IN (?, ?)", [pa.int64()] * 2),
        ("SELECT 1 FROM shop.orders WHERE day NOT IN (?)", [pa.date32()]),
        ("SELECT 1 FROM shop.orders WHERE weight BETWEEN ? AND ?", [pa.float64()] * 2),
        ("SELECT 1 FROM shop.orders WHERE placed >= ?", [MS]),
        ("SELECT 1 FROM shop.orders LIMIT ? OFFSET ?", [pa.int64()] * 2),
        ("WITH a AS (SELECT * FROM shop.orders WHERE id = ?) SELECT * FROM a", [pa.int64()]),
        ("SELECT (SELECT count(*) FROM shop.orders WHERE id > ?)", [pa.int64()]),
        # Two tables agree on the type of x.
        ("SELECT 1 FROM shop.a_b JOIN shop.axb USING (x) WHERE x = ?", [pa.int64()]),
        # A cast tells more than a column, in either order.
        ("SELECT $1::INT FROM shop.orders WHERE id = $1", [pa.int32()]),
        ("SELECT 1 FROM shop.orders WHERE id = $1 AND $1::INT > 0", [pa.int32()]),
        # Nothing tells the type: a text, which is converted like a literal.
        ("SELECT ?", [pa.string()]),
        ("SELECT 1 FROM shop.orders WHERE id + 1 = ?", [pa.string()]),
        ("SELECT 1", []),
    ],
)
def test_a_parameter_is_announced_by_a_cast_or_the_column_beside_it(
    connection: flight_sql.Connection, text: str, types: list[pa.DataType]
) -> None:
    with connection.cursor() as cursor:
        announced = cursor.adbc_prepare(text)
        assert announced is not None and announced.types == types


@pytest.mark.parametrize(
    ("text", "values", "wanted"),
    [
        ("SELECT count(*) FROM shop.orders WHERE id = ?", ("1",), 1),
        ("SELECT count(*) FROM shop.orders WHERE id = ?", (1.0,), 1),
        ("SELECT count(*) FROM shop.orders WHERE amount > ?", ("0.5",), 1),
        ("SELECT count(*) FROM shop.orders WHERE day = ?", ("2026-03-01",), 1),
        ("SELECT count(*) FROM shop.orders WHERE placed >= ?", ("2026-03-01T00:00:00Z",), 2),
        ("SELECT ? AS x", ("a",), "a"),
        ("SELECT ? AS x", (7,), 7),
    ],
)
def test_a_value_of_another_type_is_taken_as_it_is(
    connection: flight_sql.Connection, text: str, values: tuple[Any, ...], wanted: Any
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text, values)
        assert cursor.fetchone() == (wanted,)


@pytest.mark.parametrize("text", ["SELECT ? AS a, ? AS b", "SELECT $2 AS b, $1 AS a"])
@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ({"2": ["two"], "1": ["one"]}, {"a": "one", "b": "two"}),
        ({"1": ["one"], "2": ["two"]}, {"a": "one", "b": "two"}),
        # As ADBC in Python names them, and names of its own.
        ({"0": ["one"], "1": ["two"]}, {"a": "one", "b": "two"}),
        ({"b": ["one"], "a": ["two"]}, {"a": "one", "b": "two"}),
        ({"2": ["one"], "2 ": ["two"]}, {"a": "one", "b": "two"}),
    ],
)
def test_columns_with_the_announced_names_are_bound_by_name_and_others_in_order(
    connection: flight_sql.Connection,
    text: str,
    columns: dict[str, list[str]],
    wanted: dict[str, str],
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text, pa.record_batch(columns))
        assert cursor.fetch_arrow_table().to_pylist() == [wanted]


def test_ten_parameters_and_more_are_announced_in_order_and_bound_by_name(
    connection: flight_sql.Connection,
) -> None:
    names = [str(number) for number in range(1, 13)]
    with connection.cursor() as cursor:
        text = f"SELECT {', '.join(f'{name} = ${name}::INT' for name in reversed(names))}"
        announced = cursor.adbc_prepare(text)
        assert announced is not None and announced.names == names
        row = pa.record_batch({name: [int(name)] for name in sorted(names)})
        cursor.execute(text, row)
        assert cursor.fetchone() == (True,) * 12
