"""Messages of Flight SQL that are not supported are "unimplemented" by their names."""

from __future__ import annotations

import json

import pytest

from tests.drivers.daemon import Daemon
from tests.fuzz.raw_flight import UNIMPLEMENTED, call, command_descriptor, field

TYPE = "type.googleapis.com/arrow.flight.protocol.sql."


def _message(name: str) -> bytes:
    """A google.protobuf.Any, as drivers put it into descriptors and tickets."""
    return field(1, (TYPE + name).encode()) + field(2, field(1, b"select 1"))


def _command(name: str) -> bytes:
    return command_descriptor(_message(name))


CALLS = {
    "CommandStatementSubstraitPlan": (
        "GetFlightInfo",
        [_command("CommandStatementSubstraitPlan")],
    ),
    "CommandOfTheFuture": ("GetSchema", [_command("CommandOfTheFuture")]),
    "TicketOfTheFuture": ("DoGet", [field(1, _message("TicketOfTheFuture"))]),
    "CreatePreparedSubstraitPlan": ("DoAction", [field(1, b"CreatePreparedSubstraitPlan")]),
    "SetSessionOptions": ("DoAction", [field(1, b"SetSessionOptions")]),
    "BeginTransaction": ("DoAction", [field(1, b"BeginTransaction")]),
    # The first message of this stream has a descriptor and no schema.
    "CommandPlan": ("DoPut", [field(1, _command("CommandPlan"))]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_message_of_flight_sql_is_unimplemented_by_its_name(shared: Daemon, name: str) -> None:
    method, messages = CALLS[name]
    answered = call(shared.flight, method, messages)
    assert answered.status == UNIMPLEMENTED
    told = json.loads(answered.binary("ingester-error-bin"))
    assert told["code"] == "unimplemented"
    assert repr(name) in told["message"]


def test_do_exchange_is_unimplemented_by_its_name(shared: Daemon) -> None:
    answered = call(shared.flight, "DoExchange", [field(1, command_descriptor(b"{}"))])
    assert answered.status == UNIMPLEMENTED
    assert json.loads(answered.binary("ingester-error-bin"))["message"].startswith("DoExchange")
