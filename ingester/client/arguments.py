"""Checks the arguments of callers before anything is sent; errors say what to pass. Pure."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from .credentials import ConnectionOptions
from .errors import InvalidRequest
from .retry import RetryPolicy

MAX_SEQUENCE = 2**63 - 1
SCHEMES = ("grpc", "grpc+tcp", "grpc+tls", "grpc+unix")
_ADDRESS = "an address such as 'grpc://127.0.0.1:8082'"


def text(what: str, value: Any) -> str:
    """A non-empty text."""
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{what}: expected a name, not {value!r}")
    return value


def names(what: str, value: Any, example: str) -> list[str] | None:
    """A list of texts, or None."""
    if value is None:
        return None
    if isinstance(value, str):
        raise InvalidRequest(f"{what}={value!r}: expected a list, such as {what}=[{value!r}]")
    listed = list(value) if isinstance(value, Iterable) else [value]
    if isinstance(value, Mapping) or not all(isinstance(name, str) for name in listed):
        raise InvalidRequest(
            f"{what}={value!r}: expected a list of names, such as {what}={example}"
        )
    return listed


def one_of(what: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the choices, and suggest the closest."""
    if value not in choices:
        close = get_close_matches(value, choices, 1) if isinstance(value, str) else []
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise InvalidRequest(f"{what}={value!r}: expected one of {', '.join(choices)}{meant}")


def ack_level(value: Any) -> None:
    """Refuse a value that is neither a level of acknowledgements nor None."""
    if value is not None:
        one_of("ack", value, ("disk", "store"))


def integer(what: str, value: Any, least: int, most: int = MAX_SEQUENCE) -> int | None:
    """An integer in a range, or None."""
    if value is None:
        return None
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise InvalidRequest(f"{what}={value!r}: expected an integer")
    number: int = value.__index__()  # numpy's as well
    if not least <= number <= most:
        limit = f"at least {least}" if number < least else f"at most {most}"
        raise InvalidRequest(f"{what}={value!r}: expected {limit}")
    return number


def seconds(what: str, value: Any) -> float:
    """A positive duration in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidRequest(f"{what}={value!r}: expected seconds, such as {what}=30.0")
    return float(value)


def policy(value: Any) -> RetryPolicy:
    """A retry policy."""
    if not isinstance(value, RetryPolicy):
        raise InvalidRequest(
            f"retry={value!r}: expected a RetryPolicy, such as RetryPolicy(for_s=5)"
        )
    return value


def schema(value: Any) -> pa.Schema:
    """An Arrow schema, possibly from an object with Arrow's C data interface."""
    if isinstance(value, pa.Schema):
        return value
    if isinstance(getattr(value, "schema", None), pa.Schema):
        kind = type(value).__name__
        raise InvalidRequest(f"schema: expected a schema, not a {kind}: pass its .schema")
    if isinstance(value, Mapping):
        raise InvalidRequest(
            "schema: expected a pyarrow.Schema, not a dict:"
            " pyarrow.schema({'time': pyarrow.timestamp('us', 'UTC'), 'host': pyarrow.string()})"
        )
    if hasattr(value, "__arrow_c_schema__"):
        return pa.schema(value)
    raise InvalidRequest(
        f"schema: expected a pyarrow.Schema, such as pyarrow.schema({{'v': pyarrow.float64()}}),"
        f" not a {type(value).__name__}"
    )


def options(value: Any) -> ConnectionOptions:
    """The options of a connection; the defaults for None."""
    if value is None:
        return ConnectionOptions()
    if not isinstance(value, ConnectionOptions):
        raise InvalidRequest(
            f"options: expected ConnectionOptions(tls_ca=…, token_file=…), not a"
            f" {type(value).__name__}"
        )
    return value


def endpoint(value: Any, default: str = "grpc") -> str:
    """The address of a daemon with its scheme, by default ``default``.

    Raises:
        InvalidRequest: It is not the address of a Flight port.
    """
    if not isinstance(value, str):
        raise InvalidRequest(f"endpoint: expected {_ADDRESS}, not {value!r}")
    whole = value if "://" in value else f"{default}://{value}"
    scheme = whole.partition("://")[0]
    if scheme in ("http", "https"):
        raise InvalidRequest(
            f"endpoint {value!r}: the client uses the Flight port, not the HTTP port:"
            f" {'grpc+tls' if scheme == 'https' else 'grpc'}://HOST:PORT with the port of"
            " `flight.listen` (8082 if not set)"
        )
    if scheme not in SCHEMES:
        raise InvalidRequest(f"endpoint {value!r}: the scheme must be one of {', '.join(SCHEMES)}")
    if scheme == "grpc+unix":
        return whole
    try:
        parts = urlsplit(whole)
    except ValueError as exc:
        raise InvalidRequest(f"endpoint {value!r}: {exc}: expected {_ADDRESS}") from exc
    if parts.netloc.count(":") > 1 and "[" not in parts.netloc:
        raise InvalidRequest(
            f"endpoint {value!r}: an IPv6 address needs brackets, such as 'grpc://[::1]:8082'"
        )
    try:
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise InvalidRequest(f"endpoint {value!r}: {exc}: expected {_ADDRESS}") from exc
    if not host or re.search(r"\s", whole):
        raise InvalidRequest(f"endpoint {value!r} names no host: expected {_ADDRESS}")
    if not port:
        raise InvalidRequest(
            f"endpoint {value!r} names no port; a daemon listens on 8082 unless `flight.listen` is"
            f" set: '{scheme}://{parts.netloc.rstrip(':')}:8082'"
        )
    return whole
