"""The forms of data that ``write`` takes, and the libraries that read answers."""

import datetime
import decimal
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from ingester.client import Client, InvalidRequest
from ingester.client.inputs import batches_of, table_of_columns, table_of_rows
from tests.client.rows import SCHEMA, batch, values
from tests.client.small_daemon import SmallDaemon
from tests.drivers.daemon import Daemon

MIB = 1024**2
BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
COLUMNS: dict[str, list[Any]] = {"host": ["a", "b", None], "v": [1.5, 2.5, 3.5]}
ROWS = [{"host": "a", "v": 1.5}, {"host": "b", "v": 2.5}, {"v": 3.5}]


class ArrayOnly:
    """An object of a library whose only interface is one batch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object:
        return pa.record_batch(COLUMNS).__arrow_c_array__(requested_schema)


FORMS: dict[str, Callable[[], Any]] = {
    "batch": lambda: pa.record_batch(COLUMNS),
    "table": lambda: pa.table(COLUMNS),
    "chunks": lambda: pa.concat_tables([pa.table(COLUMNS)[:1], pa.table(COLUMNS)[1:]]),
    "reader": lambda: pa.table(COLUMNS).to_reader(),
    "array": ArrayOnly,
    "polars": lambda: pl.DataFrame(COLUMNS),
    "polars chunks": lambda: pl.concat(
        [pl.DataFrame(COLUMNS)[:1], pl.DataFrame(COLUMNS)[1:]], rechunk=False
    ),
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas filtered": lambda: pd.DataFrame({**COLUMNS, "x": [1, 2, 3]}).query("x > 0")[
        ["host", "v"]
    ],
    "pandas index": lambda: pd.DataFrame(
        {"v": COLUMNS["v"]}, pd.Index(COLUMNS["host"], name="host")
    ),
    "duckdb": lambda: duckdb.sql(
        "select * from (values ('a', 1.5::double), ('b', 2.5), (null, 3.5)) rows(host, v)"
    ),
    "columns": lambda: COLUMNS,
    "arrays": lambda: {"host": pl.Series(COLUMNS["host"]), "v": np.array(COLUMNS["v"])},
    "series": lambda: {"host": pd.Series(COLUMNS["host"]), "v": pa.chunked_array([COLUMNS["v"]])},
    "rows": lambda: ROWS,
    "generator of rows": lambda: (row for row in ROWS),
    "batches": lambda: [pa.record_batch(COLUMNS)],
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp("inputs")
    with Daemon.start(folder / "d") as daemon, Client(daemon.flight) as client:
        yield client


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_written_as_one_operation(real: Client, form: str) -> None:
    table = form.replace(" ", "-")
    result = real.write("forms", table, FORMS[form]())
    assert (result.rows, result.batches) == (3, 1)
    found = real.query("forms", table)
    assert found.select(["host", "v"]).to_pydict() == COLUMNS
    assert sorted(found.column_names) == ["host", "v"]


@pytest.mark.parametrize("form", FORMS)
def test_a_writer_accepts_every_form_in_its_schema(
    daemon: SmallDaemon, client: Client, form: str
) -> None:
    schema = pa.schema([("v", pa.float64()), ("more", pa.int64()), ("host", pa.string())])
    if form in ("batch", "batches", "reader"):
        schema = pa.schema([("v", pa.float64()), ("host", pa.string())])
    with client.writer("ns", "t", schema) as writer:
        assert writer.write(FORMS[form]()).result(10).accepted
    found = daemon.table("ns", "t")
    assert found.schema == schema
    assert found.select(["host", "v"]).to_pydict() == COLUMNS
    assert daemon.seen == 1


def test_keys_to_delete_are_accepted_in_every_form(real: Client) -> None:
    schema = pa.schema([("id", pa.int32()), ("v", pa.int64())])
    real.create_table("forms", "keyed", schema, primary_key=["id"])
    real.write("forms", "keyed", {"id": [1, 2, 3, 4], "v": [1, 2, 3, 4]})
    real.delete("forms", "keyed", [{"id": 1}])
    real.delete("forms", "keyed", pl.DataFrame({"id": [2]}))
    assert real.query("forms", "keyed").column("id").to_pylist() == [3, 4]


def test_a_large_table_is_split_and_has_one_ack(daemon: SmallDaemon, client: Client) -> None:
    large = pa.table({"v": pa.array(range(5 * MIB), pa.int64())})  # 40 MiB
    assert client.write("ns", "t", large).batches == 3
    with client.writer("ns", "u", SCHEMA, origin="o") as writer:
        ack = writer.write(large, checkpoint=("p", b"s"))
        assert ack.result(30).memory_sequence == 3
        assert writer.acknowledged.batches == 3
        with pytest.raises(InvalidRequest, match="one batch of up to 16 MiB"):
            writer.try_write(large)
    assert daemon.table("ns", "u").num_rows == 5 * MIB
    assert [("checkpoint" in (each or {})) for each in daemon.metadata[3:]] == [False, False, True]


def test_a_batch_with_a_first_sequence_is_never_split(daemon: SmallDaemon, client: Client) -> None:
    large = pa.table({"v": pa.array(range(3 * MIB), pa.int64())})
    with pytest.raises(InvalidRequest, match="divided in the same way each time"):
        client.write("ns", "t", large, origin="o", first_sequence=1)
    with pytest.raises(InvalidRequest, match="divided in the same way each time"):
        client.writer("ns", "t", SCHEMA, origin="o", first_sequence=1).write(large)
    assert daemon.seen == 0
    small = pa.concat_tables([pa.table({"v": [n]}) for n in range(100)])
    assert client.write("ns", "t", small, origin="o", first_sequence=1).batches == 1
    assert client.write("ns", "t", small.combine_chunks(), origin="o", first_sequence=1).duplicates
    assert client.write("ns", "t", [batch(1), batch(2)], origin="o", first_sequence=2).batches == 2
    assert values(daemon) == [*range(100), 1, 2]


def test_an_ack_of_several_batches_has_the_first_error(daemon: SmallDaemon, client: Client) -> None:
    def refuse(n: int) -> None:
        if n == 2:
            raise pa.ArrowInvalid("column 'v': no")

    daemon.before = refuse
    writer = client.writer("ns", "t", SCHEMA)
    # The refusal may come before the last piece is sent.
    with pytest.raises(InvalidRequest, match="column 'v': no"):
        writer.write(pa.table({"v": pa.array(range(5 * MIB), pa.int64())})).result(30)


def test_every_key_of_a_list_of_dicts_is_a_column() -> None:
    table = table_of_rows([{"a": 1}, {"b": "x", "a": 2}, {}])
    assert table.to_pydict() == {"a": [1, 2, None], "b": [None, "x", None]}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (5, "write takes a pyarrow RecordBatch or Table, .*; not a int"),
        ("text", "not a str"),
        (pl.LazyFrame({"v": [1]}), r"collect\(\)|LazyFrame"),
        ({"v": 1}, "column 'v' is a int: a dict holds columns, each a list or an array; write a"),
        ({"v": [1], "w": [1, 2]}, r"the columns differ in length: \{'v': 1, 'w': 2\}"),
        ({"v": [1, "x"]}, "column 'v', row 1: 'x': .*write another value$"),
        ({"v": [1.5, None, 2**53 + 1, 7]}, "column 'v', row 2: 9007199254740993: "),
        (
            {"v": [decimal.Decimal(1), decimal.Decimal("NaN")]},
            r"column 'v', row 1: Decimal\('NaN'\): .*another",
        ),
        ({"v": ["a", "\ud800"]}, r"column 'v', row 1: '\\ud800': "),
        ([{"v": 1}, 5], "row 1 is a int, not a dict"),
        ([{}], "every dict is empty"),
        ([(1, 2)], "an iterable must have record batches or dicts, not a tuple: name the"),
        ([1, 2], r"not a int: name the columns, as in \[\{'id': 1\}"),
        ([pa.table({"v": [1]})], "not a Table: write each separately"),
        (pa.array([1]), "one column: name it"),
        (pl.Series([1]), "one column: name it"),
        (pa.chunked_array([[1]]), "one column: name it"),
        (pd.DataFrame({"v": [1]}, pd.DatetimeIndex(["2026-11-21"])), "no name: name it"),
        (pd.DataFrame({"v": [1, "x"]}), "the DataFrame cannot be converted: .*column v"),
        (
            [{"t": NOON}, {"t": NOON.replace(tzinfo=None)}],
            "'t' has times with a zone and times with",
        ),
        (pd.DataFrame({"t": [NOON.replace(tzinfo=None), NOON]}, dtype=object), "give each a zone"),
        (
            pd.DataFrame({"p": pd.period_range("2026", periods=2)}),
            r"'p': a pandas.period is not a type",
        ),
        (
            {"p": pd.Series(pd.interval_range(0, 2))},
            r"'p': a pandas.interval is not a type of a table",
        ),
        (
            pl.DataFrame({"o": pl.Series([object()], dtype=pl.Object)}),
            "'o' holds Python objects",
        ),
        (
            pl.DataFrame({"v": pl.Series([[2**100]], dtype=pl.List(pl.Int128))}),
            r"column 'v': Arrow has no Int128: cast it to Int64, Decimal\(38, 0\) or String",
        ),
        ([{"d": NOON.date()}, {"d": NOON}], "column 'd' has dates and times: make all of them"),
        (
            [{"s": [{"t": NOON}, {"t": NOON.replace(tzinfo=None)}]}],
            "column 's' has times with a zone",
        ),
        ({"t": [pd.Timestamp(1, unit="ns")]}, "column 't' has nanoseconds in a list of objects"),
        ([{"v": 2**63}], "column 'v', row 0: 9223372036854775808: .*pyarrow.uint64"),
    ],
)
def test_an_unsupported_input_is_refused_with_the_supported_ones(
    client: Client, data: Any, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        client.write("ns", "t", data)


@pytest.mark.parametrize(
    ("values", "advised"),
    [
        ([1, None, 2**64 - 1], "pyarrow.uint64()"),
        ([2**63, -1], "pyarrow.decimal128(38, 0)"),
        ([2**70], "pyarrow.decimal128(38, 0)"),
        ([10**38], None),
        ([1, "a"], None),
        (["a", "\ud800"], None),
        ([2**53 + 1, 0.5], None),
        ([True, 2], None),
    ],
)
def test_a_type_is_advised_only_if_it_holds_the_values(
    values: list[object], advised: str | None
) -> None:
    with pytest.raises(InvalidRequest, match="write another value") as caught:
        table_of_rows([{"v": value} for value in values])
    found = re.findall(r"pyarrow\.array\(values, (.+)\)$", str(caught.value))
    assert found == ([] if advised is None else [advised])
    if advised is not None:
        kind = {"pyarrow.uint64()": pa.uint64()}.get(advised, pa.decimal128(38, 0))
        assert table_of_columns({"v": pa.array(values, kind)})["v"].to_pylist() == values


def test_lossless_values_in_a_list_are_accepted() -> None:
    rows = [
        {"t": NOON, "d": NOON.date(), "s": {"t": [NOON]}, "p": pd.Timestamp(NOON)},
        {"t": NOON.astimezone(BERLIN), "d": None, "s": {"t": None}, "p": None},
    ]
    assert table_of_rows(rows).column("t").to_pylist() == [NOON, NOON]


def test_neither_pandas_nor_polars_is_needed() -> None:
    assert batches_of(pa.table(COLUMNS), MIB).schema is not None
    source = Path(__file__).resolve().parents[2] / "ingester" / "client"
    for file in source.glob("*.py"):
        for line in file.read_text().splitlines():
            assert not line.strip().startswith(("import pandas", "import polars", "import duckdb"))


# ------------------------------------------------------------------------------- a table's types


TYPED = pa.schema(
    [
        ("time", pa.timestamp("us", "UTC")),
        ("small", pa.int8()),
        ("count", pa.int64()),
        ("wide", pa.float64()),
        ("money", pa.decimal128(10, 2)),
        ("deep", pa.list_(pa.struct([("n", pa.int16())]))),
        ("tiny", pa.decimal128(38, 18)),
        ("parts", pa.list_(pa.decimal128(38, 37))),
    ]
)


def test_equal_values_are_converted_to_the_tables_types(real: Client) -> None:
    real.create_table("forms", "typed", TYPED)
    row = {"time": NOON.astimezone(BERLIN), "small": 7, "wide": 3, "money": 5, "deep": [{"n": 1}]}
    real.write("forms", "typed", [row])
    real.write("forms", "typed", pd.DataFrame({"time": [NOON], "count": [2.0]}))
    more = pl.DataFrame({"time": [NOON], "small": [8], "money": [decimal.Decimal("1.5")]})
    real.write("forms", "typed", more)
    assert real.schema("forms", "typed").remove_metadata() == TYPED
    found = real.query("forms", "typed")
    assert set(found.column("time").to_pylist()) == {NOON}
    assert found.column("small").to_pylist() == [7, None, 8]
    assert found.column("count").to_pylist() == [None, 2, None]
    assert found.column("wide").to_pylist() == [3.0, None, None]
    assert found.column("money").to_pylist() == [decimal.Decimal(5), None, decimal.Decimal("1.5")]
    assert found.column("deep").to_pylist() == [[{"n": 1}], None, None]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("small", 300, "table has int8, batch has int64, and not every value.*300.*round or cast"),
        ("count", 1.5, "table has int64, batch has double, and not every value.*1.5"),
        ("count", float("nan"), "not every value"),
        ("wide", 2**53 + 1, "table has double, batch has int64, and not every value"),
        ("money", decimal.Decimal("1.555"), "not every value.*1.555 is not"),
        ("tiny", decimal.Decimal(341 * 10**18), "row 0 of the batch: 341000000000000000000 is not"),
        ("parts", [1, 35], r"row 0 of the batch: \[1, 35\] is not a value of list"),
        ("time", NOON.replace(tzinfo=None), "say in which zone its times are"),
        ("small", "7", "table has int8, batch has string; cast it to int8 before sending, or"),
        ("new", datetime.time(1), r"type time64\[us\] is not supported; cast it to int64, or"),
    ],
)
def test_lossy_conversions_are_refused_with_a_hint(
    real: Client, name: str, value: Any, said: str
) -> None:
    real.create_table("forms", "refusing", TYPED)
    with pytest.raises(InvalidRequest, match=f"column '{name}': .*{said}"):
        real.write("forms", "refusing", [{name: value}])
    assert real.query("forms", "refusing").num_rows == 0


def test_a_writers_schema_sets_its_types(daemon: SmallDaemon, client: Client) -> None:
    schema = pa.schema([("time", pa.timestamp("us", "UTC")), ("v", pa.int8())])
    with client.writer("ns", "t", schema) as writer:
        writer.write({"v": [1], "time": [NOON.astimezone(BERLIN)]})
        writer.write(pl.DataFrame({"time": [NOON], "v": [2]}))
        writer.write(pa.record_batch({"time": [NOON], "v": [3]}))
        with pytest.raises(InvalidRequest, match=r"\['w'\] are not in"):
            writer.write({"w": [1]})
        with pytest.raises(InvalidRequest, match="column 'v' is string, not int8; cast it"):
            writer.write({"v": ["x"]})
        with pytest.raises(InvalidRequest, match="not every value"):
            writer.write({"v": [300]})
    assert daemon.table("ns", "t").column("v").to_pylist() == [1, 2, 3]


# ---------------------------------------------------------------------------------- reading answers


def read_by_duckdb(stream: Any) -> Any:
    relation: Any = duckdb.sql("from stream")
    return relation.to_arrow_table()


def test_an_answer_is_an_arrow_stream_for_other_libraries(real: Client) -> None:
    real.write("forms", "out", COLUMNS)
    real.persist("forms", "out")
    real.write("forms", "out", COLUMNS)
    readers: list[Callable[[Any], Any]] = [
        lambda stream: pl.DataFrame(stream).to_dict(as_series=False),
        lambda stream: pa.table(stream).to_pydict(),
        lambda stream: read_by_duckdb(stream).to_pydict(),
        lambda stream: pa.RecordBatchReader.from_stream(stream).read_all().to_pydict(),
        lambda stream: pl.DataFrame(pl.from_arrow(stream.reader())).to_dict(as_series=False),
    ]
    for read in readers:
        with real.query_stream("forms", "out") as stream:
            found = read(stream)
        assert {name: found[name] for name in COLUMNS} == {n: v * 2 for n, v in COLUMNS.items()}
    with real.query_stream("forms", "out") as stream:
        assert real.write("forms", "copied", stream).rows == 6


def test_an_answer_is_read_once_batch_by_batch(daemon: SmallDaemon, client: Client) -> None:
    client.write("ns", "t", (batch(n) for n in range(100)))
    with client.query_stream("ns", "t") as stream:
        reader = pa.RecordBatchReader.from_stream(stream)
        assert reader.read_next_batch() == batch(0)
        with pytest.raises(InvalidRequest, match="can be read once"):
            pa.table(stream)
    # Closing the stream early must not look like its end.
    with pytest.raises(pa.ArrowException, match="closed before its end"):
        reader.read_all()
    with pytest.raises(InvalidRequest, match="closed before its end"):
        stream.read()


def test_invalid_rows_are_found_before_anything_is_sent(
    daemon: SmallDaemon, client: Client
) -> None:
    """Pieces before the invalid one were once sent, and a corrected retry then duplicated them."""
    client.write("ns", "t", pa.record_batch({"v": pa.array([1], pa.int32())}))
    sent = len(daemon.commands)
    numbers = np.zeros(6 * MIB, np.int64)
    numbers[-1] = 1 << 40
    for data in (pa.table({"v": numbers}), pl.DataFrame({"v": numbers})):
        with pytest.raises(InvalidRequest, match="not every value can be converted exactly"):
            client.write("ns", "t", data)
    assert len(daemon.commands) == sent


def test_rows_written_before_an_invalid_one_are_reported(
    daemon: SmallDaemon, client: Client
) -> None:
    client.write("ns", "t", pa.record_batch({"v": pa.array([1], pa.int32())}))
    batches = [pa.record_batch({"v": pa.array([n], pa.int64())}) for n in (2, 3, 1 << 40, 4)]
    with pytest.raises(InvalidRequest, match="the 2 rows before, in 2 operations, were") as caught:
        client.write("ns", "t", iter(batches))
    assert (caught.value.details["rows"], caught.value.details["batches"]) == (2, 2)
    assert values(daemon) == [1, 2, 3]


@pytest.mark.parametrize("module", ["pandas", "polars"])
def test_a_module_being_imported_by_another_thread_is_no_error(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    schema = batches_of({"v": [1]}, MIB).schema
    assert schema is not None
    assert schema.names == ["v"]
