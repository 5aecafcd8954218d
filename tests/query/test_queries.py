"""DoGet of a table half in files and half in buffers: tickets, columns, limits, values."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.mixed_rows import ROWS, SCHEMA
from tests.drivers.wire import Table, create, put, query

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
