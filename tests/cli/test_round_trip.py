"""``write`` reads what ``query`` writes: the same table, in every format, of every type."""

import json
from pathlib import Path
from typing import Literal

import duckdb
import pyarrow as pa
import pytest

from ingester.client import Client
from tests.cli.conftest import Run, check_refused
from tests.drivers.all_types import all_types, check_same
from tests.drivers.daemon import Daemon

_SQL = {"int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT"} | {
    "string": "VARCHAR", "bool": "BOOLEAN",
    "UINT8": "UTINYINT", "UINT16": "USMALLINT", "UINT32": "UINTEGER", "UINT64": "UBIGINT",
}  # fmt: skip


@pytest.fixture(scope="module", params=["us", "ns"])
def source(request: pytest.FixtureRequest, served: Daemon) -> tuple[str, pa.Table]:
    """The unit of a table ``all.UNIT`` and its rows."""
    table = all_types(request.param)
    with Client(served.flight) as client:
        made(client, "all", request.param, table.schema, request.param)
        client.write("all", request.param, table)
    return request.param, table


def made(client: Client, namespace: str, name: str, schema: pa.Schema, unit: str) -> None:
    by_name: dict[str, Literal["us", "ns"]] = {"us": "us", "ns": "ns"}
    client.create_table(namespace, name, schema, timestamp_unit=by_name[unit])


def written(run: Run, unit: str, kind: str, path: Path, target: tuple[str, str]) -> None:
    """Export the table in a format, and write that to another table."""
    done = run("query", "all", unit, "--format", kind, "--output", path)
    assert done.returncode == 0, done.stderr
    done = run("write", *target, path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["csv", "jsonl", "arrow", "parquet"])
def test_every_type_survives_a_round_trip_into_an_equal_table(
    run: Run, served: Daemon, source: tuple[str, pa.Table], tmp_path: Path, kind: str
) -> None:
    unit, table = source
    with Client(served.flight) as client:
        made(client, f"again-{kind}", unit, table.schema, unit)
        written(run, unit, kind, tmp_path / f"rows.{kind}", (f"again-{kind}", unit))
        check_same(client.query(f"again-{kind}", unit), table)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_typed_formats_create_an_equal_table(
    run: Run, served: Daemon, source: tuple[str, pa.Table], tmp_path: Path, kind: str
) -> None:
    unit, table = source
    path = tmp_path / f"rows.{kind}"
    done = run("query", "all", unit, "--format", kind, "--output", path)
    assert done.returncode == 0, done.stderr
    done = run("write", f"new-{kind}", unit, path)
    if unit == "ns":
        # A table of microseconds would truncate nanoseconds.
        check_refused(done, 1, "are not whole microseconds")
        return
    assert done.returncode == 0, done.stderr
    with Client(served.flight) as client:
        check_same(client.query(f"new-{kind}", unit), table)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_untyped_formats_create_a_table_with_the_same_values(
    run: Run, served: Daemon, source: tuple[str, pa.Table], tmp_path: Path, kind: str
) -> None:
    """Text does not tell some types, such as an integer's width: a wider type holds all values."""
    unit, table = source
    known = ["n", "b", "i64", "s", "day", "i53", "u32", "ls" if kind == "jsonl" else "f64"]
    if unit == "us":
        known += ["t", "utc", "berlin"]
    path = tmp_path / f"rows.{kind}"
    columns = ("--columns", ",".join(known))
    done = run("query", "all", unit, *columns, "--output", path)
    assert done.returncode == 0, done.stderr
    done = run("write", f"inferred-{kind}", unit, path)
    assert done.returncode == 0, done.stderr
    again = run("query", f"inferred-{kind}", unit, *columns, "--format", kind)
    assert again.stdout == path.read_bytes()
    with Client(served.flight) as client:
        schema = client.schema(f"inferred-{kind}", unit)
    for name in set(known) - {"u32", "berlin"}:
        assert schema.field(name).type == table.schema.field(name).type, name


def test_output_in_json_is_valid_for_every_reader(
    run: Run, source: tuple[str, pa.Table], tmp_path: Path
) -> None:
    unit, table = source

    def refuse(word: str) -> None:
        raise AssertionError(word)

    lines = run("query", "all", unit, "--format", "jsonl").stdout.splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [row["n"] for row in rows] == list(range(table.num_rows))
    assert [row["f32"] for row in rows[:6]] == ["NaN", "Infinity", "-Infinity", -0.0, 0.0, 0.1]
    assert rows[2]["d38"] == "0.0000000001"
    assert (rows[0]["u64"], rows[1]["u64"]) == (0, (1 << 64) - 1)
    assert rows[0]["m"][:2] == [{"key": "b", "value": 2}, {"key": "a", "value": None}]
    assert rows[0]["day"] == "-5877641-06-23"
    assert rows[1]["day"] == "5881580-07-11"
    if unit == "us":
        assert rows[0]["utc"] == "-290308-12-21T19:59:05.224192Z"
        assert rows[1]["t"] == "294247-01-10T04:00:54.775807"
        assert rows[9]["berlin"] == "1880-01-01T00:00:00Z"


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_duckdb_reads_the_same_values(
    run: Run, source: tuple[str, pa.Table], tmp_path: Path, kind: str
) -> None:
    """All but times, some of which are out of DuckDB's range, and types that it reads as text."""
    unit, table = source
    kinds = {
        name: str(table.schema.field(name).type).replace("128", "")
        for name in table.schema.names
        if name[0] in "nbifds" and name not in ("day", "st", "sl", "berlin")
    } | {f"u{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)}
    columns = {name: _SQL.get(kind, kind) for name, kind in kinds.items()}
    path = tmp_path / f"rows.{kind}"
    run("query", "all", unit, "--columns", ",".join(columns), "--output", path)
    read = {
        "csv": "read_csv($1, columns=$2, header=true, allow_quoted_nulls=false, auto_detect=false)",
        "jsonl": "read_json($1, columns=$2, format='newline_delimited')",
    }[kind]
    with duckdb.connect() as connection:
        found = connection.sql(f"FROM {read}", params=[str(path), columns]).to_arrow_table()
    check_same(found.cast(table.select(list(columns)).schema), table.select(list(columns)))


def test_the_text_table_shows_all_types(run: Run, source: tuple[str, pa.Table]) -> None:
    unit, table = source
    done = run(
        "query", "all", unit, "--columns", "n,f32,d38,x,berlin,p,lt,lf,m", "--format", "table"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert len(lines) == 1 + table.num_rows
    assert lines[6].split()[:2] == ["5", "0.1"]
    assert '["NaN","Infinity","-Infinity",-0.0,0.1,null]' in lines[1]


def test_an_invalid_time_is_refused_with_its_row(
    run: Run, served: Daemon, namespace: str, tmp_path: Path
) -> None:
    with Client(served.flight) as client:
        client.write(namespace, "t", pa.table({"t": pa.array([0], pa.timestamp("us"))}))
    for text in ("300000-01-01 00:00:00", "10000-02-30", "10000-01-01T00:00:00Z", "-1-01-01"):
        (tmp_path / "a.csv").write_text(f"t\n2020-01-01\n{text}\n")
        done = run("write", namespace, "t", "a.csv")
        check_refused(done, 1, f"row 2, column 't': {text!r} is not timestamp[us]")
