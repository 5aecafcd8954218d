"""The messages of Flight SQL, decoded and encoded. Pure.

    Any       { 1 type_url: "type.googleapis.com/arrow.flight.protocol.sql.NAME", 2 value }
    Handle    { 1 statement, 2 namespace, 3 parameters, 4 query id, 5 digest of the schema }

A handle is our own: what is in the ticket of a statement and in the handle of a prepared one. It
holds everything that the daemon needs, so nothing is kept between calls. It is not signed, because
it grants nothing: it is a statement that the caller could also have sent.

Source: apache/arrow ``format/FlightSql.proto`` and ``format/Flight.proto``
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from ingester.errors import BadRequest
from ingester.protobuf import BadMessage, Value, bytes_field, fields, packed_varints, varint_field
from ingester.sql.request import Statement, checked

_TYPE = b"/arrow.flight.protocol.sql."
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


@dataclass(frozen=True, slots=True)
class Handle:
    """A statement between two calls.

    Attributes:
        query_id: the id under which it runs; empty before GetFlightInfo.
        digest: :func:`schema_digest` of the announced schema; empty before GetFlightInfo.
    """

    statement: Statement
    query_id: str = ""
    digest: bytes = b""

    def encoded(self) -> bytes:
        """Return the bytes that :func:`handle_of` decodes."""
        statement = self.statement
        out = bytes_field(1, statement.text)
        if statement.namespace is not None:
            out += bytes_field(2, statement.namespace)
        if statement.parameters is not None:
            out += bytes_field(3, _ipc_stream(statement.parameters))
        return out + bytes_field(4, self.query_id) + bytes_field(5, self.digest)


def handle_of(data: bytes) -> Handle:
    """Decode a handle. Raises BadRequest."""
    message = Message("statement handle", data)
    row = None
    if message.has(3):
        try:
            with pa.ipc.open_stream(message.blob(3)) as reader:
                row = reader.read_next_batch()
        except (pa.ArrowException, OSError, StopIteration, MemoryError) as exc:
            raise BadRequest(f"statement handle: parameters: {exc}") from exc
    statement = Statement(message.text(1), message.optional_text(2), row)
    return Handle(checked(statement), message.text(4), message.blob(5))


def schema_digest(schema: pa.Schema) -> bytes:
    """Return a digest of names and types, without the schema's metadata."""
    encoded = schema.remove_metadata().serialize()
    return hashlib.blake2b(encoded, digest_size=16).digest()


def _ipc_stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


class SqlRequest(NamedTuple):
    """A statement as a client sends it."""

    text: str
    in_transaction: bool


def statement_request(message: Message) -> SqlRequest:
    """Decode CommandStatementQuery or ActionCreatePreparedStatementRequest."""
    return SqlRequest(message.text(1), bool(message.blob(2)))


def prepared_result(handle: Handle, dataset: pa.Schema, parameters: pa.Schema) -> bytes:
    """Encode ActionCreatePreparedStatementResult in its Any."""
    value = (
        bytes_field(1, handle.encoded())
        + bytes_field(2, bytes(dataset.serialize()))
        + bytes_field(3, bytes(parameters.serialize()))
        + varint_field(4, 0)
    )
    return packed("ActionCreatePreparedStatementResult", value)


def tickets_of(info: bytes) -> list[bytes]:
    """Return the tickets of an encoded FlightInfo."""
    endpoints = Message("FlightInfo", info).blobs(3)
    tickets = (Message("FlightEndpoint", endpoint).blob(1) for endpoint in endpoints)
    return [Message("Ticket", ticket).blob(1) for ticket in tickets]
