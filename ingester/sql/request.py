"""A query in SQL, as a client sends it: the JSON ticket of DoGet, checked before any work is done.

    {"sql": "SELECT …", "namespace": "shop", "parameters": "<base64>"}

``parameters`` is an Arrow IPC stream with one batch of one row. Its columns are the values of
``?``, ``$1`` in order, or by name if they are named ``1``, ``2`` and so on; or of ``$name`` by
name. They have the exact types of the client.
``"missing": "allow"`` answers without the buffered rows of unreachable daemons. Pure.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Literal

import msgspec
import pyarrow as pa

from ingester.errors import BadRequest
from ingester.schema.expansion import shown_bytes

MAX_SQL_BYTES = 1 << 20
"""The longest statement."""
MAX_PARAMETERS = 10_000
MAX_PARAMETER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement with the values of its parameters.

    Attributes:
        text: the SQL.
        namespace: the namespace of table names that are written without one.
        parameters: one row; None without parameters.
        first_rows: the answer ends after so many rows; None for all.
        allows_missing: whether it may lack the buffered rows of unreachable peers.
    """

    text: str
    namespace: str | None = None
    parameters: pa.RecordBatch | None = None
    first_rows: int | None = None
    allows_missing: bool = False


class _SqlTicket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sql: str
    namespace: str | None = None
    parameters: str | None = None
    missing: Literal["error", "allow"] = "error"


_decode = msgspec.json.Decoder(_SqlTicket).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def is_sql(ticket: bytes) -> bool:
    """Return whether a ticket of DoGet has a statement."""
    if b'"sql"' not in ticket:
        return False
    try:
        return "sql" in _decode_members(ticket)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def parse_statement(ticket: bytes) -> Statement:
    """Parse the ticket of an SQL query.

    Raises:
        BadRequest: an unknown field, a wrong type, or parameters that are not one row.
    """
    try:
        parsed = _decode(ticket)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise BadRequest(f"ticket: {exc}") from exc
    batch = None if parsed.parameters is None else _parameters(parsed.parameters)
    allows_missing = parsed.missing == "allow"
    return checked(Statement(parsed.sql, parsed.namespace, batch, allows_missing=allows_missing))


def checked(statement: Statement) -> Statement:
    """Return the statement if its size and its parameters are allowed; else raise BadRequest."""
    size = len(statement.text.encode(errors="surrogatepass"))
    if size > MAX_SQL_BYTES:
        raise BadRequest(f"the statement has {size} B; at most {MAX_SQL_BYTES} B are allowed")
    row = statement.parameters
    if row is not None and row.num_rows != 1:
        raise BadRequest(f"the parameters have {row.num_rows} rows; a query takes exactly one")
    if row is not None and row.num_columns > MAX_PARAMETERS:
        raise BadRequest(
            f"the statement has {row.num_columns} parameters; at most {MAX_PARAMETERS} are allowed"
        )
    if row is not None:
        _check_valid(row)
    return statement


def _check_valid(row: pa.RecordBatch) -> None:
    """Raise BadRequest for buffers that Arrow would follow to memory that is not theirs."""
    try:
        row.validate()
        if (shown := sum(map(shown_bytes, row.columns))) > MAX_PARAMETER_BYTES:
            raise BadRequest(
                f"the parameters have {shown:.0f} B of text; at most {MAX_PARAMETER_BYTES} B are"
                " allowed"
            )
        row.validate(full=True)
    except pa.ArrowInvalid as exc:
        raise BadRequest(f"the parameters are not valid: {exc}") from exc


def _parameters(text: str) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(base64.b64decode(text, validate=True)) as reader:
            batches = list(reader)
    except (binascii.Error, pa.ArrowException, OSError, MemoryError) as exc:
        raise BadRequest(f"ticket: parameters is not base64 of an Arrow stream: {exc}") from exc
    rows = sum(batch.num_rows for batch in batches)
    if rows != 1:
        raise BadRequest(f"ticket: parameters has {rows} rows; a query takes exactly one")
    # Not concatenated: Arrow would follow offsets that are not validated yet.
    return next(batch for batch in batches if batch.num_rows)
