"""CSV and JSON lines of other programs: lossless types, or a helpful refusal."""

import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingester.cli.exits import CommandFailed
from ingester.cli.input.csv_records import BrokenRecord, Dialect, whole_records
from ingester.cli.input.files import format_of, opened
from ingester.cli.input.json_decoding import Repeated, objects_of
from ingester.cli.input.json_objects import as_lines
from ingester.cli.input.source import text_options
from ingester.cli.input.text_values import Unreadable
from tests.cli.conftest import ROOT

UTC = pa.timestamp("us", "UTC")
BIG = ["12345678901234567890", "12345678901234567891", "12345678901234567892"]
BLOCK = 4 * 1024**2
Read = Callable[..., pa.Table]


def _written_object(members: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in members) + "}"


def _plain(value: Any) -> Any:
    """The value with its numbers as text, and a mark in each object that has a name twice."""
    if isinstance(value, dict):
        mark = {"twice": True} if isinstance(value, Repeated) else {}
        return {name: _plain(inner) for name, inner in value.items()} | mark
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, msgspec.Raw):
        return f"#{bytes(value).decode()}"
    return f"#{value}" if isinstance(value, int) else value


def _marked(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    return found | {"twice": True} if len(found) < len(members) else found


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return the table read from a file with this name and content."""

    def rows(name: str, text: str | bytes, table: Any = None, **options: Any) -> pa.Table:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        said = text_options(
            options.get("types"),
            options.get("delimiter"),
            options.get("null"),
            options.get("comma", False),
            options.get("encoding"),
            options.get("escape"),
            options.get("no_quotes", False),
        )
        schema = None if table is None else pa.schema(table)
        with opened(str(path), format_of(name, None), schema, said) as file:
            return pa.Table.from_batches(list(file.batches(10_000)), file.schema)

    return rows


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["00501", "10001"], pa.string()),
        (['"00501"', '"10001"'], pa.string()),
        (["-007", "1"], pa.string()),
        (["+5", "6"], pa.string()),
        (["0x1F", "16"], pa.string()),
        (["1", "9223372036854775807"], pa.int64()),
        (BIG, pa.decimal128(38, 0)),
        (["1" * 39, "2"], pa.string()),
        (["1", "1.5"], pa.float64()),
        (["0.30000000000000004", "1e5", "5e-324"], pa.float64()),
        (["0.10000000000000001", "1.000000000000000056e-01"], pa.float64()),
        (["0.1234567890123456789", "1.5"], pa.decimal128(38, 19)),
        (["9007199254740993", "1.5"], pa.decimal128(38, 1)),
        (["12345678901234567.5", "1e5"], pa.string()),
        (["1e400", "1"], pa.string()),
        (["1e-400", "1"], pa.string()),
        (["-0", "1"], pa.float64()),
        (["nan", "1.5"], pa.float64()),
        (["NA", "1"], pa.int64()),
        (["NA", "DE"], pa.string()),
        (["true", "False"], pa.bool_()),
        (["2026-11-21", "1969-12-31"], pa.date32()),
        (["2026-02-30", "2026-02-28"], pa.string()),
        (["2026-11-21 10:00:00", "2026-11-21T10:00:00.5"], pa.timestamp("us")),
        (["2026-11-21T10:00:00Z", "2026-11-21T10:00:00.123456Z"], UTC),
        (["2026-11-21T10:00:00+02:00", "2026-11-21T10:00:00.500000000Z"], UTC),
        (["2026-11-21T10:00:00.123456789Z"], pa.timestamp("ns", "UTC")),
        (["2026-11-21T10:00:00Z", "2026-11-21T10:00:00"], pa.string()),
        (["12:34:56", "23:59:59"], pa.string()),
        (["'1,5'", "2"], pa.string()),
    ],
)
def test_a_text_becomes_a_value_only_if_the_value_prints_the_same(
    read: Read, texts: list[str], kind: pa.DataType
) -> None:
    lines = [text.replace("'1,5'", '"1,5"') for text in texts]
    table = read("a.csv", "v,w\n" + "".join(f"{line},x\n" for line in lines))
    assert table.column("v").type == kind
    written = [line.strip('"') for line in lines]
    if pa.types.is_string(kind):
        assert table.column("v").to_pylist() == written
    elif pa.types.is_decimal(kind):
        assert table.column("v").to_pylist() == [Decimal(text) for text in written]
    assert len(set(table.column("v").cast(pa.string()).to_pylist())) == len(set(texts)) or (
        texts[0].startswith("0.1000") or "+02:00" in texts[0]
    )


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (['{"v":"2026-11-21T10:00:00Z"}', '{"v":"2026-11-21T10:00:00.25Z"}'], UTC),
        (['{"v":"2026-11-21T10:00:00"}'], pa.timestamp("us")),
        ([f'{{"v":{big}}}' for big in BIG], pa.decimal128(38, 0)),
        ([f'{{"v":[{big}]}}' for big in BIG], pa.list_(pa.decimal128(38, 0))),
        ([f'{{"v":{{"w":{big}}}}}' for big in BIG], pa.struct([("w", pa.decimal128(38, 0))])),
        (['{"v":9007199254740993}', '{"v":1.5}'], pa.decimal128(38, 1)),
        (['{"v":0.1234567890123456789}', '{"v":2}'], pa.decimal128(38, 19)),
        (['{"v":0.30000000000000004}', '{"v":2}'], pa.float64()),
        (['{"v":' + "1" * 42 + "}", '{"v":1}'], pa.string()),
        (['{"v":"007"}', '{"v":"5"}'], pa.string()),
    ],
)
def test_json_lines_keep_what_is_written(read: Read, lines: list[str], kind: pa.DataType) -> None:
    table = read("a.jsonl", "\n".join(lines))
    assert table.column("v").type == kind
    assert len({str(value) for value in table.column("v").to_pylist()}) == len(lines)


def test_a_late_type_in_a_file_applies_from_its_first_row(read: Read) -> None:
    rows = BLOCK // 10
    table = read("a.csv", "v,w\n" + "1,123456\n" * rows + "007,1.5\n")
    assert table.schema == pa.schema([("v", pa.string()), ("w", pa.float64())])
    assert table.column("v")[-1].as_py() == "007"
    lines = '{"v":1,"w":12}\n' * rows + '{"v":1.5,"w":12345678901234567890,"late":"x"}\n'
    table = read("a.jsonl", lines)
    kinds = {"v": pa.float64(), "w": pa.decimal128(38, 0), "late": pa.string()}
    assert {field.name: field.type for field in table.schema} == kinds
    assert table.num_rows == rows + 1
    assert table.column("late").null_count == rows
    with pytest.raises(CommandFailed, match=rf"row {rows + 1:,}, column 'v'.* after a number"):
        read("a.jsonl", '{"v":1,"w":12}\n' * rows + '{"v":"007"}\n')
    # The last block has only one of the columns.
    table = read("a.jsonl", '{"v":1,"w":12}\n' * rows + '{"v":1.5}')
    assert table.schema.types == [pa.float64(), pa.int64()]
    assert table.num_rows == rows + 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('a;b\n1;"x,y"\n2;z\n', ["a", "b"]),
        ("a\tb\n1\t2\n", ["a", "b"]),
        ("a|b\n1|2\n", ["a", "b"]),
        ("sep=;\r\na;b\r\n1;2\r\n", ["a", "b"]),
        ("day;amount;who\n08/01/2016;-21.419,06;A\n19/01/2016;-53,9;A\n29/01/2016;2;A\n", 3),
        ("when;id\nApril 15, 2023;4\nMay 2;5\n", ["when", "id"]),
        ("name,type,values\nalgorithm,string,one/two\nthreads,int,1;2:3;4\n", 3),
        ("v\n1\n", ["v"]),
    ],
)
def test_the_delimiter_is_recognised(read: Read, text: str, names: Any) -> None:
    found = read("a.csv", text).column_names
    assert (found if isinstance(names, list) else len(found)) == names


def test_texts_are_parsed_by_the_given_options(read: Read) -> None:
    german = "id;betrag;seit\n007;1,50;-\n008;-2,25;2026-11-21\n"
    table = read("a.csv", german, comma=True, null=["-"])
    assert table.to_pydict()["betrag"] == [1.5, -2.25]
    assert table.column("seit").null_count == 1
    table = read("a.csv", german, types=["betrag=decimal(20,4),id=int32"], comma=True)
    assert table.schema.types == [pa.int32(), pa.decimal128(20, 4), pa.string()]
    told = read("a.csv", "a;b,c\n1;2,3\n", delimiter=";")
    assert told.column_names == ["a", "b,c"]
    for encoding in ("latin-1", "utf-16", "utf-16-le", "cp1252"):
        table = read("a.csv", "name\nJosé\n".encode(encoding), encoding=encoding)
        assert table.to_pydict() == {"name": ["José"]}
        lines = read("a.jsonl", '{"name":"José"}\n'.encode(encoding), encoding=encoding)
        assert lines.to_pydict() == {"name": ["José"]}
    marked = b"\xef\xbb\xbf"
    assert read("a.csv", marked + b"v\n1\n").to_pydict() == {"v": [1]}
    assert read("a.jsonl", marked + b'{"v":1}\n').to_pydict() == {"v": [1]}
    assert read("a.csv.gz", gzip.compress(b"v\n007\n")).to_pydict() == {"v": ["007"]}
    mixed = read("a.jsonl", '{"v":1.50}\n{"v":"x"}\n{"v":{"a":1}}\n', types=["v=string"])
    assert mixed.to_pydict() == {"v": ["1.50", "x", '{"a":1}']}


def test_an_empty_field_is_null_and_empty_quotes_are_an_empty_text(read: Read) -> None:
    assert read("a.csv", 'v,w\n,""\nx,1\n').to_pydict() == {"v": [None, "x"], "w": [None, 1]}
    assert read("a.csv", 'v,w\n"",x\n,y\n').column("v").to_pylist() == ["", None]
    assert read("a.csv", 'v\n1\n\n"a\nb"\n').to_pydict() == {"v": ["1", None, "a\nb"]}


def test_the_tables_types_take_precedence_over_the_files(read: Read) -> None:
    table = [("zip", pa.string()), ("v", pa.float64()), ("at", UTC), ("n", pa.decimal128(10, 2))]
    found = read("a.csv", "zip,v,at,n,new\n501,1,2026-11-21T10:00:00Z,1.5,00501\n", table)
    assert found.schema == pa.schema([*table, ("new", pa.string())])
    line = '{"zip":"501","v":1,"at":"2026-11-21T10:00:00Z","n":1.5}\n{"zip":502,"n":"2.25"}\n'
    found = read("a.jsonl", line, table)
    assert found.schema == pa.schema(table)
    assert found.column("zip").to_pylist() == ["501", "502"]
    odd = [
        ("m", pa.map_(pa.string(), pa.int64())),
        ("b", pa.binary()),
        ("l", pa.list_(UTC)),
    ]
    one = '{"m":[["k",1]],"b":"AAEC","l":["2026-11-21T10:00:00Z"]}'
    of_json = read("a.jsonl", one, odd)
    of_csv = read("a.csv", 'm,b,l\n"[[""k"",1]]",AAEC,"[""2026-11-21T10:00:00Z""]"\n', odd)
    assert of_json.schema == of_csv.schema == pa.schema(odd)
    assert of_json.to_pylist() == of_csv.to_pylist()
    assert of_json.column("b").to_pylist() == [b"\0\1\2"]


def test_a_field_keeps_its_quotes_escapes_and_line_ends(read: Read) -> None:
    assert read("a.csv", 'v,w\r\n"a\r\nb ""x""",1\r\n').column("v").to_pylist() == ['a\r\nb "x"']
    # As Spark writes them: a backslash stands for itself except before a quote or another one.
    spark = 'v,w\n"say \\"hi\\"",1\na\\b,2\n"c\\d, \\\\",3\n'
    assert read("a.csv", spark, escape="\\").column("v").to_pylist() == [
        'say "hi"',
        "a\\b",
        "c\\d, \\",
    ]
    plain = read("a.csv", 'v\tw\n"a\t5"\n', no_quotes=True)
    assert plain.to_pylist() == [{"v": '"a', "w": '5"'}]


def test_a_line_end_in_quotes_at_the_end_of_a_block_is_kept(read: Read) -> None:
    rows = [("x" * 98, "1")] * (BLOCK // 104)
    for shift in range(6):
        wide = [("y" * shift, "2"), *rows, *[("a\r\nb", "3")] * 40, *rows[:40]]
        file = io.StringIO(newline="")
        csv.writer(file).writerows([("v", "w"), *wide])
        table = read("a.csv", file.getvalue())
        assert table.column("v").to_pylist() == [v or None for v, _ in wide]


@given(
    st.lists(st.lists(st.text('a",\\\r\n', max_size=6), min_size=2, max_size=2), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(1, 20),
)
@settings(max_examples=300, deadline=None)
def test_blocks_end_at_record_ends_wherever_chunks_end(
    rows: list[list[str]], line_end: str, step: int
) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=line_end, quoting=csv.QUOTE_ALL).writerows(rows)
    text = file.getvalue().encode()
    chunks = [text[at : at + step] for at in range(0, len(text), step)]
    blocks = list(whole_records(chunks, Dialect(",", ["v", "w"])))
    assert b"".join(blocks).removesuffix(b"\n") == text.removesuffix(b"\n")
    found = [csv.reader(io.StringIO(b.decode(), newline=""), strict=True) for b in blocks]
    assert [row for each in found for row in each] == rows


@given(st.text('a",\n', max_size=12), st.integers(1, 5))
def test_records_are_refused_exactly_if_a_strict_reader_refuses_them(text: str, step: int) -> None:
    chunks = [text.encode()[at : at + step] for at in range(0, len(text), step)]
    bare_quote = re.compile(r'(?:\A|[,\n])[^",\n]+"')
    outside = re.sub(r'(?<![^,\n])"(?:[^"]|"")*"(?=[,\n]|\Z)', "", text)
    try:
        list(csv.reader(io.StringIO(text, newline=""), strict=True))
        is_good = not bare_quote.search(outside)
    except csv.Error:
        is_good = False
    try:
        list(whole_records(chunks, Dialect(",", ["v"])))
    except BrokenRecord:
        assert not is_good
    else:
        assert is_good


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        (
            "a.csv",
            "v\nJosé\n".encode("latin-1"),
            {},
            "line 2 is not UTF-8 (byte 0xe9); give its encoding",
        ),
        ("a.csv", "v\nx\n".encode("utf-16"), {}, "UTF-16, not UTF-8; use --encoding utf-16"),
        ("a.csv", "v\nx\n".encode("utf-16-le"), {}, "--encoding utf-16-le"),
        ("a.csv", b"v\n1\n", {"encoding": "utf-16"}, "UTF-16 stream does not start with BOM"),
        ("a.csv", b"v\n1\n", {"encoding": "utf-32"}, "is not utf-32-le"),
        ("a.jsonl", b'{"v":"\xff"}', {"encoding": "ascii"}, "is not ascii"),
        ("a.csv", b"", {}, "it begins with an empty line, but a CSV file needs a header"),
        ("a.csv", b"a,a\n1,2\n", {}, "'a' more than once"),
        ("a.csv", b"a;b,c\n1;2,3\n", {}, "',' or ';': give --delimiter"),
        ("a.csv", b"a,b\n1,2\n\n1,2,3\n", {}, "row 2: Expected 2 columns, got 3: '1,2,3'"),
        ("a.csv", b'a,b\n1,2\n3,"x"y\n', {}, "row 2, column 'b': '\"x\"y' has text after"),
        ("a.csv", b'a,b\n"say \\"hi\\"",1\n', {}, "row 1, column 'a'"),
        ("a.csv", b'a,b\n"say \\"hi\\"",1\n', {}, "use --escape '\\'; if"),
        ("a.csv", b'a,b\n1,x"y\n', {}, "has a quote, but is not quoted; if quotes are ordinary"),
        ("a.csv", b'a,b\n1,2\n1,"x\n2,3\n', {}, "row 2, column 'b': '\"x' has no closing quote"),
        ("a.csv", b'"a"x,b\n', {}, "its header: '\"a\"x,b' has text after its closing quote"),
        ("a.csv", b"\na,b\n", {}, "it begins with an empty line"),
        ("a.csv", b"\ra,b\n1,2\n", {}, "it begins with an empty line"),
        ("a.csv", b"v\n", {"escape": "ab"}, "not one ASCII character"),
        ("a.csv", b"v\n", {"escape": "\\", "no_quotes": True}, "--escape is for quotes"),
        (
            "a.csv",
            b"at\n2026-11-21T10:00:00.123456789Z\n",
            {"table": [("at", UTC)]},
            "'ingester create --timestamp-unit ns'",
        ),
        (
            "a.csv",
            b"v\n1\nx\n",
            {"table": [("v", pa.int64())]},
            "row 2, column 'v': 'x' is not int64",
        ),
        ("a.csv", b"v;w\n1,5;1\n", {"table": [("v", pa.float64())]}, "--decimal-comma"),
        ("a.csv", b"v\n1.555\n", {"types": ["v=decimal(5,2)"]}, "'1.555' is not decimal128(5, 2)"),
        *(
            (
                name,
                text % value,
                {"table": [("v", kind)]},
                f"row 2, column 'v': '{value}' is not {kind}",
            )
            for value, kind in [
                (2**256 - 1, pa.decimal128(38, 0)),
                (2**128 + 5, pa.decimal128(38, 0)),
                (341 * 10**18, pa.decimal128(38, 18)),
                (35, pa.decimal128(38, 37)),
                (2**53 + 1, pa.float64()),
                (2**24 + 1, pa.float32()),
                (2**63, pa.int64()),
                (300, pa.int8()),
            ]
            for name, text in [("a.csv", b"v\n0\n%d\n"), ("a.jsonl", b'{"v":0}\n{"v":%d}\n')]
        ),
        *(
            ("a.jsonl", b'{"v":%b}' % text, {"table": [("v", kind)]}, f"column 'v': {message}")
            for text, kind, message in [
                (b"[1,%d]" % (2**53 + 1), pa.list_(pa.float64()), "'9007199254740993' is not"),
                (b"9007199254740993.0", pa.float64(), "'9007199254740993.0' is not double"),
                (b"[%d]" % (2**63), pa.list_(pa.int64()), "'9223372036854775808' is not int64"),
                (b'{"k":35}', pa.map_(pa.string(), pa.decimal128(38, 37)), "'35' is not"),
            ]
        ),
        (
            "a.csv",
            b'v\n"[9223372036854775808]"\n',
            {"table": [("v", pa.list_(pa.int64()))]},
            "row 1, column 'v': '9223372036854775808' is not int64",
        ),
        ("a.csv", b"v\n1e400\n", {"types": ["v=double"]}, "'1e400' is not double"),
        ("a.csv", b"v\n2026-11-21 10:00:00\n", {"table": [("v", UTC)]}, "ISO 8601 with a zone"),
        ("a.jsonl", b'{"v":"2026-11-21T10:00:00"}', {"table": [("v", UTC)]}, "with a zone"),
        ("a.json", b'[{"v":1}, 5]', {}, "object 1 is not followed by an object"),
        ("a.json", b'[{"v":1}, {"v":', {}, "it ends inside the object after object 1"),
        ("a.json", b'[{"v":1}] {"v":2}', {}, "object 1 is not followed by an object"),
        ("a.jsonl", b'{"v":"Jos\xe9"}', {}, "line 1 is not UTF-8 (byte 0xe9); give its encoding"),
        ("a.jsonl", b'{"v":1}\n{"v":"x"}\n', {}, "--column-types v=string"),
        ("a.jsonl", b'{"v":1}\n{"v":\n', {}, "row 2: '{\"v\":' is not JSON: Expecting value"),
        (
            "a.jsonl",
            b'{"v":{"x":1,"y":2}}',
            {"table": [("v", pa.struct([("x", pa.int64())]))]},
            "'v'",
        ),
        ("a.jsonl", b"{}\n", {}, "no fields"),
        (
            "a.jsonl",
            b'{"n":1}\n{"v":1,"v":2}',
            {},
            'row 2: \'{"v":1,"v":2}\' has the name',
        ),
        (
            "a.jsonl",
            b'{"v":{"x":1,"x":2}}',
            {},
            "'x' twice; --column-types v=string keeps",
        ),
        ("a.jsonl", b'{"v":1,"v":2}', {"types": ["v=string"]}, "has the name 'v' twice"),
        (
            "a.jsonl",
            b'{"v":1,"v":2,"m":{}}',
            {"types": ["m=map<string,int64>"]},
            'row 1: \'{"v":1,"v":2,"m":{}}\' has the name \'v\' twice',
        ),
        (
            "a.jsonl",
            b'{"m":[{"x":1,"x":2}]}',
            {"types": ["m=list<map<string,int64>>"]},
            "row 1, column 'm'",
        ),
        *(
            (
                "a.jsonl",
                b'{"n":1}\n{"v":%b}' % (b"[" * n + b"]" * n),
                options,
                "is nested too deeply",
            )
            for n in (1000, 5000, 100_000)
            for options in ({}, {"types": ["v=string"]}, {"table": [("v", pa.list_(UTC))]})
        ),
        (
            "a.json",
            b'{"v":\n' + b"[" * 5000 + b"]" * 5000 + b"}",
            {},
            "object 1 is nested too",
        ),
        (
            "a.csv",
            b'v\n"' + b"[" * 5000 + b"]" * 5000 + b'"\n',
            {"table": [("v", pa.list_(UTC))]},
            "it is nested too deeply",
        ),
        *(
            (
                "a.jsonl",
                b'{"v":null}\n{"v":"%b"}\n' % text,
                {"table": [("v", kind)]},
                f"row 2, column 'v': {shown} is not {str(kind)[:4]}",
            )
            for text in (b"NA", b"", b" null ")
            for kind, shown in [
                (UTC, repr(text.decode())),
                (pa.date32(), repr(text.decode())),
                (pa.decimal128(9, 2), repr(text.decode())),
                (pa.float64(), f"'\"{text.decode()}\"'"),
                (pa.int64(), f"'\"{text.decode()}\"'"),
                (pa.bool_(), f"'\"{text.decode()}\"'"),
            ]
        ),
        (
            "a.jsonl",
            b'{"\\u0076":9007199254740993}',
            {"table": [("v", pa.float64())]},
            "row 1, column 'v': '9007199254740993' is not double",
        ),
        (
            "a.jsonl",
            b'{"v":NaN}\n{"v":"NaN"}\n',
            {},
            "row 2, column 'v': '\"NaN\"' is a st",
        ),
        ("a.jsonl", b'{"v":1e39}', {"table": [("v", pa.float32())]}, "'1e39' is not float"),
        (
            "a.jsonl",
            b'{"v":"\\ud800"}',
            {},
            'row 1: \'{"v":"\\\\ud800"}\' is not JSON: it has half',
        ),
        ("a.jsonl", b'{"v":"\\ud800"}', {"types": ["v=string"]}, "it has half of a surrogate pair"),
        (
            "a.jsonl",
            b'{"v":[["a",2,3]]}',
            {"types": ["v=map<string,int64>"]},
            "not a key and a value",
        ),
        (
            "a.jsonl",
            b'{"v":[{"key":"a","val":2}]}',
            {"types": ["v=map<string,int64>"]},
            "not a key and a value",
        ),
        (
            "a.jsonl",
            b'{"n":1}\n{"v":' + b"[" * 70 + b"]" * 70 + b"}",
            {},
            "row 2, column 'v': '…'",
        ),
        (
            "a.csv",
            b'v,w\n"[""\\ud800""]",1\n',
            {"table": [("v", pa.list_(pa.string()))]},
            "row 1, column 'v': '[\"\\\\ud800\"]' is not list<item: string>: it has half",
        ),
        (
            "a.jsonl",
            b'{"n":1}\n{"v":[1,NaN]}',
            {"types": ["v=string"]},
            "row 2: '{\"v\":[1,NaN]}' has an object or list that cannot be kept as text",
        ),
        ("a.jsonl", b'{"v":"x"}{"v":[2]}\n', {"types": ["v=string"]}, "cannot be kept as text"),
        ("a.csv", b"v\n", {"types": [f"v={'list<' * 3000}int64{'>' * 3000}"]}, "more than 60"),
        ("a.csv", b"v\n", {"types": ["v=integer"]}, "type 'integer' is unknown; known are bool"),
        ("a.csv", b"v\n", {"types": ["v"]}, "'v' is not name=type"),
        ("a.csv", b"v\n", {"types": ["v=decimal(39,2)"]}, "the precision must be 1 to 38"),
        ("a.csv", b"v\n", {"delimiter": ";;"}, "not one ASCII character"),
        ("a.csv", b"v\n", {"encoding": "utf-99"}, "'utf-99' is unknown"),
    ],
)
def test_a_refusal_names_the_fault_and_a_remedy(
    read: Read, name: str, text: bytes, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(CommandFailed) as failed:
        read(name, text, **options)
    assert message in str(failed.value)


def test_a_key_may_be_escaped_and_nan_may_be_bare(read: Read) -> None:
    exact = read("a.jsonl", '{"\\u0076":9007199254740993}\n{"v":1.5}\n')
    assert exact.column("v").to_pylist() == [Decimal("9007199254740993.0"), Decimal("1.5")]
    text = '{"v":NaN}\n{"v":"NaN"}\n{"v":-Infinity}\n{"v":-0}\n{"v":1.5}\n'
    table = read("a.jsonl", text, [("v", pa.float64())])
    assert str(table.column("v").to_pylist()) == "[nan, nan, -inf, -0.0, 1.5]"
    assert str(read("a.jsonl", '{"v":-0}\n').column("v").to_pylist()) == "[-0.0]"
    kept = read("a.jsonl", '{"v":{"a":1,"a":2}, "w":5}\n', types=["v=string"])
    assert kept.to_pylist() == [{"v": '{"a":1,"a":2}', "w": 5}]
    mixed = '{"v":[1, 2.50 ]}\n\n{"v":true}{"w":1}\n'
    with pytest.raises(CommandFailed, match=r"row 2: .* cannot be kept as text"):
        read("a.jsonl", mixed, types=["v=string"])
    kept = read("a.jsonl", mixed.replace("}{", "}\n{"), types=["v=string"])
    assert kept.column("v").to_pylist() == ["[1, 2.50 ]", "true", None]
    beside = read("a.jsonl", '{"v":-0, "f":NaN}\n{"v":1.50}\n', types=["v=string"])
    assert beside.column("v").to_pylist() == ["-0", "1.50"]


_NAMES = st.sampled_from(["a", "b", "\\u0061", '\\"', "\\u0022", "\\\\", "\\\\u0022"])
_JSON = st.recursive(
    st.sampled_from(["null", "1", "-0", "0.50", "1e400", '"x"', '"\\u0022"', '"\\""', '"-0,"'])
    | st.integers().map(str),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(_NAMES, inner), max_size=3).map(_written_object)
    ),
    max_leaves=6,
)


@given(st.lists(st.lists(st.tuples(_NAMES, _JSON), max_size=3), min_size=1, max_size=3))
@settings(max_examples=500, deadline=None)
def test_objects_are_read_as_written_and_a_repeated_name_is_seen(
    rows: list[list[tuple[str, str]]],
) -> None:
    lines = [_written_object(row) for row in rows]
    numbers: dict[str, Any] = {"parse_int": "#{}".format, "parse_float": "#{}".format}
    right = [json.loads(line, object_pairs_hook=_marked, **numbers) for line in lines]
    text = "\n".join(lines).encode()
    if any("twice" in row for row in right):
        with pytest.raises(Unreadable, match="twice; an object may have a name once"):
            objects_of(text)
    else:
        assert _plain(objects_of(text)) == right


def test_objects_in_an_array_or_over_several_lines_are_read_like_lines(read: Read) -> None:
    rows = [
        {"id": 12345678901234567890 + i, "s": 'a "b" ]}\\ {[', "l": [{"x": i}] * (i % 3)}
        for i in range(50)
    ]
    lines = read("a.jsonl", "\n".join(map(json.dumps, rows)))
    assert lines.schema.field("id").type == pa.decimal128(38, 0)
    for text in (
        json.dumps(rows),
        json.dumps(rows, indent=2),
        "\n".join(json.dumps(row, indent=2) for row in rows),
    ):
        assert read("a.json", text).equals(lines)
    assert read("a.json", "[]").num_rows == 0


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_objects_are_found_wherever_chunks_end(data: st.DataObject) -> None:
    texts = st.text('a"\\{}[], \n', max_size=5)
    values = st.recursive(
        st.none() | st.integers() | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=8,
    )
    rows = data.draw(st.lists(st.dictionaries(texts, values, max_size=3), min_size=1, max_size=4))
    indent = data.draw(st.sampled_from([None, 1]))
    one = json.dumps(rows, indent=indent)
    each = "\n".join(json.dumps(row, indent=1) for row in rows)
    text = data.draw(st.sampled_from([one, each])).encode()
    step = data.draw(st.integers(1, 20))
    chunks = [text[at : at + step] for at in range(0, len(text), step)]
    found = b"\n".join(as_lines(chunks, data.draw(st.integers(1, 99)))).split(b"\n")
    assert [json.loads(line) for line in found] == rows


@pytest.mark.parametrize(
    ("kind", "early", "late", "message"),
    [
        ("csv", "1,x", "007,x", "column 'v': '007' is not int64"),
        ("csv", "1,x", "1.5,x", "to a new table, with --column-types v=double or from a file"),
        ("csv", "1,x", "12345678901234567890,x", "--column-types v=decimal(38,0) or from"),
        ("csv", "1.5,x", "12345678901234567890,x", "'12345678901234567890' is not double"),
        ("csv", ",x", "5,x", "'5' is not null"),
        ("csv", "2026-11-21,x", "2026-11-21 10:00:00,x", "is not date32"),
        ("csv", "2026-11-21T10:00:00Z,x", "soon,x", "'soon' is not timestamp[us, tz=UTC]"),
        ("csv", "x,x", "007,x", ""),
        ("csv", "1.5,x", "2.25,x", ""),
        ("jsonl", '{"v":1}', '{"v":1.5}', "column 'v': '1.5' is not int64, which was inferred"),
        (
            "jsonl",
            '{"v":1}',
            '{"v":1,"w":2}',
            "column 'w': '2' is in a column that the first",
        ),
        (
            "jsonl",
            '{"v":1.5}',
            '{"v":12345678901234567890}',
            "'12345678901234567890' is not double, which was inferred",
        ),
        ("jsonl", '{"v":"2026-11-21"}', '{"v":"x"}', "'x' is not date32"),
        (
            "jsonl",
            '{"v":{"a":1}}',
            '{"v":{"a":1,"b":2}}',
            "--column-types v=struct<a: int64, b: int64> or",
        ),
        ("jsonl", '{"v":null}', '{"v":5}', "'5' is not null"),
        ("jsonl", '{"v":"x"}', '{"v":"007"}', ""),
    ],
)
def test_a_late_value_of_another_type_in_a_pipe_is_refused(
    tmp_path: Path, kind: str, early: str, late: str, message: str
) -> None:
    row = early + ("x" if kind == "csv" else " ") * 500
    count = BLOCK // len(row) + 1
    text = ("v,s\n" if kind == "csv" else "") + f"{row}\n" * count + f"{late}\n{row}\n"
    whole, pipe = tmp_path / "whole", tmp_path / "pipe"
    whole.write_text(text)
    os.mkfifo(pipe)
    said = text_options(None, None, None, False, None)
    rows: list[Any] = []
    failure = ""
    with subprocess.Popen(f"exec cat {whole} > {pipe}", shell=True) as writer:
        try:
            with opened(str(pipe), kind, None, said) as file:
                for batch in file.batches(10_000):
                    rows += batch.column("v").to_pylist()
        except CommandFailed as exc:
            failure = str(exc)
        finally:
            writer.kill()
    assert message in failure
    assert bool(message) == bool(failure)
    if not failure:
        assert len(rows) == count + 2
        assert str(rows[-2]) in late
    assert len(set(map(str, rows))) <= 2


def test_type_detection_does_not_keep_the_file_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("w") as file:
        file.write("v,w\n")
        for _ in range(100):
            file.write("1234567890,abcdefghijklmnopqrstuvwxyz\n" * 50_000)
    code = (
        "import sys, pyarrow\n"
        "from ingester.cli.input.files import opened\n"
        "from ingester.cli.input.source import text_options\n"
        "with opened(sys.argv[1], 'csv', None, text_options(None, None, None, False, None)) as f:\n"
        "    assert f.rows == sum(b.num_rows for b in f.batches(10_000)) == 5_000_000\n"
        "peak = pyarrow.default_memory_pool().max_memory() // 2**20\n"
        "sys.exit(f'{peak} MiB' if peak > 250 else 0)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
