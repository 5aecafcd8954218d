"""Every oversized part of a request is refused by name and leaves nothing behind."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.wire import Stream, Table, act, create, numbers, path, put, query, ticket

MIB = 1 << 20
LARGE = "x" * (5 * MIB)
Request = Callable[[fl.FlightClient, Table], object]

WIDE = pa.schema([(f"c{number}", pa.int8()) for number in range(10_001)])
NESTED = pa.schema([("s", pa.struct([(f"c{number}", pa.int8()) for number in range(10_000)]))])
CHECKPOINT = {"checkpoint": {"partition": "p", "state": base64.b64encode(LARGE.encode()).decode()}}


def _schema(schema: pa.Schema) -> Request:
    empty = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in schema], schema=schema)
    return lambda client, table: put(client, table, empty)


def _described(client: fl.FlightClient, descriptor: fl.FlightDescriptor) -> None:
    with Stream(client, descriptor, numbers(0, 1).schema) as stream:
        stream.write(numbers(0, 1))


REQUESTS: dict[str, tuple[str, Request]] = {
    "name": (
        "descriptor path has",
        lambda client, table: _described(client, path((table[0], LARGE))),
    ),
    "path": (
        "and 992 more is not",
        lambda client, _: _described(client, fl.FlightDescriptor.for_path(*"a" * 1000)),
    ),
    "command": (
        "descriptor has",
        lambda client, _: _described(client, fl.FlightDescriptor.for_command(LARGE)),
    ),
    "info": (
        "query.max_filter_bytes",
        lambda client, _: client.get_flight_info(fl.FlightDescriptor.for_command(2 * LARGE)),
    ),
    "ticket": (
        "ticket has .*query.max_filter_bytes",
        lambda client, table: query(client, (table[0], 2 * LARGE)),
    ),
    "terms": (
        "100001 comparisons and values; .*query.max_filter_terms",
        lambda client, table: query(client, table, filter=[[["i", "=", 1]]] * 100_001),
    ),
    "criteria": ("criteria has", lambda client, _: list(client.list_flights(LARGE.encode()))),
    "action": ("action type has", lambda client, _: act(client, LARGE)),
    "body": ("action body has", lambda client, _: act(client, "origins", origin=LARGE)),
    "app_metadata": (
        "app_metadata has",
        lambda client, table: put(client, table, numbers(0, 1), metadata=[CHECKPOINT]),
    ),
    "columns": ("more than 10000 fields", _schema(WIDE)),
    "nested fields": ("more than 10000 fields", _schema(NESTED)),
    "schema metadata": ("B of metadata", _schema(numbers(0, 1).schema.with_metadata({"k": LARGE}))),
    "field metadata": (
        "B of metadata",
        _schema(pa.schema([pa.field("i", pa.int64(), metadata={"k": LARGE})])),
    ),
    "created": (
        "more than 10000 fields",
        lambda client, table: create(client, table, WIDE),
    ),
}


@pytest.mark.parametrize("part", REQUESTS)
def test_a_part_that_is_too_large_is_refused_by_name(
    client: fl.FlightClient, table: Table, part: str
) -> None:
    words, request = REQUESTS[part]
    with pytest.raises(pa.ArrowInvalid, match=words) as refused:
        request(client, table)
    # The refusal quotes at most a short part of the request.
    assert len(str(refused.value)) < 5000
    with pytest.raises(pa.ArrowKeyError):
        query(client, table)


def test_a_table_cannot_be_widened_without_end(client: fl.FlightClient, table: Table) -> None:
    half = pa.schema([(f"a{number}", pa.int8()) for number in range(1_200)])
    create(client, table, half)
    more = pa.record_batch({f"b{number}": pa.array([1], pa.int8()) for number in range(1_200)})
    with pytest.raises(pa.ArrowInvalid, match=r"2400 columns; limits\.columns is 2000"):
        put(client, table, more)
    assert len(client.get_schema(path(table)).schema) == 1_200


def test_a_ticket_of_many_terms_is_no_large_one(client: fl.FlightClient, table: Table) -> None:
    put(client, table, numbers(0, 10))
    terms = [[["i", "=", number]] for number in range(6_000)]
    assert len(json.dumps(terms)) > 100_000
    assert query(client, table, filter=terms).num_rows == 10
    assert ticket(table, filter=terms)
