"""The ticket of a query: the JSON of DoGet, and its filter checked against the table.

Law of this file: pure; unknown fields and impossible combinations are refused by name before any
work is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pyarrow as pa

from ingester.errors import InvalidRequest, NotAvailable, limit_facts
from ingester.query.long_filter import LongFilter, count_terms, too_many_terms
from ingester.schema.names import check_shown
from ingester.shown_text import shown_names
from persist.predicate.parse import BadFilter, parse_predicate
from persist.predicate.predicate import Predicate

Comparison = list[Any]
"""``[column, operator]`` or ``[column, operator, value]``."""


class After(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The position that a live feed goes on behind, as an answer has named it."""

    epoch: int
    sequence: int
    version: int | None = None
    """The manifest version that was told with it: another one is told at once."""
    ingester_id: str | None = None


class AskedBy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The follower that asks, where it can prepare table versions that are coming.

    Attributes:
        name: Tells it from others of the table.
        table_version: The one that its readers see.
        prepared: Others of which it has a copy.
    """

    name: str
    table_version: int
    prepared: list[int] = []


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One query over one table; only namespace and table are required."""

    namespace: str
    table: str
    columns: list[str] | None = None
    filter: Sequence[list[Comparison]] | None = None
    limit: int | None = None
    scope: Literal["all", "version", "buffered", "live"] = "all"
    version: int | None = None
    table_version: int | None = None
    after: After | None = None
    wait_s: float | None = None
    follower: AskedBy | None = None

    @property
    def tells_changes(self) -> bool:
        """Whether rows of a keyed table come with ``_op``."""
        return self.scope in ("buffered", "live")


@dataclass(frozen=True, slots=True)
class FilterLimits:
    """The limits of what a query may ask for, as the settings ``query.max_filter_…`` say."""

    terms: int = 100_000
    nbytes: int = 8 << 20


_FLIGHT_SQL = b"type.googleapis.com/arrow.flight.protocol.sql."
MAX_NAME_BYTES = 256
MAX_PREPARED = 64
MAX_WAIT_S = 30
DEFAULT_WAIT_S = 10.0
"""The time that a call of scope ``live`` waits for something new, in seconds."""
_HEAD_BYTES = 128
"""A google.protobuf.Any begins with its type's name."""
_decode = msgspec.json.Decoder(Ticket).decode
_encode = msgspec.json.Encoder(enc_hook=lambda filter_: filter_.alternatives).encode

LONG_BYTES = 64 << 10
"""The size from which a ticket's filter is read with pauses; see :mod:`.long_filter`."""
_NULL = msgspec.Raw(b"null")
_Unread = msgspec.defstruct(
    "Unread",
    [
        (field.name, field.type)
        if field.required
        else (field.name, msgspec.Raw, _NULL)
        if field.name == "filter"
        else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(Ticket)
    ],
    forbid_unknown_fields=True,
)
"""A ticket whose filter is not read yet."""
_decode_unread = msgspec.json.Decoder(_Unread).decode


def parse_ticket(body: bytes, limits: FilterLimits = FilterLimits()) -> Ticket:
    """Read a ticket.

    Raises:
        NotAvailable: a message of Flight SQL.
        InvalidRequest: not JSON, an unknown or missing field, a wrong type, a combination that
            means nothing, or more than the limits; the message names the field.
    """
    if len(body) > limits.nbytes:
        raise InvalidRequest(
            f"ticket has {len(body)} B; at most {limits.nbytes} are taken"
            " (query.max_filter_bytes): ask with fewer values in the filter, and more often",
            details=limit_facts("query.max_filter_bytes", limits.nbytes, len(body)),
        )
    refuse_flight_sql(body)
    try:
        ticket = _read(body, limits)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"ticket: {exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidRequest(f"ticket is not a JSON object: {exc}") from exc
    if ticket.limit is not None and ticket.limit < 0:
        raise InvalidRequest(f"ticket: limit {ticket.limit} is negative")
    if ticket.scope == "all" and ticket.version is not None:
        raise InvalidRequest(
            "ticket: scope 'all' is the newest state and takes no version; use scope 'version' or"
            " 'buffered'"
        )
    if ticket.scope == "version" and ticket.version is None:
        raise InvalidRequest("ticket: scope 'version' needs a version")
    if ticket.version is not None and ticket.version < 1:
        raise InvalidRequest(f"ticket: version {ticket.version} is below 1, the first")
    if ticket.table_version is not None and ticket.table_version < 1:
        raise InvalidRequest(f"ticket: table_version {ticket.table_version} is below 1, the first")
    _check_live(ticket)
    if ticket.columns is not None and len(set(ticket.columns)) != len(ticket.columns):
        raise InvalidRequest(
            f"ticket: columns [{shown_names(ticket.columns)}] names a column twice"
        )
    return ticket


def _read(body: bytes, limits: FilterLimits) -> Ticket:
    if len(body) <= LONG_BYTES:
        ticket = _decode(body)
        terms = sum(map(count_terms, ticket.filter or ()))
        if terms > limits.terms:
            raise too_many_terms(terms, limits.terms)
        return ticket
    fields = msgspec.structs.asdict(_decode_unread(body))
    filter_ = fields.pop("filter")
    read = None if filter_ == _NULL else LongFilter(filter_, limits.terms)
    return Ticket(**fields, filter=read)


def _check_live(ticket: Ticket) -> None:
    if ticket.scope != "live":
        for name in ("after", "wait_s", "follower"):
            if getattr(ticket, name) is not None:
                raise InvalidRequest(f"ticket: {name} is for scope 'live' only")
        return
    if ticket.limit is not None:
        raise InvalidRequest("ticket: scope 'live' takes no limit: its operations come whole")
    if ticket.wait_s is not None and not 0 <= ticket.wait_s <= MAX_WAIT_S:
        raise InvalidRequest(f"ticket: wait_s {ticket.wait_s:g} is not between 0 and {MAX_WAIT_S}")
    after = ticket.after
    if after is not None and (after.epoch < 0 or after.sequence < 0):
        raise InvalidRequest("ticket: after: epoch and sequence are not below 0")
    if ticket.follower is not None:
        _check_follower(ticket.follower)


def _check_follower(follower: AskedBy) -> None:
    if not 0 < len(follower.name.encode()) <= MAX_NAME_BYTES:
        raise InvalidRequest(f"ticket: follower: name must have 1 to {MAX_NAME_BYTES} bytes")
    check_shown("ticket: follower: name", follower.name)
    if len(follower.prepared) > MAX_PREPARED:
        raise InvalidRequest(f"ticket: follower: more than {MAX_PREPARED} versions are prepared")
    for version in (follower.table_version, *follower.prepared):
        if version < 1:
            raise InvalidRequest(f"ticket: follower: {version} is below 1, the first version")


def predicate_of(
    filter_: Sequence[Sequence[Sequence[Any]]] | None,
    schema: pa.Schema,
    pause: Callable[[], None] = lambda: None,
) -> Predicate:
    """Return the predicate that a ticket's filter stands for in a table of this schema.

    Args:
        pause: is called between two alternatives.

    Raises:
        InvalidRequest: unknown column or operator, a value that is not of the column's type, or
            more terms than the ticket's limits allow.
    """
    if isinstance(filter_, LongFilter):
        filter_.check(pause)
    try:
        return parse_predicate(filter_, schema, pause)
    except BadFilter as exc:
        raise InvalidRequest(str(exc)) from exc


def refuse_flight_sql(body: bytes) -> None:
    """Raise :class:`NotAvailable` where a ticket or a command is a protobuf of Flight SQL."""
    _, found, name = body[:_HEAD_BYTES].partition(_FLIGHT_SQL)
    if found:
        word = re.match(rb"\w*", name)
        assert word is not None, "it may be empty"
        raise no_flight_sql(word[0].decode())


def no_flight_sql(name: str) -> NotAvailable:
    """Return the error for a client that speaks Flight SQL: a driver of JDBC, ODBC or ADBC."""
    return NotAvailable(
        f"Flight SQL is not available, and {name} is of it: query by DoGet with a JSON ticket,"
        " write by DoPut with a path or a JSON command"
    )


def encode_ticket(ticket: Ticket) -> bytes:
    """Return the bytes that :func:`parse_ticket` reads back."""
    return _encode(ticket)
