"""The default namespace of a client: a header, or an option of its session.

    header ``schema``       ADBC: ``adbc.flight.sql.rpc.call_header.schema``; JDBC: ``?schema=shop``
    SetSessionOptions       answered with a cookie, which the client sends with every later call

The cookie holds the option itself, so the daemon keeps no sessions, and any daemon understands it.
A client that drops cookies would lose the option without a word: it is refused. GetSqlInfo, which
drivers ask for first, gives them a cookie to show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingester.errors import BadRequest
from ingester.protobuf import bytes_field, varint_field
from ingester.schema.limits import check_table_name
from ingester.server.flight.callers import headers_of
from ingester.server.flight.sql import SqlCall
from ingester.server.flight_sql.messages import Message
from ingester.server.flight_sql.metadata import CATALOG

HEADER = "schema"
_COOKIE, _SHOWN = "ingester_schema", "ingester_cookies"
_INVALID_NAME, _INVALID_VALUE = 1, 2
_CLOSED = 1


def default_namespace(context: Any) -> str | None:
    """Return the namespace of table names without one; None if the client has not named it.

    Raises:
        BadRequest: it is not a name.
    """
    headers = headers_of(context)
    named = _cookies(headers.get("cookie", ())).get(_COOKIE) or next(
        iter(headers.get(HEADER, ())), ""
    )
    return check_table_name("namespace", named) if named else None


def show_cookie(context: Any) -> None:
    """Give the client a cookie: whether it comes back tells that the client keeps cookies."""
    context.add_header("set-cookie", f"{_SHOWN}=1")


def set_options(call: SqlCall, body: bytes) -> list[bytes]:
    """Answer SetSessionOptions. ``catalog`` has one value; ``schema`` is the default namespace.

    Raises:
        BadRequest: the client keeps no cookies.
    """
    errors: dict[str, int] = {}
    for name, value in _options(body).items():
        if name == "catalog":
            if value != CATALOG:
                errors[name] = _INVALID_VALUE
        elif name != "schema":
            errors[name] = _INVALID_NAME
        elif not _set_namespace(call.context, value):
            errors[name] = _INVALID_VALUE
    return [b"".join(_entry(name, varint_field(1, error)) for name, error in errors.items())]


def get_options(call: SqlCall, body: bytes) -> list[bytes]:
    """Answer GetSessionOptions; ``schema`` is empty without a default namespace."""
    found = {"catalog": CATALOG, "schema": default_namespace(call.context) or ""}
    return [b"".join(_entry(name, bytes_field(1, value)) for name, value in found.items())]


def close(call: SqlCall, body: bytes) -> list[bytes]:
    """Answer CloseSession: the client forgets its options."""
    call.context.add_header("set-cookie", f"{_COOKIE}=; Max-Age=0")
    return [varint_field(1, _CLOSED)]


def _set_namespace(context: Any, value: str | None) -> bool:
    if not value:
        context.add_header("set-cookie", f"{_COOKIE}=; Max-Age=0")
        return True
    try:
        check_table_name("namespace", value)
    except BadRequest:
        return False
    if not headers_of(context).get("cookie"):
        raise BadRequest(
            "the option schema needs a client that keeps cookies: set"
            " adbc.flight.sql.rpc.with_cookie_middleware to true, or send the header 'schema'"
        )
    context.add_header("set-cookie", f"{_COOKIE}={value}")
    return True


def _options(body: bytes) -> dict[str, str | None]:
    """Return the options of a request; None for one that is erased or not a text."""
    found: dict[str, str | None] = {}
    for entry in Message("SetSessionOptionsRequest", body).blobs(1):
        option = Message("SetSessionOptionsRequest", entry)
        value = Message("SessionOptionValue", option.blob(2))
        is_erased = not value.data
        found[option.text(1)] = None if is_erased else value.text(1) if value.has(1) else "\n"
    return found


def _entry(name: str, value: bytes) -> bytes:
    return bytes_field(1, bytes_field(1, name) + bytes_field(2, value))


def _cookies(headers: Sequence[str]) -> dict[str, str]:
    pairs = (part.strip().partition("=") for header in headers for part in header.split(";"))
    return {name: value.strip('"') for name, _, value in pairs}
