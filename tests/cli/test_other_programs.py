"""CSV and JSON as other programs write them, each by its own writer, and reports about readers."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ingester.cli.exits import CommandFailed
from ingester.cli.input.files import opened
from ingester.cli.input.source import text_options

UTC = pa.timestamp("us", "UTC")
LINES = ['say "hi"', "a\r\nb", "back\\slash", "x,y;z|\t", "NA", "", None]


def read(path: Path, table: Any = None, kind: str = "csv", **options: Any) -> pa.Table:
    said = text_options(
        options.get("types"),
        None,
        None,
        options.get("comma", False),
        options.get("encoding"),
        options.get("escape"),
    )
    schema = None if table is None else pa.schema(table)
    with opened(str(path), kind, schema, said) as file:
        return pa.Table.from_batches(list(file.batches(10_000)), file.schema)


def read_text(path: Path, text: str | bytes, *table: Any, **options: Any) -> pa.Table:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read(path, *table, **options)


def test_what_pandas_and_polars_write_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    at = dt.datetime(2026, 11, 21, 10, 0, 0, 123456)
    rows = {
        "n": range(7),
        "s": LINES,
        "f": [0.1, 1e300, -0.0, 5e-324, 1.0, 2.5, None],
        "t": [at] * 7,
    }
    frame = pd.DataFrame(rows)
    frame.to_csv(path, index=False)
    found = read(path).to_pydict()
    assert found["s"] == [*LINES[:5], None, None]  # pandas writes both as nothing
    assert str(found["f"]) == "[0.1, 1e+300, -0.0, 5e-324, 1.0, 2.5, None]"
    assert found["t"] == [at] * 7
    frame.to_csv(
        path, index=False, sep=";", decimal=",", encoding="utf-8-sig", lineterminator="\r\n"
    )
    assert read(path, comma=True).to_pydict()["f"][:3] == [0.1, 1e300, 0.0]
    frame.to_csv(path, index=False, doublequote=False, escapechar="\\")
    with pytest.raises(CommandFailed, match="a quote is escaped only inside of quotes"):
        read(path)
    frame.to_json(path, orient="records", lines=True, date_format="iso", date_unit="us")
    assert read(path, kind="jsonl").to_pydict()["s"] == LINES
    frame.to_json(path, orient="records", indent=2)
    assert read(path, kind="jsonl").to_pydict()["s"] == LINES
    pl.DataFrame({name: list(column) for name, column in rows.items()}).write_csv(path)
    assert read(path).to_pydict()["s"] == LINES
    pl.DataFrame({"d": [Decimal("1.20"), None], "l": [[1, 2], None]}).write_ndjson(path)
    assert read(path, [("d", pa.decimal128(9, 2))], "jsonl").to_pylist() == [
        {"d": Decimal("1.20"), "l": [1, 2]},
        {"d": None, "l": None},
    ]


def test_what_spark_writes_is_read(spark: SparkSession, tmp_path: Path) -> None:
    at = dt.datetime(2026, 11, 21, 10, 0, 0, 123000, dt.UTC)
    far = dt.datetime(1900, 1, 1, tzinfo=dt.UTC)
    texts = [*LINES, '"', "end\\", '\\"', "#"]
    rows = [(n, text, Decimal("-0.10"), at if n else far, None) for n, text in enumerate(texts)]
    kinds = "id long, s string, d decimal(9,2), t timestamp, none double"
    frame = spark.createDataFrame(rows, kinds).coalesce(1)
    options: list[dict[str, Any]] = [{}, {"escape": '"'}, {"quoteAll": True}, {"sep": "|"}]
    for number, chosen in enumerate(options):
        # By default Spark trims what it writes.
        untrimmed = {"ignoreTrailingWhiteSpace": False, **chosen}
        frame.write.options(header=True, **untrimmed).csv(f"{tmp_path}/{number}")
        (path,) = (tmp_path / str(number)).glob("*.csv")
        escape = None if "escape" in chosen else "\\"
        found = read(path, [("d", pa.decimal128(9, 2))], escape=escape).to_pydict()
        assert found["s"] == [*LINES[:6], "" if "quoteAll" in chosen else None, *texts[7:]]
        assert found["t"] == [far, *[at] * (len(texts) - 1)]
        assert set(found["d"]) == {Decimal("-0.10")}
    with pytest.raises(CommandFailed, match=r"row 1, column 's': .*use --escape"):
        read(next((tmp_path / "0").glob("*.csv")))
    frame.selectExpr(
        "*", "array(struct(s)) a", "map(cast(id as string), d) m", "double('NaN') f"
    ).write.json(f"{tmp_path}/json")
    (path,) = (tmp_path / "json").glob("*.json")
    types = ["m=map<string,decimal(9,2)>", "d=decimal(9,2)", "f=double"]
    found = read(path, kind="jsonl", types=types).to_pydict()
    assert found["s"] == texts
    assert found["a"] == [[{"s": text}] for text in texts]
    assert found["m"] == [[(str(n), Decimal("-0.10"))] for n in range(len(texts))]
    assert all(map(math.isnan, found["f"]))


def test_what_duckdb_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    connection = duckdb.connect()
    texts = pa.table({"s": LINES})  # noqa: F841 (DuckDB finds it by its name)
    for how in ("", ", delimiter '|'", ", force_quote (s)", ", escape '\\'"):
        connection.execute(f"copy (select s, 1.5 d from texts) to '{path}' (format csv{how})")
        escape = "\\" if "escape" in how else None
        assert read(path, escape=escape).to_pydict()["s"] == LINES
    huge = 2**127 - 1
    query = f"""select {huge}::hugeint h, 'NaN'::double f, [1, 2] l, {{'a': 'x, y'}} st, true b
                union all select 1, 1e-7, [], null, false"""
    for how in ("", ", array true"):
        connection.execute(f"copy ({query}) to '{path}' (format json{how})")
        found = read(path, kind="jsonl").to_pydict()
        assert found["h"] == [str(huge), "1"]
        assert math.isnan(found["f"][0])
        assert found["f"][1] == 1e-7
        assert found["st"] == [{"a": "x, y"}, None]


def test_what_postgres_copies_as_csv_is_read(tmp_path: Path) -> None:
    text = (
        "id,s,n,e,tz,b,by,j,num\n"
        '1,"say ""hi""",,"",2026-11-21 10:00:00+02,t,\\xdead,"{""a"": 1}",1.50\n'
        '2,"a\r\nb",x,NA,2026-11-21 10:00:00.5+00,f,\\x,,-0.01\n'
    )
    table = [("tz", UTC), ("b", pa.bool_()), ("num", pa.decimal128(9, 2)), ("j", pa.string())]
    found = read_text(tmp_path / "a", text, table).to_pydict()
    assert found["n"] == [None, "x"]
    assert found["e"] == ["", "NA"]
    assert [at.isoformat() for at in found["tz"]] == [
        "2026-11-21T08:00:00+00:00",
        "2026-11-21T10:00:00.500000+00:00",
    ]
    assert found["b"] == [True, False]
    assert found["num"] == [Decimal("1.50"), Decimal("-0.01")]
    assert read_text(tmp_path / "a", "b,c\nt,1\nf,2\n").to_pydict()["b"] == ["t", "f"]
    with pytest.raises(CommandFailed, match=r"row 1, column 'by': .*Only base64"):
        read_text(tmp_path / "a", text, [("by", pa.binary())])
    with pytest.raises(CommandFailed, match=r"row 2, column 'num': 'NaN' is not decimal128"):
        read_text(tmp_path / "a", "num,x\n1,1\nNaN,1\n", [("num", pa.decimal128(9, 2))])


def test_what_excel_saves_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    german = '\ufeffsep=;\r\nName;Betrag;Datum\r\nMüller;1234,50;21.11.2026\r\n"A;B";-3,5;\r\n'
    found = read_text(path, german, comma=True)
    assert found.column_names == ["Name", "Betrag", "Datum"]
    assert found.to_pydict()["Betrag"] == [1234.5, -3.5]
    plain = german.removeprefix("\ufeffsep=;\r\n")
    for encoding in ("cp1252", "utf-16"):
        assert read_text(path, plain.encode(encoding), comma=True, encoding=encoding).equals(found)
    numbers = "v,w\r\n1.234,1.23457E+17\r\n#N/A,2\r\n"
    assert read_text(path, numbers).to_pydict() == {"v": [1.234, None], "w": [1.23457e17, 2.0]}
    grouped = read_text(path, 'v;w\r\n"1.234,50";1\r\n', comma=True)
    assert grouped.to_pydict()["v"] == ["1.234,50"]


# Reports to other projects about readers that changed, dropped or invented values.
REPORTS: list[tuple[str, str, Any, Any]] = [
    ("turicreate 1692: a quote that is not closed", 'a,b\n"a","b"\n"c","d\n', None, "no closing"),
    (
        "turicreate 1692: a blank before a quote",
        'a, b\n"a", "b"\n',
        None,
        "has a quote, but is not",
    ),
    ("datatable 1343", 'a,b\r1,"x\ny"\r4,z', None, {"a": [1, 4], "b": ["x\ny", "z"]}),
    ("CSV.jl 765", 'a,b\n1,"x\ny\n"\n2,\n', None, {"a": [1, 2], "b": ["x\ny\n", None]}),
    ("spark 15226", '"a\nb",c\n1,2\n', None, {"a\nb": [1], "c": [2]}),
    ("duckdb 25827", "a,b\n" + "1,2\n" * 40 + "1,2,3\n", None, "row 41: Expected 2 columns, got 3"),
    ("duckdb 11164", "a,b,c\n1,2,3\nd,\n", None, "row 2: Expected 3 columns, got 2"),
    ("duckdb 12596", "a,b\n1,2,\n3,4,\n", None, "row 1: Expected 2 columns, got 3"),
    ("wirelog 1005", "a,b\n" + "9" * 23 + ",7\n", pa.int32(), f"'{'9' * 23}' is not int32"),
    ("wirelog 1005: a last delimiter", "a,b,\n1,2,\n", None, {"a": [1], "b": [2], "": [None]}),
    ("clickhouse 1832", "a,b\n,1\n", pa.int8(), {"a": [None], "b": [1]}),
    ("clickhouse 7630", '{"a":2147483648}\n', pa.int32(), "'2147483648' is not int32"),
    ("pandas 33766", '{"a":"72057594038135102"}\n', None, {"a": ["72057594038135102"]}),
    ("pandas 44684", '[{"a":"202101010000000003"}]', None, {"a": ["202101010000000003"]}),
    ("fixjson 19", '{"a":3791411052119578828}\n', None, {"a": [3791411052119578828]}),
]


@pytest.mark.parametrize(("report", "text", "kind", "right"), REPORTS, ids=[r[0] for r in REPORTS])
def test_a_report_to_another_project_does_not_apply_here(
    tmp_path: Path, report: str, text: str, kind: Any, right: Any
) -> None:
    table = None if kind is None else [("a", kind)]
    form = "jsonl" if text[0] in "[{" else "csv"
    if isinstance(right, dict):
        assert read_text(tmp_path / "a", text, table, kind=form).to_pydict() == right
        return
    with pytest.raises(CommandFailed) as failed:
        read_text(tmp_path / "a", text, table, kind=form)
    assert right in str(failed.value)
