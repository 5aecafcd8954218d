"""File statistics hide no row: each reader returns the same rows from files and from memory.

Engines differ: in Arrow NaN equals nothing, in Spark and DuckDB it is the greatest number. Each
engine is therefore compared with itself.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ingester.spark import read_table
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, persist, put, query
from tests.spark.odd_rows import GROUP_ROWS, GROUPS, ODD, conditions

pytestmark = pytest.mark.spark

Condition = tuple[str, pa.DataType, str, Any]
EVERY = conditions()
FEW = [
    one
    for one in EVERY
    if one[0] not in ("f32", "d18", "wall", "i64", "u8")
    and (one[2] in ("=", "!=", "is null") or (one[2] == ">=" and pa.types.is_floating(one[1])))
]
"""Conditions for Spark, a subset because Spark is slow."""
AT_ONCE = 60
"""Conditions in one Spark job."""


@pytest.fixture(scope="module")
def odd(daemon: Daemon) -> Table:
    """A table with one file per group of rows."""
    table = ("statistics", "odd")
    with fl.connect(daemon.flight) as client:
        create(client, table, ODD.schema)
        for group in range(GROUPS):
            put(client, table, ODD.slice(group * GROUP_ROWS, GROUP_ROWS))
            persist(client, table)
    return table


@pytest.fixture(scope="module")
def files(store: Path, odd: Table) -> list[str]:
    """The paths of the table's files."""
    found = sorted(map(str, store.joinpath(*odd, "v1", "data").rglob("*.parquet")))
    assert len(found) == GROUPS
    return found


def test_queries_of_the_daemon(client: fl.FlightClient, odd: Table) -> None:
    buffered = ("statistics", "buffered")
    put(client, buffered, ODD)
    for column, _, operator, value in EVERY:
        if "." in column or (isinstance(value, float) and not math.isfinite(value)):
            continue  # a query filter cannot express this
        term = [column, operator, _as_json(value)]
        if operator.endswith("in"):
            term[2] = [term[2]]
        asked = [[term[: 2 if value is None else 3]]]
        held, found = (
            query(client, table, columns=["id"], filter=asked) for table in (buffered, odd)
        )
        assert sorted(found["id"].to_pylist()) == sorted(held["id"].to_pylist()), asked


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.date):
        return value.isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, Decimal) else value


def test_duckdb(files: list[str]) -> None:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.register("odd", pa.table(ODD))
        connection.execute("create table held as select * from odd")
        connection.execute(f"create view files as select * from read_parquet({files!r})")

        def answer(rows: str, asked: str) -> list[Any]:
            return connection.execute(f"select {asked} from {rows}").fetchall()

        columns = {one[0] for one in EVERY}
        types = {column: answer("held", f"typeof({column})")[0][0] for column in columns}
        for column, _, operator, value in EVERY:
            literal = "" if value is None else _for_duckdb(value, types[column])
            where = f"where {column} {operator} {literal} order by id"
            assert answer(f"files {where}", "id") == answer(f"held {where}", "id"), where


def _for_duckdb(value: Any, kind: str) -> str:
    made = f"from_hex('{value.hex()}')" if isinstance(value, bytes) else f"'{value}'::{kind}"
    return f"({made})"


def test_polars(files: list[str]) -> None:
    held = pl.DataFrame(pa.table(ODD))
    for column, _, operator, value in EVERY:
        name, _, inner = column.partition(".")
        field = pl.col(name).struct.field(inner) if inner else pl.col(name)
        kind = held.select(field).dtypes[0]
        expression = _for_polars(field, operator, pl.lit(value, kind))
        found = pl.scan_parquet(files).filter(expression).select("id").collect()
        expected = held.filter(expression).select("id")
        assert sorted(found["id"]) == expected["id"].to_list(), (column, operator, value)


def _for_polars(field: pl.Expr, operator: str, value: pl.Expr) -> pl.Expr:
    made: dict[str, Callable[[], pl.Expr]] = {
        "is null": field.is_null,
        "is not null": field.is_not_null,
        "=": lambda: field == value,
        "!=": lambda: field != value,
        "<": lambda: field < value,
        "<=": lambda: field <= value,
        ">": lambda: field > value,
        ">=": lambda: field >= value,
        "in": lambda: field.is_in(value.implode()),
        "not in": lambda: ~field.is_in(value.implode()),
    }
    return made[operator]()


def test_least_and_greatest_values(files: list[str]) -> None:
    """A column is not skipped if one of several files has no statistics for it."""
    with duckdb.connect() as connection:
        connection.register("odd", pa.table(ODD))
        connection.execute("create table held as select * from odd")
        for column in ("f32", "d38", "day", "text", "u64"):
            asked = f"select min({column}), max({column}), count({column}) from"
            found = connection.execute(f"{asked} read_parquet({files!r})").fetchone()
            assert repr(found) == repr(connection.execute(f"{asked} held").fetchone())
            wanted = [pl.col(column).min().alias("low"), pl.col(column).max().alias("high")]
            rows = pl.scan_parquet(files).select(wanted).collect().rows()
            assert repr(rows) == repr(pl.DataFrame(pa.table(ODD)).select(wanted).rows())


def test_pyarrow(files: list[str]) -> None:
    dataset, held = ds.dataset(files, format="parquet"), pa.table(ODD)
    for column, kind, operator, value in EVERY:
        field = ds.field(*column.split("."))
        if operator.endswith("in") and value == 0 and pa.types.is_floating(kind):
            continue  # Arrow equates the two zeros only without statistics
        expression = _for_pyarrow(field, operator, value, kind)
        found, expected = dataset.to_table(filter=expression), held.filter(expression)
        assert sorted(found["id"].to_pylist()) == expected["id"].to_pylist(), (
            column,
            operator,
            value,
        )


def _for_pyarrow(field: Any, operator: str, value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return field.is_null() if operator == "is null" else field.is_valid()
    scalar = pa.scalar(value, kind)
    made = {
        "=": lambda: field == scalar,
        "!=": lambda: field != scalar,
        "<": lambda: field < scalar,
        "<=": lambda: field <= scalar,
        ">": lambda: field > scalar,
        ">=": lambda: field >= scalar,
        "in": lambda: field.isin(pa.array([value], kind)),
        "not in": lambda: ~field.isin(pa.array([value], kind)),
    }
    return made[operator]()


@pytest.fixture
def quick(spark: SparkSession) -> Iterator[SparkSession]:
    """A session without code generation, which reads files in one task: faster for few rows."""
    settings = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.files.minPartitionNum": "1",
        "spark.sql.files.openCostInBytes": "0",
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


def test_spark_on_its_own(quick: SparkSession, files: list[str]) -> None:
    _finds_the_same(quick, quick.read.parquet(*files), FEW)


def test_read_table_does_not_trust_statistics_of_before(
    quick: SparkSession, daemon: Daemon, client: fl.FlightClient, url: str, table: Table
) -> None:
    create(client, table, ODD.schema)
    for group in range(GROUPS):
        put(client, table, ODD.slice(group * GROUP_ROWS, GROUP_ROWS))
        persist(client, table)
    for path in (daemon.data_dir / "store").joinpath(*table, "v1", "data").rglob("*.parquet"):
        rows = pq.ParquetFile(path).read()
        pq.write_table(rows, path, use_dictionary=False, write_page_index=True)
    ours = read_table(quick, url, *table, reader="native")
    _finds_the_same(quick, ours, [one for one in FEW if pa.types.is_floating(one[1])])
    plan = ours.where("i8 = 5 and f64 = 3")._jdf.queryExecution().toString()
    assert "EqualTo(i8,5)" in plan, "others are pushed as before"


def _finds_the_same(spark: SparkSession, frame: DataFrame, asked: list[Condition]) -> None:
    held = spark.createDataFrame(frame.toArrow(), frame.schema)
    for condition, found, expected in zip(
        asked, _answers(frame, asked), _answers(held, asked), strict=True
    ):
        assert found == expected, condition


def _answers(frame: DataFrame, asked: list[Condition]) -> list[list[int]]:
    """Return the row numbers that match each condition."""
    answers: list[list[int]] = []
    for some in (asked[n : n + AT_ONCE] for n in range(0, len(asked), AT_ONCE)):
        numbered = [
            frame.where(_for_spark(frame, one)).select(F.lit(n).alias("n"), "id")
            for n, one in enumerate(some)
        ]
        found: list[list[int]] = [[] for _ in some]
        for n, row in reduce(DataFrame.unionAll, numbered).collect():
            found[n].append(row)
        answers += map(sorted, found)
    return answers


def _for_spark(frame: DataFrame, condition: Condition) -> Column:
    name, _, operator, value = condition
    column = F.col(name)
    if value is None:
        return column.isNull() if operator == "is null" else column.isNotNull()
    kind = frame.select(name).schema.fields[0].dataType
    literal = F.lit(value) if isinstance(value, bytes) else F.lit(str(value)).cast(kind)
    made = {
        "=": lambda: column == literal,
        "!=": lambda: column != literal,
        "<": lambda: column < literal,
        "<=": lambda: column <= literal,
        ">": lambda: column > literal,
        ">=": lambda: column >= literal,
        "in": lambda: column.isin(literal),
        "not in": lambda: ~column.isin(literal),
    }
    return made[operator]()
