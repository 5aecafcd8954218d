"""DoAction: the list of actions, errors for malformed bodies, and the status."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, act, http

ACTIONS = {
    "create_table",
    "describe_table",
    "followers",
    "followers_prepare",
    "persist",
    "drain",
    "log_level",
    "origins",
    "checkpoint_get",
    "checkpoint_put",
    "checkpoint_delete",
    "checkpoints",
    "copy_finish",
    "copy_abort",
    "replication_report",
    "store",
    "status",
    "status_list",
    "CreatePreparedStatement",
    "ClosePreparedStatement",
    "CancelFlightInfo",
    "CancelQuery",
}


def test_list_actions_names_them_all(client: fl.FlightClient) -> None:
    listed = client.list_actions()
    assert {action.type for action in listed} == ACTIONS
    assert all(action.description for action in listed)


def test_an_unknown_action_is_unimplemented(client: fl.FlightClient) -> None:
    with pytest.raises(pa.ArrowNotImplementedError, match="'nope'"):
        act(client, "nope")


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
    ("drain", {"wait_s": -1}, "wait_s"),
    ("origins", {"name": "x"}, "name"),
    ("origins", {"origin": 3}, "origin"),
    ("checkpoint_get", {"namespace": "it", "table": "x"}, "partition"),
    ("checkpoint_put", {"namespace": "it", "table": "x", "partition": "p"}, "state"),
    ("checkpoint_delete", {"namespace": "it", "table": "x", "partition": "p", "v": 1}, "v"),
    ("checkpoints", {"table": "x"}, "namespace"),
    ("status", {"x": 1}, "x"),
    ("status", [], "object"),
    ("status_list", {}, "list"),
    ("status_list", {"list": "pages"}, "'pages' is not one of tables, origins"),
    ("status_list", {"list": "tables", "limit": 0}, "limit 0 is not from 1 to 1000"),
    ("status_list", {"list": "tables", "limit": 1001}, "limit 1001"),
    ("status_list", {"list": "tables", "after": "x" * 2049}, "after has more than 2048 B"),
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


@pytest.mark.parametrize("action", ["describe_table", "persist"])
def test_an_unknown_table_is_not_found(client: fl.FlightClient, table: Table, action: str) -> None:
    with pytest.raises(pa.ArrowKeyError, match=table[1]):
        act(client, action, namespace=table[0], table=table[1])


def test_the_action_status_has_what_http_has(shared: Daemon, client: fl.FlightClient) -> None:
    (by_flight,) = act(client, "status")
    by_http = json.loads(http(f"{shared.http}/api/status")[2])
    assert set(by_flight) == set(by_http)
    for name in ("ingester_id", "incarnation", "epoch", "pid", "flight", "http"):
        assert by_flight["identity"][name] == by_http["identity"][name] == shared.ready[name]
