"""The ticket of a query: the JSON body of DoGet, checked before any work is done.

A filter over :data:`LONG_BYTES` stays JSON (:class:`LongFilter`) and is parsed one alternative at a
time with pauses: parsed at once, 100,000 alternatives would block every other thread for 40 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import msgspec
import pyarrow as pa

from ingester.errors import BadRequest, limit_facts
from ingester.schema.limits import check_shown
from ingester.shown_text import shown_names
from persist.predicate.literals import number
from persist.predicate.parse import BadFilter, parse_predicate
from persist.predicate.predicate import Predicate

_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_alternative = msgspec.json.Decoder(list[list[Any]], float_hook=number).decode


class LongFilter(Sequence[list[list[Any]]]):
    """A long filter, parsed alternative by alternative. Only its JSON is kept.

    Args:
        raw: the filter's JSON.
        terms: ``query.max_filter_terms``, the most comparisons and values allowed.

    Raises:
        BadRequest: not a list, or too many alternatives.
    """

    def __init__(self, raw: msgspec.Raw, terms: int) -> None:
        try:
            self.alternatives = _split(raw)
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise BadRequest(f"ticket: filter: {exc}") from exc
        self._most = terms
        if len(self.alternatives) > terms:
            raise too_many_terms(len(self.alternatives), terms)

    def __len__(self) -> int:
        return len(self.alternatives)

    @overload
    def __getitem__(self, index: int) -> list[list[Any]]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[list[Any]]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [_alternative(raw) for raw in self.alternatives[index]]
        return _alternative(self.alternatives[index])

    def __iter__(self) -> Iterator[list[list[Any]]]:
        """Yield the alternatives in order.

        Raises:
            BadRequest: an alternative is malformed.
        """
        return map(_alternative, self.alternatives)

    def check(self, pause: Callable[[], None]) -> None:
        """Parse everything once and check the number of terms.

        Counting takes a tenth of the time of building comparisons, so an oversized filter is
        refused early.

        Args:
            pause: called between two alternatives.

        Raises:
            BadRequest: an alternative is malformed, or there are too many terms.
        """
        terms = 0
        for alternative in self:
            pause()
            terms += count_terms(alternative)
            if terms > self._most:
                raise too_many_terms(terms, self._most)


def count_terms(alternative: Sequence[Sequence[Any]]) -> int:
    """Return the number of comparisons in an alternative; each value of a list counts as one."""
    count = 0
    for term in alternative:
        is_list = len(term) == 3 and isinstance(term[2], list)
        count += max(1, len(term[2])) if is_list else 1
    return count


def too_many_terms(terms: int, most: int) -> BadRequest:
    """Return the error for a filter with too many terms."""
    return BadRequest(
        f"filter: {terms} comparisons and values; at most {most} are allowed"
        " (query.max_filter_terms); split the query into several with fewer of them",
        details=limit_facts("query.max_filter_terms", most, terms),
    )


def _alternative(raw: msgspec.Raw) -> list[list[Any]]:
    try:
        return _read_alternative(raw)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise BadRequest(f"ticket: filter: {exc}") from exc


Comparison = list[Any]
"""``[column, operator]`` or ``[column, operator, value]``."""


class After(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The position after which a live feed continues, as an earlier answer named it."""

    epoch: int
    sequence: int
    version: int | None = None
    """The manifest version of that answer; a different current version is reported at once."""
    ingester_id: str | None = None


class AskedBy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The follower that calls, if it can prepare announced table versions.

    Attributes:
        name: Distinguishes it from the table's other followers.
        table_version: The version that its readers see.
        prepared: Further versions that it has copied.
    """

    name: str
    table_version: int
    prepared: list[int] = []


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A query over one table; only namespace and table are required."""

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
        """Whether rows of a keyed table carry ``_op``."""
        return self.scope in ("buffered", "live")


@dataclass(frozen=True, slots=True)
class FilterLimits:
    """The limits ``query.max_filter_terms`` and ``query.max_filter_bytes``."""

    terms: int = 100_000
    nbytes: int = 8 << 20


MAX_NAME_BYTES = 256
MAX_PREPARED = 64
MAX_WAIT_S = 30
DEFAULT_WAIT_S = 10.0
"""Default time that a ``live`` call waits for something new, in seconds."""
# A filter's numbers keep their digits, for columns of decimals.
_decode = msgspec.json.Decoder(Ticket, float_hook=number).decode
_encode = msgspec.json.Encoder(
    enc_hook=lambda filter_: filter_.alternatives, decimal_format="number"
).encode

LONG_BYTES = 64 << 10
"""Size from which a ticket's filter is parsed with pauses."""
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
"""A ticket with its filter unparsed."""
_decode_unread = msgspec.json.Decoder(_Unread).decode


def parse_ticket(body: bytes, limits: FilterLimits = FilterLimits()) -> Ticket:
    """Parse a ticket.

    Raises:
        BadRequest: not JSON, an unknown or missing field, a wrong type, an impossible
            combination, or a limit exceeded. The message names the field.
    """
    if len(body) > limits.nbytes:
        raise BadRequest(
            f"ticket has {len(body)} B; at most {limits.nbytes} are allowed"
            " (query.max_filter_bytes); split the query into several with fewer filter values",
            details=limit_facts("query.max_filter_bytes", limits.nbytes, len(body)),
        )
    try:
        ticket = _read(body, limits)
    except msgspec.ValidationError as exc:
        raise BadRequest(f"ticket: {exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadRequest(f"ticket is not a JSON object: {exc}") from exc
    if ticket.limit is not None and ticket.limit < 0:
        raise BadRequest(f"ticket: limit {ticket.limit} is negative")
    if ticket.scope == "all" and ticket.version is not None:
        raise BadRequest(
            "ticket: scope 'all' reads the newest state and takes no version; use scope"
            " 'version' or 'buffered'"
        )
    if ticket.scope == "version" and ticket.version is None:
        raise BadRequest("ticket: scope 'version' needs a version")
    if ticket.version is not None and ticket.version < 1:
        raise BadRequest(f"ticket: version {ticket.version} is less than 1")
    if ticket.table_version is not None and ticket.table_version < 1:
        raise BadRequest(f"ticket: table_version {ticket.table_version} is less than 1")
    _check_live(ticket)
    if ticket.columns is not None and len(set(ticket.columns)) != len(ticket.columns):
        raise BadRequest(f"ticket: columns [{shown_names(ticket.columns)}] has a column twice")
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
                raise BadRequest(f"ticket: {name} is only valid with scope 'live'")
        return
    if ticket.limit is not None:
        raise BadRequest("ticket: scope 'live' takes no limit, because it sends whole operations")
    if ticket.wait_s is not None and not 0 <= ticket.wait_s <= MAX_WAIT_S:
        raise BadRequest(f"ticket: wait_s {ticket.wait_s:g} is not between 0 and {MAX_WAIT_S}")
    after = ticket.after
    if after is not None and (after.epoch < 0 or after.sequence < 0):
        raise BadRequest("ticket: after: epoch and sequence must not be negative")
    if ticket.follower is not None:
        _check_follower(ticket.follower)


def _check_follower(follower: AskedBy) -> None:
    if not 0 < len(follower.name.encode()) <= MAX_NAME_BYTES:
        raise BadRequest(f"ticket: follower: name must have 1 to {MAX_NAME_BYTES} bytes")
    check_shown("ticket: follower: name", follower.name)
    if len(follower.prepared) > MAX_PREPARED:
        raise BadRequest(f"ticket: follower: more than {MAX_PREPARED} prepared versions")
    for version in (follower.table_version, *follower.prepared):
        if version < 1:
            raise BadRequest(f"ticket: follower: version {version} is less than 1")


def predicate_of(
    filter_: Sequence[Sequence[Sequence[Any]]] | None,
    schema: pa.Schema,
    pause: Callable[[], None] = lambda: None,
) -> Predicate:
    """Return the predicate of a ticket's filter for a table with this schema.

    Args:
        pause: called between two alternatives.

    Raises:
        BadRequest: unknown column or operator, a value that does not fit the column's type, or
            too many terms.
    """
    if isinstance(filter_, LongFilter):
        filter_.check(pause)
    try:
        return parse_predicate(filter_, schema, pause)
    except BadFilter as exc:
        raise BadRequest(str(exc)) from exc


def encode_ticket(ticket: Ticket) -> bytes:
    """Return the bytes that :func:`parse_ticket` parses."""
    return _encode(ticket)
