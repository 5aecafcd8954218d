"""DoGet over one table whose rows lie half in files and half in buffers: what is in an answer."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.daemon import Daemon
from tests.integration.wire import (
    Table,
    chunks,
    create,
    describe,
    events,
    numbers,
    persist,
    put,
    query,
    rows,
)

PART_BYTES = 256 * 1024
DAY = dt.date(2026, 11, 21)
WHEN = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)

SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "small": pa.int8(),
        "u": pa.uint64(),
        "f": pa.float64(),
        "f32": pa.float32(),
        "b": pa.bool_(),
        "s": pa.string(),
        "y": pa.binary(),
        "d": pa.date32(),
        "dec": pa.decimal128(10, 2),
        "t": pa.timestamp("us", "UTC"),
        "naive": pa.timestamp("us"),
        "l": pa.list_(pa.int32()),
    }
)
NULLABLE = [name for name in SCHEMA.names if name != "i"]


def _row(i: int) -> dict[str, Any]:
    """Row ``i``; every fourth has nothing but its number."""
    if i % 4 == 3:
        return {"i": i}
    return {
        "i": i,
        "small": i % 10 - 5,
        "u": 2**63 + i,
        "f": i / 4,
        "f32": i / 4,
        "b": i % 2 == 0,
        "s": f"s{i % 5}",
        "y": bytes([i]),
        "d": DAY + dt.timedelta(days=i),
        "dec": Decimal(i) / 4,
        "t": WHEN + dt.timedelta(hours=i),
        "naive": (WHEN + dt.timedelta(hours=i)).replace(tzinfo=None),
        "l": [i, None],
    }


ROWS = [_row(i) for i in range(40)]


@pytest.fixture(scope="module")
def mixed(shared: Daemon) -> Table:
    """40 rows: 20 in a file, 20 in the buffer, in several batches each."""
    table = ("queries", "mixed")
    with fl.connect(shared.flight) as client:
        for start in range(0, 40, 5):
            put(client, table, pa.RecordBatch.from_pylist(ROWS[start : start + 5], SCHEMA))
            if start == 15:
                persist(client, table)
        sizes = describe(client, table)
        assert sizes["persisted"]["rows"] == sizes["buffered"]["rows"] == 20
    return table


def _where(matches: Any) -> list[int]:
    return [row["i"] for row in ROWS if matches(row)]


def _some(column: str, test: Any) -> list[int]:
    return _where(lambda row: row.get(column) is not None and test(row[column]))


ISO = (WHEN + dt.timedelta(hours=8)).isoformat()
FILTERS: list[tuple[str, Any, list[int]]] = [
    ("=", [["i", "=", 7]], [7]),
    ("= without a match", [["i", "=", 400]], []),
    ("!=", [["i", "!=", 7]], _where(lambda row: row["i"] != 7)),
    ("<", [["i", "<", 3]], [0, 1, 2]),
    ("<=", [["i", "<=", 3]], [0, 1, 2, 3]),
    (">", [["i", ">", 37]], [38, 39]),
    (">=", [["i", ">=", 37]], [37, 38, 39]),
    ("in", [["i", "in", [1, 25, 99]]], [1, 25]),
    ("in nothing", [["i", "in", []]], []),
    ("not in", [["i", "not in", [1, 25]]], _where(lambda row: row["i"] not in (1, 25))),
    ("not in nothing", [["s", "not in", []]], _some("s", lambda value: True)),
    ("!= and nulls", [["s", "!=", "s1"]], _some("s", lambda value: value != "s1")),
    ("not in and nulls", [["s", "not in", ["s1"]]], _some("s", lambda value: value != "s1")),
    ("= null", [["s", "=", None]], []),
    ("!= null", [["s", "!=", None]], []),
    ("< null", [["i", "<", None]], []),
    ("in with a null", [["s", "in", ["s1", None]]], _some("s", lambda value: value == "s1")),
    ("not in with a null", [["s", "not in", ["s1", None]]], []),
    ("is null", [["s", "is null"]], _where(lambda row: row.get("s") is None)),
    ("is not null", [["s", "is not null"]], _some("s", lambda value: True)),
    ("is null of a list", [["l", "is null"]], _where(lambda row: row.get("l") is None)),
    ("string order", [["s", ">", "s2"]], _some("s", lambda value: value > "s2")),
    ("float", [["f", ">=", 9.5]], _some("f", lambda value: value >= 9.5)),
    ("float by an integer", [["f", "=", 2]], [8]),
    ("float32", [["f32", "=", 0.25]], [1]),
    ("integer by a float", [["i", ">", 37.5]], [38, 39]),
    ("integer out of the type's range", [["small", "<", 1000]], _some("small", lambda v: True)),
    ("integer never in the type's range", [["small", "=", 1000]], []),
    ("integer list out of range", [["small", "in", [1000, -5]]], _some("small", lambda v: v == -5)),
    ("large unsigned", [["u", ">", 2**63 + 37]], [38]),
    ("bool", [["b", "=", True]], _some("b", lambda value: value)),
    ("binary", [["y", "=", base64.b64encode(b"\x05").decode()]], [5]),
    ("date", [["d", "<", "2026-11-23"]], [0, 1]),
    ("decimal", [["dec", ">=", "9.50"]], _some("dec", lambda value: value >= Decimal("9.5"))),
    ("timestamp", [["t", "=", ISO]], [8]),
    ("timestamp with Z", [["t", "=", "2026-11-21T20:00:00Z"]], [8]),
    ("timestamp with a zone", [["t", "=", "2026-11-21T21:00:00+01:00"]], [8]),
    ("timestamp without one", [["t", "=", "2026-11-21T20:00:00"]], [8]),
    ("timestamp by a day", [["t", "<", "2026-11-22"]], _some("t", lambda v: v.day == 21)),
    ("timestamp without a zone", [["naive", "=", "2026-11-21T20:00:00"]], [8]),
    ("and", [["i", ">", 3], ["s", "=", "s1"]], _some("s", lambda v: v == "s1")[1:]),
]


@pytest.mark.parametrize(
    ("terms", "expected"), [f[1:] for f in FILTERS], ids=[f[0] for f in FILTERS]
)
def test_a_filter_finds_exactly_its_rows(
    client: fl.FlightClient, mixed: Table, terms: Any, expected: list[int]
) -> None:
    assert rows(client, mixed, filter=[terms]) == expected


def test_a_filter_is_a_disjunction_of_conjunctions(client: fl.FlightClient, mixed: Table) -> None:
    either = [[["i", "<", 2]], [["i", ">", 30], ["s", "is null"]], [["i", "=", 1]]]
    assert rows(client, mixed, filter=either) == [0, 1, 31, 35, 39]


@pytest.mark.parametrize("nothing", [[], None, [[]], [[], [["i", "=", 1]]]])
def test_an_empty_filter_is_none(client: fl.FlightClient, mixed: Table, nothing: Any) -> None:
    assert len(rows(client, mixed, filter=nothing)) == 40


WRONG: list[tuple[str, Any, str]] = [
    ("unknown column", [["nope", "=", 1]], "nope"),
    ("unknown operator", [["i", "like", 1]], "like"),
    ("no value", [["i", "="]], "="),
    ("a value too many", [["i", "is null", 1]], "is null"),
    ("text for a number", [["i", "=", "1"]], "'1'"),
    ("number for a text", [["s", "=", 1]], "1"),
    ("number for a bool", [["b", "=", 1]], "1"),
    ("bool for a number", [["i", "=", True]], "True"),
    ("no date", [["d", "=", "yesterday"]], "yesterday"),
    ("no day of the calendar", [["d", "=", "2026-02-30"]], "2026-02-30"),
    ("no time", [["t", ">", "25 o'clock"]], "25 o'clock"),
    ("number for a time", [["t", ">", 17]], "17"),
    ("no base64", [["y", "=", "*"]], r"\*"),
    ("no decimal", [["dec", "=", "1,5"]], "1,5"),
    ("more digits than the decimal has", [["dec", ">", "9.4999"]], "9.4999"),
    ("number for a decimal", [["dec", "=", 1.5]], "1.5"),
    ("one value for a list", [["i", "in", 3]], "in"),
    ("a list for one value", [["i", "=", [3]]], "3"),
    ("an object", [["i", "=", {"a": 1}]], "a"),
    ("comparison of a list", [["l", "=", [1]]], "'l'"),
    ("not a term", ["i"], "filter"),
    ("not a conjunction", "i", "filter"),
    ("an empty term", [[]], "filter"),
]


@pytest.mark.parametrize(("terms", "named"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_wrong_filter_is_refused_with_what_is_wrong(
    client: fl.FlightClient, mixed: Table, terms: Any, named: str
) -> None:
    with pytest.raises(pa.ArrowInvalid, match=named):
        query(client, mixed, filter=[terms])


BAD_TICKETS = [
    (b"", "JSON"),
    (b"{", "JSON"),
    (b"[]", "object"),
    (b"\xff\xfe", "JSON|utf"),
    (b'{"namespace": "queries"}', "table"),
    (b'{"table": "mixed"}', "namespace"),
    (b'{"namespace": "queries", "table": 3}', "table"),
    (b'{"namespace": "queries", "table": "mixed", "colums": []}', "colums"),
    (b'{"namespace": "queries", "table": "mixed", "columns": "i"}', "columns"),
    (b'{"namespace": "queries", "table": "mixed", "columns": ["i", "i"]}', "columns"),
    (b'{"namespace": "queries", "table": "mixed", "columns": ["zz"]}', "zz"),
    (b'{"namespace": "queries", "table": "mixed", "columns": ["I"]}', "'I'"),
    (b'{"namespace": "queries", "table": "mixed", "limit": -1}', "limit"),
    (b'{"namespace": "queries", "table": "mixed", "limit": 1.5}', "limit"),
    (b'{"namespace": "queries", "table": "mixed", "scope": "some"}', "scope"),
    (b'{"namespace": "queries", "table": "mixed", "version": 1}', "version"),
    (b'{"namespace": "queries", "table": "mixed", "scope": "version"}', "version"),
    (b'{"namespace": "queries", "table": "mixed", "scope": "version", "version": 0}', "version"),
    (b"[" * 100_000, "JSON|object"),
]


@pytest.mark.parametrize(("body", "named"), BAD_TICKETS, ids=[str(b[0][:70]) for b in BAD_TICKETS])
def test_a_malformed_ticket_is_refused_by_name(
    client: fl.FlightClient, mixed: Table, body: bytes, named: str
) -> None:
    with pytest.raises(pa.ArrowInvalid, match=named):
        client.do_get(fl.Ticket(body)).read_all()


@pytest.mark.parametrize("unknown", [("queries", "nope"), ("nope", "mixed")])
def test_an_unknown_table_or_namespace_is_not_found(
    client: fl.FlightClient, mixed: Table, unknown: Table
) -> None:
    with pytest.raises(pa.ArrowKeyError, match="/".join(unknown)):
        query(client, unknown)


def test_columns_come_in_the_order_asked_for(client: fl.FlightClient, mixed: Table) -> None:
    assert query(client, mixed, columns=["s", "i"]).column_names == ["s", "i"]
    assert query(client, mixed).column_names == SCHEMA.names


def test_a_filter_may_use_columns_that_are_not_asked_for(
    client: fl.FlightClient, mixed: Table
) -> None:
    assert query(client, mixed, columns=["s"], filter=[[["i", "=", 6]]]).to_pydict() == {
        "s": ["s1"]
    }


def test_no_columns_still_count_rows(client: fl.FlightClient, mixed: Table) -> None:
    assert query(client, mixed, columns=[]).num_rows == 40
    assert query(client, mixed, columns=[], filter=[[["i", "<", 30]]]).num_rows == 30


@pytest.mark.parametrize("limit", [0, 1, 19, 20, 21, 40, 1000])
def test_a_limit_is_kept_and_reached(client: fl.FlightClient, mixed: Table, limit: int) -> None:
    assert query(client, mixed, limit=limit).num_rows == min(limit, 40)
    assert query(client, mixed, limit=limit, filter=[[["i", ">=", 10]]]).num_rows == min(limit, 30)


def test_values_are_those_that_were_sent(client: fl.FlightClient, mixed: Table) -> None:
    found = sorted(query(client, mixed).to_pylist(), key=lambda row: row["i"])
    assert found == [{**dict.fromkeys(SCHEMA.names), **row} for row in ROWS]


def test_the_schema_says_who_answered_and_for_when(
    client: fl.FlightClient, shared: Daemon, table: Table
) -> None:
    (answer,) = put(client, table, numbers(0, 1))
    metadata = {k.decode(): v.decode() for k, v in query(client, table).schema.metadata.items()}
    assert set(metadata) == {
        "ingester_id",
        "incarnation",
        "epoch",
        "snapshot_sequence",
        "manifest_version",
    }
    for name in ("ingester_id", "incarnation"):
        assert metadata[name] == shared.ready[name]
    assert int(metadata["epoch"]) == shared.ready["epoch"] == answer["epoch"]
    assert int(metadata["snapshot_sequence"]) >= answer["sequence"]
    version = persist(client, table)
    after = query(client, table).schema.metadata
    assert int(after[b"manifest_version"]) == version > int(metadata["manifest_version"])


def test_each_part_says_its_partition_and_its_source(client: fl.FlightClient, table: Table) -> None:
    put(client, table, events(0, 20, days=2))
    persist(client, table)
    put(client, table, events(20, 20, days=2))
    seen = {
        (metadata["partition"], metadata["source"]): sorted(batch["i"].to_pylist())
        for batch, metadata in chunks(client, table)
        if set(metadata) == {"partition", "source"}
    }
    assert seen == {
        (f"time_day=2026-11-{21 + day}", source): list(range(start + day, start + 20, 2))
        for source, start in (("file", 0), ("buffer", 20))
        for day in (0, 1)
    }


def test_an_unpartitioned_table_has_an_empty_partition_name(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    assert [metadata["partition"] for _, metadata in chunks(client, table)] == [""]


def test_no_part_is_larger_than_256_kib_unless_it_is_one_row(
    client: fl.FlightClient, table: Table
) -> None:
    texts = pa.array(["x" * (1 + i * 37 % 4000) for i in range(3000)])
    put(client, table, numbers(0, 3000, s=texts))
    put(client, table, numbers(3000, 1, s=pa.array(["y" * 1_000_000])))
    put(client, table, numbers(3001, 200_000, s=pa.array([""] * 200_000)))
    for _ in range(2):
        sizes = [(batch.nbytes, batch.num_rows) for batch, _ in chunks(client, table)]
        assert [size for size in sizes if size[0] > PART_BYTES and size[1] > 1] == []
        assert sum(count for _, count in sizes) == 203_001
        assert len(sizes) < 100  # nor are they needlessly small
        persist(client, table)


def test_partitions_are_pruned_by_a_filter_on_their_column(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 100, days=10))
    persist(client, table)
    day = [[["time", ">=", "2026-11-24"], ["time", "<", "2026-11-25"]]]
    found = list(chunks(client, table, filter=day))
    assert [metadata["partition"] for _, metadata in found] == ["time_day=2026-11-24"]
    assert sorted(found[0][0]["i"].to_pylist()) == list(range(3, 100, 10))


@pytest.mark.parametrize(
    ("spec", "folders"),
    [
        (["identity(s)"], {"s_key=a%2Fb", "s_key=007", "s_key=__HIVE_DEFAULT_PARTITION__"}),
        (
            ["month(t)"],
            {"t_month=2026-11", "t_month=1969-12", "t_month=__HIVE_DEFAULT_PARTITION__"},
        ),
        (["year(t)"], {"t_year=2026", "t_year=1969", "t_year=__HIVE_DEFAULT_PARTITION__"}),
        (
            ["hour(t)"],
            {"t_hour=2026-11-21-12", "t_hour=1969-12-31-23", "t_hour=__HIVE_DEFAULT_PARTITION__"},
        ),
        (["day(t)"], {"t_day=2026-11-21", "t_day=1969-12-31", "t_day=__HIVE_DEFAULT_PARTITION__"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_every_transform_names_its_folders_and_loses_no_row(
    client: fl.FlightClient, table: Table, spec: list[str], folders: set[str]
) -> None:
    kind = pa.timestamp("us", "UTC")
    create(
        client, table, pa.schema({"i": pa.int64(), "s": pa.string(), "t": kind}), partition_by=spec
    )
    times = pa.array([WHEN, dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC), None], kind)
    put(client, table, numbers(0, 3, s=pa.array(["a/b", "007", None]), t=times))
    for _ in range(2):
        assert {metadata["partition"] for _, metadata in chunks(client, table)} == folders
        assert rows(client, table) == [0, 1, 2]
        assert rows(client, table, filter=[[["s", "=", "007"]]]) == [1]
        assert rows(client, table, filter=[[["t", "<", "2000-01-01"]]]) == [1]
        assert rows(client, table, filter=[[["t", "is null"]]]) == [2]
        assert rows(client, table, filter=[[["s", "!=", "007"]]]) == [0]
        persist(client, table)


def test_buckets_lose_no_row(client: fl.FlightClient, table: Table) -> None:
    create(client, table, numbers(0, 1).schema, partition_by=["bucket(4, i)"])
    put(client, table, numbers(0, 1000))
    for _ in range(2):
        names = {metadata["partition"] for _, metadata in chunks(client, table)}
        assert names == {f"i_bucket={n}" for n in range(4)}
        assert rows(client, table) == list(range(1000))
        assert rows(client, table, filter=[[["i", "=", 77]]]) == [77]
        persist(client, table)


def test_an_answer_may_be_empty_and_still_has_its_schema(
    client: fl.FlightClient, table: Table
) -> None:
    create(client, table, SCHEMA)
    assert query(client, table).schema.remove_metadata() == SCHEMA
    assert query(client, table).num_rows == 0


def test_the_worked_example_of_the_contract(client: fl.FlightClient, table: Table) -> None:
    hosts, values = pa.array(["h1", "h1", "h2"]), pa.array([3.0, 4.0, 5.0])
    put(client, table, pa.record_batch({"host": hosts, "v": values, "a": pa.array([1, 2, 3])}))
    body = {
        "namespace": table[0],
        "table": table[1],
        "columns": ["a"],
        "filter": [[["host", "=", "h1"], ["v", ">", 3]]],
        "limit": 10,
        "scope": "all",
    }
    answer = client.do_get(fl.Ticket(json.dumps(body).encode())).read_all()
    assert answer.to_pydict() == {"a": [2]}
