"""Where a daemon is, checked before anything is sent: a wrong address is told at once. Pure."""

import re
from typing import Any
from urllib.parse import urlsplit

from .errors import InvalidRequest

SCHEMES = ("grpc", "grpc+tcp", "grpc+tls", "grpc+unix")
_EXAMPLE = "as in 'grpc://127.0.0.1:8082'"


def parsed(endpoint: Any) -> str:
    """``endpoint`` with its scheme, which may be left out.

    Raises:
        InvalidRequest: not the address of a daemon's Flight port.
    """
    if not isinstance(endpoint, str):
        raise InvalidRequest(f"endpoint: expected text, {_EXAMPLE}, not {endpoint!r}")
    whole = endpoint if "://" in endpoint else f"grpc://{endpoint}"
    scheme = whole.partition("://")[0]
    if scheme in ("http", "https"):
        raise InvalidRequest(
            f"endpoint {endpoint!r}: the client speaks to the Flight port, not to the HTTP port:"
            f" {'grpc+tls' if scheme == 'https' else 'grpc'}://HOST:PORT with the port of"
            " `flight.listen` (8082 if not set)"
        )
    if scheme not in SCHEMES:
        raise InvalidRequest(f"endpoint {endpoint!r}: the scheme is one of {', '.join(SCHEMES)}")
    if scheme == "grpc+unix":
        return whole
    try:
        parts = urlsplit(whole)
    except ValueError as exc:
        raise InvalidRequest(f"endpoint {endpoint!r}: {exc}, {_EXAMPLE}") from exc
    if parts.netloc.count(":") > 1 and "[" not in parts.netloc:
        raise InvalidRequest(
            f"endpoint {endpoint!r}: an IPv6 address stands in brackets, as in 'grpc://[::1]:8082'"
        )
    try:
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise InvalidRequest(f"endpoint {endpoint!r}: {exc}, {_EXAMPLE}") from exc
    if not host or re.search(r"\s", whole):
        raise InvalidRequest(f"endpoint {endpoint!r} names no host, {_EXAMPLE}")
    if not port:
        raise InvalidRequest(
            f"endpoint {endpoint!r} names no port; a daemon listens on 8082 if `flight.listen` does"
            f" not say otherwise: '{scheme}://{parts.netloc.rstrip(':')}:8082'"
        )
    return whole
