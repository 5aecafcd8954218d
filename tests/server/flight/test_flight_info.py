"""GetFlightInfo, GetSchema, ListFlights: the schema, row counts and ticket of a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, events, numbers, path, persist, put, query


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
    asked: list[tuple[dict[str, Any], int]] = [
        ({"columns": ["i"]}, 15),
        ({"columns": ["i"], "filter": [[["i", "<", 3]]]}, 3),
        ({"limit": 4}, 4),
        ({"scope": "version", "version": version}, 10),
        ({"scope": "buffered"}, 5),
        ({"scope": "buffered", "version": 1}, 15),
    ]
    for fields, count in asked:
        body = {"namespace": table[0], "table": table[1], **fields}
        descriptor = fl.FlightDescriptor.for_command(json.dumps(body).encode())
        info = client.get_flight_info(descriptor)
        answer = client.do_get(info.endpoints[0].ticket).read_all()
        assert answer.num_rows == count
        assert info.total_records in (-1, *range(count, 16))
        assert info.schema.names == answer.schema.names
        assert client.get_schema(descriptor).schema.names == answer.schema.names


def test_rows_that_may_replace_others_are_not_counted(
    client: fl.FlightClient, table: Table
) -> None:
    create(client, table, numbers(0, 1).schema, primary_key=["i"])
    for _ in range(2):
        put(client, table, numbers(0, 3))
    assert client.get_flight_info(path(table)).total_records == -1
    version = persist(client, table)
    assert client.get_flight_info(path(table)).total_records == 3
    put(client, table, numbers(2, 2))
    for fields, count in (
        ({"scope": "buffered"}, -1),
        ({"scope": "version", "version": version}, 3),
    ):
        body = {"namespace": table[0], "table": table[1], **fields}
        descriptor = fl.FlightDescriptor.for_command(json.dumps(body).encode())
        assert client.get_flight_info(descriptor).total_records == count


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
        # Also after a restart, when one of the tables is in the store only.
        with daemon.again() as restarted, fl.connect(restarted.flight) as client:
            found = {
                tuple(part.decode() for part in info.descriptor.path): info.total_records
                for info in client.list_flights()
            }
    assert found == {("a", "x"): 1, ("a", "y"): 2, ("b", "x"): 3}
