"""CommandStatementIngest: rows that a driver writes to a table, as ``adbc_ingest`` does."""

from __future__ import annotations

from typing import Any

from ingester.errors import NotAvailable
from ingester.server.flight.put_messages import PutLimits
from ingester.server.flight.sql import SqlCall
from ingester.server.flight_sql.messages import Message
from ingester.server.portal import Portal
from ingester.server.services import Services


def ingest(
    call: SqlCall,
    services: Services,
    portal: Portal,
    limits: PutLimits,
    command: Message,
    reader: Any,
    writer: Any,
) -> None:
    """Write the rows of a DoPut stream and answer with DoPutUpdateResult."""
    call.permit.require("put sql")
    raise NotAvailable("Flight SQL: CommandStatementIngest is not supported")
