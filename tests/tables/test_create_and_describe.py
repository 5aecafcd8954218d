"""A table's definition comes from an action or a first write, is described as given, and stays."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from persist.partitioning import PartitionSpec
from persist.table import TableDefinition
from tests.drivers.daemon import Daemon
from tests.drivers.wire import (
    Table,
    act,
    create,
    describe,
    events,
    numbers,
    persist,
    put,
    query,
    rows,
)

SCHEMA = pa.schema(
    {"time": pa.timestamp("us", "UTC"), "host": pa.string(), "v": pa.float64(), "n": pa.int32()}
)


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
        "transformers": [],
        "publish": None,
        "max_age_s": None,
        "ack": "disk",
        "published": [],
        "manifest_version": 1,
        "table_version": 1,
        "buffered": {"rows": 0, "bytes": 0, "partitions": 0},
        "persisted": {"rows": 0, "bytes": 0, "files": 0},
        "owner": None,
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


def test_formats_and_age_are_described_and_another_value_is_refused(
    client: fl.FlightClient, table: Table
) -> None:
    asked = {"publish": ["delta", "iceberg"], "max_age_s": 7.5}
    answer = create(client, table, SCHEMA, **asked)
    assert (answer["publish"], answer["max_age_s"]) == (["iceberg", "delta"], 7.5)
    for again in ({}, asked, {"publish": ["iceberg", "delta"]}, {"max_age_s": 7.5}):
        assert create(client, table, SCHEMA, **again)["publish"] == answer["publish"]
    for other, said in (
        ({"publish": ["delta"]}, r'publish \["iceberg","delta"\], asked for \["delta"\]'),
        ({"publish": []}, r"asked for \[\]"),
        ({"max_age_s": 8.0}, r"max_age_s 7\.5, asked for 8\.0"),
        ({"publish": ["parquet"]}, "parquet.* is not one of iceberg, delta"),
        ({"max_age_s": 0.0}, r"max_age_s 0\.0 is not between"),
    ):
        with pytest.raises(pa.ArrowInvalid, match=said):
            create(client, table, SCHEMA, **other)
    assert {key: describe(client, table)[key] for key in asked} == {
        "publish": ["iceberg", "delta"],
        "max_age_s": 7.5,
    }


def test_a_column_that_a_format_cannot_express_is_refused_with_the_reason(
    client: fl.FlightClient, table: Table
) -> None:
    unsigned = pa.schema({"i": pa.int64(), "u": pa.uint64()})
    with pytest.raises(pa.ArrowInvalid, match=r"cannot be published as iceberg.*u.*uint64"):
        create(client, table, unsigned, publish=["iceberg"])
    assert create(client, table, unsigned, publish=[])["publish"] == []


def test_a_table_that_is_defined_again_keeps_its_level() -> None:
    before = TableDefinition(SCHEMA, PartitionSpec(), ack="store")
    again = TableDefinition(numbers(0, 1).schema, PartitionSpec()).redefined(before)
    assert again.ack == "store"
    assert again.properties_action().values["ack"] == "store"
    assert "ack" not in TableDefinition(SCHEMA, PartitionSpec()).properties_action().values
