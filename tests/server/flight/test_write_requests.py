"""Options of a write in metadata, command and path; everything else is refused by name."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.wire import Stream, Table, command, numbers, put, rows

BAD_METADATA: list[tuple[Any, str]] = [
    (b"{", "app_metadata"),
    (b"[1]", "app_metadata"),
    (b"\xff", "app_metadata"),
    ({"sequense": 1}, "sequense"),
    ({"sequence": "1"}, "sequence"),
    ({"sequence": 1.5}, "sequence"),
    ({"sequence": -1}, "sequence"),
    ({"sequence": 2**64}, "sequence"),
    ({"sequence": 1, "checkpoint": {"partition": "p"}}, "state"),
    ({"sequence": 1, "checkpoint": {"partition": "p", "state": "*"}}, "base64"),
    ({"sequence": 1, "checkpoint": {"partition": "p", "state": "", "x": 1}}, "x"),
]


@pytest.mark.parametrize(("metadata", "named"), BAD_METADATA, ids=lambda value: str(value)[:40])
def test_malformed_metadata_is_refused_by_name(
    client: fl.FlightClient, table: Table, origin: str, metadata: Any, named: str
) -> None:
    put(client, table, numbers(0, 1))
    with pytest.raises(pa.ArrowInvalid, match=named):
        put(client, table, numbers(1, 1), origin=origin, metadata=[metadata])
    assert rows(client, table) == [0]


def test_a_sequence_needs_an_origin(client: fl.FlightClient, table: Table) -> None:
    with pytest.raises(pa.ArrowInvalid, match="origin"):
        put(client, table, numbers(0, 1), metadata=[{"sequence": 1}])


def test_a_batch_may_carry_a_checkpoint(client: fl.FlightClient, table: Table, origin: str) -> None:
    state = base64.b64encode(b"offset 812").decode()
    metadata = {"sequence": 17, "checkpoint": {"partition": "topic-0", "state": state}}
    (answer,) = put(client, table, numbers(0, 1), origin=origin, metadata=[metadata])
    assert answer["accepted"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "type"),
        ({"type": "write"}, "namespace|table"),
        ({"type": "write", "namespace": "it", "table": 3}, "table"),
        ({"type": "write", "namespace": "it", "table": "t", "orign": "x"}, "orign"),
        ({"type": "write", "namespace": "it", "table": "t", "origin": ""}, "origin"),
        ({"type": "write", "namespace": "it", "table": "t", "origin": "x" * 300}, "origin"),
        ({"type": "wrote", "namespace": "it", "table": "t"}, "wrote"),
        ({"namespace": "it", "table": "t"}, "type"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_malformed_command_is_refused_by_name(
    client: fl.FlightClient, fields: dict[str, Any], named: str
) -> None:
    with (
        pytest.raises(pa.ArrowInvalid, match=named),
        Stream(client, command(**fields), numbers(0, 1).schema) as stream,
    ):
        stream.write(numbers(0, 1))


@pytest.mark.parametrize("path", [[], ["it"], ["it", "a", "b"]])
def test_a_path_that_is_not_namespace_and_table_is_refused(
    client: fl.FlightClient, path: list[str]
) -> None:
    descriptor = fl.FlightDescriptor.for_path(*path)
    with (
        pytest.raises(pa.ArrowInvalid, match="namespace"),
        Stream(client, descriptor, numbers(0, 1).schema) as stream,
    ):
        stream.write(numbers(0, 1))
