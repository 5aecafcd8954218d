"""DoGet of an SQL statement: its answer as a Flight stream; also used by Flight SQL.

The generator holds only the answer, so that the query ends when gRPC drops the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from ingester.errors import ClientGone
from ingester.server.auth.access import Access, Permit
from ingester.server.flight.refusals import refusals
from ingester.server.services import Services
from ingester.sql.engine import SqlAnswer, SqlCaller
from ingester.sql.request import Statement


@dataclass(frozen=True, slots=True)
class SqlCall:
    """A call of Flight SQL: pyarrow's context of the call and the caller's permit."""

    context: Any
    permit: Permit


def sql_caller(context: Any, access: Access, permit: Permit) -> SqlCaller:
    """Check the right to ask in SQL and return the caller as the engine sees it.

    Raises:
        NotAuthenticated, AccessDenied
    """
    permit.require("get sql")
    sees = permit.sees("get sql")

    def check_wanted() -> None:
        permit.renew()
        if context.is_cancelled():
            raise ClientGone("the call was ended before its answer")

    return SqlCaller(
        may_read=lambda namespace: sees is None or sees(namespace),
        check_wanted=check_wanted,
        authorization=permit.authorization,
    )


def answer_statement(
    context: Any,
    services: Services,
    permit: Permit,
    statement: Statement,
    query_id: str | None = None,
    described: Callable[[pa.Schema], pa.Schema] = lambda schema: schema,
) -> fl.FlightDataStream:
    """Run a statement and return the stream that pyarrow sends. Inside :func:`refusals`.

    Args:
        described: returns the schema with metadata of its fields.
    """
    caller = sql_caller(context, services.access, permit)
    answer = services.sql.run(statement, caller, query_id)
    told = {
        "query_id": answer.query_id,
        "store": services.store_id,
        "parts": msgspec.json.encode(answer.daemons),
    }
    if answer.missing:
        told["missing"] = msgspec.json.encode(answer.missing)
    schema = described(answer.schema).with_metadata(told)
    return fl.GeneratorStream(schema, _batches(context, services, answer))


def _batches(context: Any, services: Services, answer: SqlAnswer) -> Iterator[pa.RecordBatch]:
    metrics = services.metrics
    with refusals(context, metrics.refused, metrics.client_gone, metrics.limit_refused):
        try:
            yield from answer
        finally:
            answer.close()
