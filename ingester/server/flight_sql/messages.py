"""The messages of Flight SQL, decoded and encoded. Pure.

    Any       { 1 type_url: "type.googleapis.com/arrow.flight.protocol.sql.NAME", 2 value }
    Handle    32 bytes: the id of the query, or spaces; then the JSON ticket of ``sql.request``

A handle is what is in the ticket of a statement, and the handle of a prepared one. It holds
everything that the daemon needs, so nothing is kept between calls. It is not signed, because it
grants nothing: it is a statement that the caller could also have sent.

Source: apache/arrow ``format/FlightSql.proto`` and ``format/Flight.proto``
"""

from __future__ import annotations

import base64

import msgspec
import pyarrow as pa

from ingester.errors import BadRequest, NotAvailable
from ingester.protobuf import BadMessage, Value, bytes_field, fields, packed_varints
from ingester.shown_text import shown_name
from ingester.sql.request import Statement, parse_statement

_TYPE = b"/arrow.flight.protocol.sql."
_ID_BYTES = 32
_HEAD_BYTES = 128
"""A google.protobuf.Any starts with the name of its type."""
MAX_FIELDS = 10_000
"""The most fields of a message, and values of a field: each takes about a microsecond."""
MAX_MESSAGE_BYTES = 16 << 20
"""The largest command, ticket or body. It holds a statement and its parameters."""


class Message:
    """The fields of a message by number.

    Args:
        name: for errors.
        data: the encoded message.

    Raises:
        BadRequest: not a protobuf message; from the methods also: a field has another type.
    """

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data
        self._fields: dict[int, list[Value]] = {}
        try:
            for count, (number, value) in enumerate(fields(data)):
                self._check_count(count + 1)
                self._fields.setdefault(number, []).append(value)
        except BadMessage as exc:
            raise BadRequest(f"{name} is not a protobuf message: {exc}") from exc

    def _check_count(self, count: int) -> None:
        if count > MAX_FIELDS:
            raise BadRequest(f"{self.name} has more than {MAX_FIELDS} fields or values of a field")

    def has(self, number: int) -> bool:
        """Return whether the field was sent."""
        return number in self._fields

    def blobs(self, number: int) -> list[bytes]:
        """Return all values of a repeated field of bytes or messages."""
        found = self._fields.get(number, [])
        values = [value for value in found if isinstance(value, bytes)]
        if len(values) != len(found):
            raise BadRequest(f"{self.name}: field {number} is a number instead of bytes")
        return values

    def blob(self, number: int) -> bytes:
        """Return a field's bytes; empty if it was not sent. The last one counts."""
        return (self.blobs(number) or [b""])[-1]

    def texts(self, number: int) -> list[str]:
        """Return all values of a repeated field of texts."""
        try:
            return [value.decode() for value in self.blobs(number)]
        except UnicodeDecodeError as exc:
            raise BadRequest(f"{self.name}: field {number} is not UTF-8: {exc}") from exc

    def text(self, number: int) -> str:
        """Return a text; empty if it was not sent."""
        return (self.texts(number) or [""])[-1]

    def optional_text(self, number: int) -> str | None:
        """Return a text; None if it was not sent."""
        return self.text(number) if self.has(number) else None

    def numbers(self, number: int) -> list[int]:
        """Return all values of a repeated integer field, packed or not."""
        found: list[int] = []
        for value in self._fields.get(number, ()):
            if isinstance(value, int):
                found.append(value)
                continue
            try:
                for each in packed_varints(value):
                    found.append(each)
                    self._check_count(len(found))
            except BadMessage as exc:
                raise BadRequest(f"{self.name}: field {number}: {exc}") from exc
        return found

    def number(self, number: int) -> int:
        """Return an integer, unsigned; 0 if it was not sent."""
        return (self.numbers(number) or [0])[-1]


def is_flight_sql(message: bytes) -> bool:
    """Return whether a command, a ticket or a body is a message of Flight SQL."""
    return message[:1] == b"\n" and _TYPE in message[:_HEAD_BYTES]


def unpacked(message: bytes) -> Message:
    """Return the message inside an Any, with its name: ``CommandStatementQuery``.

    Raises:
        BadRequest: not an Any of Flight SQL.
    """
    if len(message) > MAX_MESSAGE_BYTES:
        raise BadRequest(
            f"the Flight SQL message has {len(message)} B; at most {MAX_MESSAGE_BYTES} are taken"
        )
    outer = Message("google.protobuf.Any", message)
    _, found, name = outer.text(1).partition(_TYPE.decode())
    if not found or not name.isidentifier():
        raise BadRequest("the message is not one of arrow.flight.protocol.sql in a protobuf Any")
    return Message(name, outer.blob(2))


def packed(name: str, value: bytes = b"") -> bytes:
    """Return an Any with an encoded message."""
    url = "type.googleapis.com" + _TYPE.decode() + name
    return bytes_field(1, url) + bytes_field(2, value)


def encoded_handle(statement: Statement, query_id: str = "") -> bytes:
    """Return a handle, which :func:`handle_of` decodes."""
    parameters = None
    if statement.parameters is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, statement.parameters.schema) as writer:
            writer.write_batch(statement.parameters)
        parameters = base64.b64encode(sink.getvalue()).decode()
    ticket = {"sql": statement.text, "namespace": statement.namespace, "parameters": parameters}
    return query_id.encode().ljust(_ID_BYTES) + msgspec.json.encode(ticket)


def handle_of(data: bytes) -> tuple[Statement, str]:
    """Return a handle's statement, and the id under which it runs; empty if it has none.

    Raises:
        BadRequest
    """
    return parse_statement(data[_ID_BYTES:]), data[:_ID_BYTES].decode(errors="replace").strip()


def prepared_result(handle: bytes, dataset: pa.Schema, parameters: pa.Schema) -> bytes:
    """Encode ActionCreatePreparedStatementResult in its Any."""
    schemas = (bytes(each.serialize()) for each in (dataset, parameters))
    values = (handle, *schemas)
    value = b"".join(bytes_field(number, each) for number, each in enumerate(values, 1))
    return packed("ActionCreatePreparedStatementResult", value)


def tickets_of(info: bytes) -> list[bytes]:
    """Return the tickets of an encoded FlightInfo."""
    endpoints = Message("FlightInfo", info).blobs(3)
    tickets = (Message("FlightEndpoint", endpoint).blob(1) for endpoint in endpoints)
    return [Message("Ticket", ticket).blob(1) for ticket in tickets]


def unsupported(name: str) -> NotAvailable:
    """Return the error for a command that is not supported."""
    return NotAvailable(f"Flight SQL: {shown_name(name)} is not supported")
