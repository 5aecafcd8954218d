"""Flight SQL's messages by pyarrow.flight, for what ADBC does not send."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as fl

from ingester.protobuf import bytes_field, fields
from ingester.server.flight_sql.messages import packed


def command(name: str, *texts: tuple[int, str | bytes]) -> fl.FlightDescriptor:
    """Return the descriptor of a command with texts in fields."""
    value = b"".join(bytes_field(number, text) for number, text in texts)
    return fl.FlightDescriptor.for_command(packed(name, value))


def info(client: fl.FlightClient, text: str) -> fl.FlightInfo:
    """Return the FlightInfo of a statement."""
    return client.get_flight_info(command("CommandStatementQuery", (1, text)))


def ask(client: fl.FlightClient, name: str, *texts: tuple[int, str | bytes]) -> pa.Table:
    """Return the answer to a command; its schema is the announced one."""
    descriptor = command(name, *texts)
    told = client.get_flight_info(descriptor)
    found = client.do_get(told.endpoints[0].ticket).read_all()
    assert told.schema == found.schema == client.get_schema(descriptor).schema
    return found


def act(client: fl.FlightClient, name: str, body: bytes) -> list[bytes]:
    """Return the results of an action."""
    return [each.body.to_pybytes() for each in client.do_action(fl.Action(name, body))]


def cancel(client: fl.FlightClient, told: fl.FlightInfo) -> int:
    """Cancel a query and return the CancelStatus."""
    (result,) = act(client, "CancelFlightInfo", bytes_field(1, told.serialize()))
    ((number, status),) = fields(result)
    assert number == 1
    return int(status)
