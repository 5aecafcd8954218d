"""SQL statements as the client sends them: the ticket, and parameters in their exact types. Pure.

    [1, "a"]             values of ``?`` or ``$1``, ``$2``, in order
    {"id": 1}            values of ``$id``
    a RecordBatch        one row whose columns are the values, by name or in order

Arrow gives each value its type; one that Arrow would round or cut is refused.
"""

import base64
import datetime
import decimal
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from ingester.conversion import converted

from . import arguments
from .errors import InvalidRequest
from .inputs import check_meaning
from .wire import Missing, encode, given

Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any] | pa.RecordBatch
"""The forms listed above."""

_SHOWN_CHARACTERS = 200


def sql_ticket(
    statement: Any,
    parameters: Any = None,
    namespace: str | None = None,
    missing: Missing = "error",
) -> bytes:
    """The DoGet ticket of a statement.

    Raises:
        InvalidRequest: It is not text, or a parameter has no exact Arrow value.
    """
    if not isinstance(statement, str) or not statement.strip():
        raise InvalidRequest(f"sql: expected a statement, such as 'SELECT 1', not {statement!r}")
    row = parameter_row(parameters)
    body = {
        "sql": statement,
        "namespace": None if namespace is None else arguments.text("namespace", namespace),
        "parameters": None if row is None else base64.b64encode(_stream_of(row)).decode(),
        "missing": None if missing == "error" else missing,
    }
    try:
        return encode(given(body))
    except UnicodeEncodeError as exc:
        raise InvalidRequest(f"sql: the statement is not Unicode text: {exc}") from exc


def parameter_row(parameters: Any) -> pa.RecordBatch | None:
    """Parameters as one row; None if there are none.

    Raises:
        InvalidRequest: Another form, or a value without an exact Arrow value.
    """
    if isinstance(parameters, pa.RecordBatch):
        if parameters.num_columns and parameters.num_rows != 1:
            raise InvalidRequest(f"parameters: expected one row, not {parameters.num_rows}")
        return parameters if parameters.num_columns else None
    if isinstance(parameters, Mapping):
        named = dict(parameters)
    elif isinstance(parameters, list | tuple):
        named = {str(at): value for at, value in enumerate(parameters, 1)}
    elif parameters is None:
        return None
    else:
        raise InvalidRequest(
            f"parameters: expected a list of values for ? and $1, such as [1, 'a'], or a dict for"
            f" $name, such as {{'id': 1}}, not a {type(parameters).__name__}"
        )
    for name in named:
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"parameters: {name!r} is not a name, such as 'id' for $id")
    columns = [_column(name, value) for name, value in named.items()]
    return pa.RecordBatch.from_arrays(columns, list(named)) if columns else None


def _stream_of(row: pa.RecordBatch) -> Any:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    return sink.getvalue()


def _column(name: str, value: Any) -> pa.Array:
    if type(value).__name__ in ("NAType", "NaTType"):  # of pandas, which is not imported
        value = None
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        value = decimal.Decimal(value)
    try:
        if isinstance(value, datetime.time) and value.tzinfo is not None:
            raise ValueError("Arrow's times of day have no zone")
        if getattr(value, "nanoseconds", 0) % 1000:
            raise ValueError("an INTERVAL has no nanoseconds")
        column = pa.repeat(value, 1) if isinstance(value, pa.Scalar) else pa.array([value])
        check_meaning(name, [value], column.type)
        if "decimal256" in str(column.type):
            raise ValueError("SQL decimals have at most 38 digits")
        is_duration = pa.types.is_duration(column.type)
        return converted(column, pa.duration("us")) if is_duration else column
    except (pa.ArrowException, TypeError, ValueError, OverflowError, InvalidRequest) as exc:
        cause = " ".join(str(exc).split())[:_SHOWN_CHARACTERS]
        raise InvalidRequest(
            f"parameter {name}: a value of type {type(value).__name__} cannot be sent exactly:"
            f" {cause}; pass another type, or text and cast it in the statement"
        ) from exc
