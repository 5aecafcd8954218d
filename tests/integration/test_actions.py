"""DoAction, GetFlightInfo, GetSchema, ListFlights."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.daemon import Daemon
from tests.integration.wire import (
    Table,
    act,
    create,
    describe,
    events,
    http,
    numbers,
    path,
    persist,
    put,
    query,
    rows,
)

ACTIONS = {
    "create_table",
    "describe_table",
    "persist",
    "origins",
    "checkpoint_get",
    "checkpoint_put",
    "checkpoint_delete",
    "status",
}
SCHEMA = pa.schema(
    {"time": pa.timestamp("us", "UTC"), "host": pa.string(), "v": pa.float64(), "n": pa.int32()}
)


def test_list_actions_names_them_all(client: fl.FlightClient) -> None:
    listed = client.list_actions()
    assert {action.type for action in listed} == ACTIONS
    assert all(action.description for action in listed)


def test_an_unknown_action_is_unimplemented(client: fl.FlightClient) -> None:
    with pytest.raises(pa.ArrowNotImplementedError, match="'nope'"):
        act(client, "nope")


@pytest.mark.parametrize("name", ["checkpoint_get", "checkpoint_put", "checkpoint_delete"])
def test_checkpoints_come_later(client: fl.FlightClient, table: Table, name: str) -> None:
    with pytest.raises(pa.ArrowNotImplementedError, match="checkpoint"):
        act(client, name, namespace=table[0], table=table[1], partition="p")


BAD_BODIES: list[tuple[str, Any, str]] = [
    ("create_table", {}, "namespace"),
    ("create_table", {"namespace": "it"}, "table"),
    ("create_table", {"namespace": "it", "table": "x"}, "schema"),
    ("create_table", {"namespace": "it", "table": "x", "schema": "*"}, "schema"),
    ("create_table", {"namespace": "it", "table": "x", "schema": "AAAA"}, "schema"),
    ("create_table", {"namespace": "it", "table": "x", "schema": "", "key": ["a"]}, "key"),
    ("describe_table", {"namespace": "it"}, "table"),
    ("describe_table", {"namespace": "it", "table": "x", "y": 1}, "y"),
    ("persist", {"table": "x"}, "namespace"),
    ("persist", {"timeout": 3}, "timeout"),
    ("persist", {"timeout_s": "3"}, "timeout_s"),
    ("persist", {"timeout_s": -1}, "timeout_s"),
    ("origins", {"name": "x"}, "name"),
    ("origins", {"origin": 3}, "origin"),
    ("status", {"x": 1}, "x"),
    ("status", [], "object"),
]


@pytest.mark.parametrize(("action", "body", "named"), BAD_BODIES, ids=lambda v: str(v)[:50])
def test_a_malformed_body_is_refused_by_name(
    client: fl.FlightClient, action: str, body: Any, named: str
) -> None:
    with pytest.raises(pa.ArrowInvalid, match=named):
        list(client.do_action(fl.Action(action, json.dumps(body).encode())))


def test_a_body_that_is_no_json_is_refused(client: fl.FlightClient) -> None:
    for body in (b"{", b"\xff\xfe", b"[" * 100_000):
        with pytest.raises(pa.ArrowInvalid, match="status"):
            list(client.do_action(fl.Action("status", body)))


def test_a_created_table_is_described_as_asked_for(client: fl.FlightClient, table: Table) -> None:
    asked = {
        "primary_key": ["host", "time"],
        "partition_by": ["day(time)", "bucket(16, host)"],
        "sort_by": ["time"],
        "timestamp_unit": "ns",
    }
    answer = create(client, table, SCHEMA, **asked)
    assert answer == {
        "namespace": table[0],
        "table": table[1],
        "schema": [
            {"name": "time", "type": "timestamp[ns, tz=UTC]", "nullable": False},
            {"name": "host", "type": "string", "nullable": False},
            {"name": "v", "type": "double", "nullable": True},
            {"name": "n", "type": "int32", "nullable": True},
        ],
        **asked,
        "manifest_version": 1,
        "buffered": {"rows": 0, "bytes": 0, "partitions": 0},
        "persisted": {"rows": 0, "bytes": 0, "files": 0},
    }
    assert describe(client, table) == answer


def test_the_same_definition_again_is_fine_and_another_is_not(
    client: fl.FlightClient, table: Table
) -> None:
    first = create(client, table, SCHEMA, sort_by=["host"])
    assert create(client, table, SCHEMA, sort_by=["host"]) == first
    others: list[tuple[pa.Schema, dict[str, Any], str]] = [
        (SCHEMA, {}, "sort_by"),
        (SCHEMA, {"sort_by": ["host"], "primary_key": ["n"]}, "primary_key"),
        (SCHEMA, {"sort_by": ["host"], "partition_by": []}, "partition_by"),
        (SCHEMA, {"sort_by": ["host"], "timestamp_unit": "ns"}, "timestamp_unit"),
        (pa.schema(list(SCHEMA)[:3]), {"sort_by": ["host"]}, "columns"),
        (SCHEMA.set(3, pa.field("n", pa.int64())), {"sort_by": ["host"]}, "columns"),
    ]
    for schema, fields, named in others:
        with pytest.raises(pa.ArrowInvalid, match=named):
            create(client, table, schema, **fields)
    put(client, table, events(0, 1))  # adds a column
    assert create(client, table, SCHEMA, sort_by=["host"])["buffered"]["rows"] == 1


BAD_DEFINITIONS: list[tuple[str, pa.Schema, dict[str, Any], str]] = [
    ("key unknown", SCHEMA, {"primary_key": ["nope"]}, "nope"),
    ("key twice", SCHEMA, {"primary_key": ["n", "n"]}, "twice"),
    ("key without order", pa.schema({"l": pa.list_(pa.int8())}), {"primary_key": ["l"]}, "'l'"),
    ("key a float", SCHEMA, {"primary_key": ["v"]}, "'v'"),
    ("sort unknown", SCHEMA, {"sort_by": ["nope"]}, "nope"),
    ("spec no transform", SCHEMA, {"partition_by": ["week(time)"]}, "week"),
    ("spec no call", SCHEMA, {"partition_by": ["host"]}, "host"),
    ("spec unknown column", SCHEMA, {"partition_by": ["identity(nope)"]}, "nope"),
    ("spec type", SCHEMA, {"partition_by": ["day(host)"]}, "string"),
    ("spec float", SCHEMA, {"partition_by": ["identity(v)"]}, "double"),
    ("spec no buckets", SCHEMA, {"partition_by": ["bucket(0, host)"]}, "bucket"),
    ("spec twice", SCHEMA, {"partition_by": ["day(time)", "day(time)"]}, "repeat"),
    (
        "spec outside the key",
        SCHEMA,
        {"primary_key": ["n"], "partition_by": ["day(time)"]},
        "'time'",
    ),
    ("unit", SCHEMA, {"timestamp_unit": "ms"}, "'ms'"),
    ("no columns", pa.schema([]), {}, "columns"),
    ("null column", pa.schema({"a": pa.null()}), {}, "'a'"),
    ("type", pa.schema({"a": pa.float16()}), {}, "'a'"),
    ("name", pa.schema({"_a": pa.int8()}), {}, "'_a'"),
    ("partition name", SCHEMA.append(pa.field("time_day", pa.int8())), {}, "time_day"),
    ("case", pa.schema({"a": pa.int8(), "A": pa.int8()}), {}, "'A'"),
]


@pytest.mark.parametrize(
    ("schema", "fields", "named"),
    [case[1:] for case in BAD_DEFINITIONS],
    ids=[case[0] for case in BAD_DEFINITIONS],
)
def test_a_definition_that_cannot_be_is_refused_with_its_culprit(
    client: fl.FlightClient, table: Table, schema: pa.Schema, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(pa.ArrowInvalid, match=named):
        create(client, table, schema, **fields)
    with pytest.raises(pa.ArrowKeyError):
        describe(client, table)


def test_a_table_made_by_its_first_write_has_day_partitions_where_there_is_a_time(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 10, days=2))
    found = describe(client, table)
    assert found["partition_by"] == ["day(time)"]
    assert (found["primary_key"], found["sort_by"], found["timestamp_unit"]) == ([], [], "us")
    assert all(column["nullable"] for column in found["schema"])
    assert found["buffered"]["rows"] == 10
    assert found["buffered"]["partitions"] == 2
    assert found["buffered"]["bytes"] > 0
    other = (table[0], table[1] + "-plain")
    put(client, other, numbers(0, 1))
    assert describe(client, other)["partition_by"] == []


def test_describe_counts_buffers_and_files(client: fl.FlightClient, table: Table) -> None:
    put(client, table, events(0, 10, days=2))
    version = persist(client, table)
    put(client, table, events(10, 3))
    found = describe(client, table)
    assert found["manifest_version"] == version
    assert found["persisted"]["rows"] == 10
    assert found["persisted"]["files"] == 2
    assert found["persisted"]["bytes"] > 0
    assert (found["buffered"]["rows"], found["buffered"]["partitions"]) == (3, 1)


@pytest.mark.parametrize("action", ["describe_table", "persist"])
def test_an_unknown_table_is_not_found(client: fl.FlightClient, table: Table, action: str) -> None:
    with pytest.raises(pa.ArrowKeyError, match=table[1]):
        act(client, action, namespace=table[0], table=table[1])


def test_persist_of_a_namespace_or_of_everything(client: fl.FlightClient, table: Table) -> None:
    namespace = f"ns-{table[1]}"
    tables = [(namespace, name) for name in ("a", "b")]
    for each in tables:
        put(client, each, numbers(0, 5))
    answers = act(client, "persist", namespace=namespace)
    assert [(answer["namespace"], answer["table"]) for answer in answers] == tables
    for answer, each in zip(answers, tables, strict=True):
        version = answer["manifest_version"]
        assert rows(client, each, scope="version", version=version) == list(range(5))
    put(client, tables[0], numbers(5, 1))
    everything = {
        (a["namespace"], a["table"]): a["manifest_version"] for a in act(client, "persist")
    }
    assert rows(client, tables[0], scope="version", version=everything[tables[0]]) == list(range(6))
    with pytest.raises(pa.ArrowKeyError, match="nothing-here"):
        act(client, "persist", namespace="nothing-here")


def test_persist_holds_everything_acknowledged_before_and_jobs_under_way(
    client: fl.FlightClient, table: Table
) -> None:
    count = 0
    for _ in range(10):
        for _ in range(3):
            put(client, table, events(count, 100, days=4))
            count += 100
        version = persist(client, table)
        assert len(rows(client, table, scope="version", version=version)) == count
        assert describe(client, table)["buffered"]["rows"] == 0


def test_persist_of_nothing_answers_with_the_version_that_is(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, numbers(0, 1))
    version = persist(client, table)
    assert persist(client, table) == version


def test_persist_past_its_timeout_says_so_and_the_work_goes_on(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 50_000, days=5))
    with pytest.raises(fl.FlightTimedOutError) as error:
        persist(client, table, timeout_s=0)
    assert json.loads(error.value.extra_info)["code"] == "timeout"
    version = persist(client, table)
    assert len(rows(client, table, scope="version", version=version)) == 50_000


def test_the_action_status_has_what_http_has(shared: Daemon, client: fl.FlightClient) -> None:
    (by_flight,) = act(client, "status")
    by_http = json.loads(http(f"{shared.http}/api/status")[2])
    assert set(by_flight) == set(by_http)
    for name in ("ingester_id", "incarnation", "epoch", "pid", "flight", "http"):
        assert by_flight["identity"][name] == by_http["identity"][name] == shared.ready[name]


def test_flight_info_of_a_path_has_schema_counts_and_a_ticket(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 10))
    persist(client, table)
    put(client, table, events(10, 5))
    info = client.get_flight_info(path(table))
    assert info.schema.names == ["time", "host", "v", "i"]
    assert info.total_records == 15
    assert info.total_bytes > 0
    (endpoint,) = info.endpoints
    assert client.do_get(endpoint.ticket).read_all().num_rows == 15


def test_flight_info_of_a_command_bounds_what_the_query_gives(
    client: fl.FlightClient, table: Table
) -> None:
    put(client, table, events(0, 10))
    version = persist(client, table)
    put(client, table, events(10, 5))
    for fields, count in [
        ({"columns": ["i"]}, 15),
        ({"columns": ["i"], "filter": [[["i", "<", 3]]]}, 3),
        ({"limit": 4}, 4),
        ({"scope": "version", "version": version}, 10),
        ({"scope": "buffered"}, 5),
        ({"scope": "buffered", "version": 1}, 15),
    ]:
        body = {"namespace": table[0], "table": table[1], **fields}
        descriptor = fl.FlightDescriptor.for_command(json.dumps(body).encode())
        info = client.get_flight_info(descriptor)
        answer = client.do_get(info.endpoints[0].ticket).read_all()
        assert answer.num_rows == count
        assert info.total_records in (-1, *range(count, 16))
        assert info.schema.names == answer.schema.names
        assert client.get_schema(descriptor).schema.names == answer.schema.names


def test_get_schema_is_that_of_the_query(client: fl.FlightClient, table: Table) -> None:
    put(client, table, pa.record_batch({"a": pa.array(["x"]).dictionary_encode()}))
    assert client.get_schema(path(table)).schema == pa.schema({"a": pa.string()})
    assert query(client, table).schema.remove_metadata() == pa.schema({"a": pa.string()})


def test_unknown_tables_and_bad_descriptors_of_flight_info(
    client: fl.FlightClient, table: Table
) -> None:
    for ask in (client.get_flight_info, client.get_schema):
        with pytest.raises(pa.ArrowKeyError, match=table[1]):
            ask(path(table))
        with pytest.raises(pa.ArrowInvalid, match="namespace"):
            ask(fl.FlightDescriptor.for_path("only-one"))
        body = {"namespace": table[0], "table": table[1], "colums": []}
        descriptor = fl.FlightDescriptor.for_command(json.dumps(body).encode())
        with pytest.raises(pa.ArrowInvalid, match="colums"):
            ask(descriptor)


def test_list_flights_has_all_tables_by_path(tmp_path: Path) -> None:
    tables = [("a", "x"), ("a", "y"), ("b", "x")]
    with Daemon.start(tmp_path / "data") as daemon:
        with fl.connect(daemon.flight) as client:
            assert list(client.list_flights()) == []
            for count, each in enumerate(tables, 1):
                put(client, each, numbers(0, count))
            persist(client, tables[0])
        daemon.kill()
        # After a restart too, where one of them is in the store alone.
        with daemon.again() as restarted, fl.connect(restarted.flight) as client:
            found = {
                tuple(part.decode() for part in info.descriptor.path): info.total_records
                for info in client.list_flights()
            }
    assert found == {("a", "x"): 1, ("a", "y"): 2, ("b", "x"): 3}


def test_without_auto_create_a_write_to_an_unknown_table_is_not_found(
    tmp_path: Path, table: Table
) -> None:
    with (
        Daemon.start(tmp_path / "data", auto_create="false") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        with pytest.raises(pa.ArrowKeyError, match=table[1]):
            put(client, table, numbers(0, 1))
        assert list(client.list_flights()) == []
        create(client, table, numbers(0, 1).schema)
        put(client, table, numbers(0, 1, more=pa.array(["x"])))
        assert query(client, table).to_pydict() == {"i": [0], "more": ["x"]}


def test_a_schema_may_come_with_metadata(client: fl.FlightClient, table: Table) -> None:
    schema = numbers(0, 1).schema.with_metadata({"made by": "somebody"})
    encoded = base64.b64encode(schema.serialize().to_pybytes()).decode()
    for _ in range(2):
        act(client, "create_table", namespace=table[0], table=table[1], schema=encoded)
    put(client, table, numbers(0, 1).replace_schema_metadata({"a": "b"}))
    assert rows(client, table) == [0]
