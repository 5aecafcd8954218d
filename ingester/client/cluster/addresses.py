"""Several daemons in the form in which a caller names them, and the DNS names behind them.

["a:8082", "b:8082"]      these daemons
"a:8082,b:8082"           the same
"dns+grpc://name:8082"    whatever A and AAAA records the name has, looked up again and again
"""

import socket
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from .. import arguments
from ..errors import InvalidRequest, Unreachable

DNS = "dns+"

Lookup = Callable[[str, int], Sequence[str]]
"""The IP addresses of a host; raises OSError."""


class Addresses(msgspec.Struct, frozen=True):
    """The daemons of one client. ``name`` is a DNS endpoint, ``grpc://name:8082``, or None."""

    endpoints: tuple[str, ...] = ()
    name: str | None = None

    @property
    def host(self) -> str | None:
        """The DNS name, which the daemons' certificates have; None where there is none."""
        return None if self.name is None else urlsplit(self.name).hostname

    def __str__(self) -> str:
        """Shows the endpoints as ``--endpoint`` takes them."""
        return ",".join(self.endpoints) if self.name is None else f"{DNS}{self.name}"


def sole(endpoint: Any) -> Any:
    """The one endpoint of a list of one; whatever else it is, as it is."""
    if isinstance(endpoint, str) or not isinstance(endpoint, Sequence):
        return endpoint
    one = len(endpoint) == 1 and isinstance(endpoint[0], str)
    return endpoint[0] if one else endpoint


def names_several(endpoint: Any) -> bool:
    """Whether an ``endpoint`` is for a cluster's client: a DNS name, text with commas, or a list.

    A list of one names what its one text names.
    """
    endpoint = sole(endpoint)
    if isinstance(endpoint, str):
        return "," in endpoint or endpoint.startswith(DNS)
    return isinstance(endpoint, Sequence)


def addresses_of(endpoint: Any, scheme: str) -> Addresses:
    """The daemons that a caller names.

    Args:
        scheme: that of endpoints without one.

    Raises:
        InvalidRequest: none is named, or one is no address of a daemon's Flight port.
    """
    endpoint = sole(endpoint)
    if isinstance(endpoint, str) and endpoint.startswith(DNS):
        if "," in endpoint:
            raise InvalidRequest(
                f"endpoint {endpoint!r}: a DNS name stands alone; its records are the daemons"
            )
        return Addresses(name=arguments.endpoint(endpoint.removeprefix(DNS), scheme))
    given = endpoint.split(",") if isinstance(endpoint, str) else list(endpoint)
    if any(isinstance(each, str) and each.startswith(DNS) for each in given):
        raise InvalidRequest(
            f"endpoint {endpoint!r}: a DNS name stands alone; its records are the daemons"
        )
    named = [each.strip() if isinstance(each, str) else each for each in given]
    if not named or any(each == "" for each in named):
        raise InvalidRequest(
            f"endpoint {endpoint!r} names no daemon in one of its places: expected"
            " ['grpc://a:8082', 'grpc://b:8082'], or text with commas between"
        )
    return Addresses(tuple(dict.fromkeys(arguments.endpoint(each, scheme) for each in named)))


def resolved(name: str, lookup: Lookup | None = None) -> list[str]:
    """The endpoints behind a DNS endpoint, one per record, sorted.

    Raises:
        Unreachable: the name has no record now.
    """
    parts = urlsplit(name)
    assert parts.hostname is not None and parts.port is not None
    try:
        found = sorted({*(lookup or _records)(parts.hostname, parts.port)})
    except OSError as exc:
        raise Unreachable(f"endpoint {DNS}{name}: the name cannot be looked up: {exc}") from exc
    if not found:
        raise Unreachable(f"endpoint {DNS}{name}: the name has no address")
    hosts = [f"[{each}]" if ":" in each else each for each in found]
    return [f"{parts.scheme}://{host}:{parts.port}" for host in hosts]


def _records(host: str, port: int) -> Sequence[str]:
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
