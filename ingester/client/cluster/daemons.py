"""A client's knowledge of several daemons: addresses, order of preference, health and stores.

    ["a:8082", "b:8082"]      these daemons
    "a:8082,b:8082"           the same
    "dns+grpc://name:8082"    the A and AAAA records of the name, looked up repeatedly

Health is a circuit breaker per daemon:

    usable ──failed──▶ open until t ──t passes──▶ asked again ──answered──▶ usable
                          ▲                            │
                          └───────────failed───────────┘  (twice as long, up to MOST_S)

Each time is shortened by a random part, so that clients that lost a daemon together do not return
together. An open circuit is a preference: if all circuits are open, the one that closes first is
tried.

The daemons of a client must write to one store. Rows of another store belong to another table,
whatever its name; an answer from one store's files and another one's tail would be wrong. Each
daemon reports the id of its store; older daemons do not and are accepted.
"""

import hashlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import msgspec

from .. import arguments
from ..errors import ClientError, InvalidRequest, Unreachable

DNS = "dns+"
FIRST_S = 0.5
MOST_S = 30.0
ASK_AGAIN_S = 10.0
"""The pause after a daemon did not answer the question for its store."""

Lookup = Callable[[str, int], Sequence[str]]
"""The IP addresses of a host; raises OSError."""


class Addresses(msgspec.Struct, frozen=True):
    """The daemons of one client. ``name`` is a DNS endpoint, ``grpc://name:8082``, or None."""

    endpoints: tuple[str, ...] = ()
    name: str | None = None

    @property
    def host(self) -> str | None:
        """The DNS name, which the daemons' certificates have; None without one."""
        return None if self.name is None else urlsplit(self.name).hostname

    def __str__(self) -> str:
        """The endpoints in the form of ``--endpoint``."""
        return ",".join(self.endpoints) if self.name is None else f"{DNS}{self.name}"


def sole(endpoint: Any) -> Any:
    """The single endpoint of a list of one; any other value unchanged."""
    if isinstance(endpoint, str) or not isinstance(endpoint, Sequence):
        return endpoint
    one = len(endpoint) == 1 and isinstance(endpoint[0], str)
    return endpoint[0] if one else endpoint


def names_several(endpoint: Any) -> bool:
    """Whether ``endpoint`` names several daemons: a DNS name, text with commas, or a list.

    A list of one is equal to its element.
    """
    endpoint = sole(endpoint)
    if isinstance(endpoint, str):
        return "," in endpoint or endpoint.startswith(DNS)
    return isinstance(endpoint, Sequence)


def addresses_of(endpoint: Any, scheme: str) -> Addresses:
    """The daemons that a caller names.

    Args:
        scheme: The scheme of endpoints without one.

    Raises:
        InvalidRequest: No daemon is named, or one is not the address of a Flight port.
    """
    endpoint = sole(endpoint)
    if isinstance(endpoint, str) and endpoint.startswith(DNS):
        if "," in endpoint:
            raise _dns_among_others(endpoint)
        return Addresses(name=arguments.endpoint(endpoint.removeprefix(DNS), scheme))
    given = endpoint.split(",") if isinstance(endpoint, str) else list(endpoint)
    if any(isinstance(each, str) and each.startswith(DNS) for each in given):
        raise _dns_among_others(endpoint)
    named = [each.strip() if isinstance(each, str) else each for each in given]
    if not named or any(each == "" for each in named):
        raise InvalidRequest(
            f"endpoint {endpoint!r} names no daemon in one of its parts: expected"
            " ['grpc://a:8082', 'grpc://b:8082'], or text with commas"
        )
    return Addresses(tuple(dict.fromkeys(arguments.endpoint(each, scheme) for each in named)))


def _dns_among_others(endpoint: Any) -> InvalidRequest:
    return InvalidRequest(
        f"endpoint {endpoint!r}: a DNS name must be the only endpoint; its records are the daemons"
    )


def resolved(name: str, lookup: Lookup | None = None) -> list[str]:
    """The endpoints behind a DNS endpoint, one per record, sorted.

    Raises:
        Unreachable: The name has no record now.
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


def ranked(key: Sequence[str], members: Iterable[str]) -> list[str]:
    """The members in the key's order of preference, by rendezvous hashing.

    All clients compute the same order. If a daemon is removed, only the keys that preferred it
    move, each to its second choice; a new daemon only attracts the keys that prefer it.

    Args:
        key: For example ``("shop", "visits", "station-7")``.
        members: The daemons' endpoints; duplicates count once.
    """
    # Each part ends with a zero byte, which no name has: ("a", "bc") is not ("ab", "c").
    whole = b"".join(part.encode("utf-8", "surrogatepass") + b"\0" for part in key)
    return sorted(set(members), key=lambda member: (_weight(whole, member), member), reverse=True)


def _weight(key: bytes, member: str) -> bytes:
    return hashlib.blake2b(key + member.encode(), digest_size=8).digest()


class Circuit(msgspec.Struct):
    """The failures in a row of one daemon, the time of the next try, and the last error."""

    failures: int
    until: float
    error: ClientError


class Health:
    """The circuits of one client's daemons. The owner locks."""

    def __init__(self) -> None:
        self._open: dict[str, Circuit] = {}

    def failed(self, endpoint: str, error: ClientError, now: float, fraction: float) -> None:
        """Open the circuit, for longer each time. ``fraction`` is random in 0..1."""
        circuit = self._open.get(endpoint)
        if circuit is not None and now < circuit.until:
            circuit.error = error  # the same outage, reported by another call
            return
        failures = 1 if circuit is None else circuit.failures + 1
        grown = min(MOST_S, FIRST_S * 2.0 ** min(failures - 1, 30))
        delay_s = max(grown * (1 - fraction / 2), min(error.retry_after_s or 0.0, MOST_S))
        self._open[endpoint] = Circuit(failures, now + delay_s, error)

    def answered(self, endpoint: str) -> None:
        """Close the circuit."""
        self._open.pop(endpoint, None)

    def error(self, endpoint: str) -> ClientError | None:
        """The last error of a daemon with an open circuit; None for a usable one."""
        circuit = self._open.get(endpoint)
        return None if circuit is None else circuit.error

    def usable(self, endpoint: str) -> bool:
        """Whether the daemon's circuit is closed."""
        return endpoint not in self._open

    def due(self, now: float) -> list[str]:
        """The daemons with open circuits that may be tried again."""
        return [each for each, circuit in self._open.items() if circuit.until <= now]

    def next_due(self) -> float | None:
        """When the first of them may be tried again; None if no circuit is open."""
        return min((circuit.until for circuit in self._open.values()), default=None)

    def order(self, endpoints: Sequence[str]) -> list[str]:
        """The usable endpoints in the given order, then the others, the soonest first."""
        down = [each for each in endpoints if each in self._open]
        down.sort(key=lambda each: self._open[each].until)
        return [each for each in endpoints if each not in self._open] + down

    def keep(self, endpoints: Sequence[str]) -> None:
        """Forget all other daemons."""
        for gone in self._open.keys() - {*endpoints}:
            del self._open[gone]


class Stores:
    """The store of each daemon, as far as it is known. The owner locks."""

    def __init__(self) -> None:
        self._ids: dict[str, str | None] = {}
        """By endpoint; None for an older daemon, which does not report one."""
        self._not_before: dict[str, float] = {}
        """When to ask an endpoint again; infinity while its answer holds."""

    def reported(self, endpoint: str, store: str | None) -> None:
        """Record a daemon's answer."""
        self._ids[endpoint] = store
        self._not_before[endpoint] = float("inf")

    def knows(self, endpoint: str) -> bool:
        """Whether an endpoint has answered since it was last unreachable."""
        return self._not_before.get(endpoint) == float("inf")

    def silent(self, endpoint: str, now: float) -> None:
        """Record that a daemon has not answered."""
        self._not_before[endpoint] = now + ASK_AGAIN_S

    def was_unreachable(self, endpoint: str) -> None:
        """Ask the daemon again: it may be another one. Its last answer holds until then."""
        self._not_before.pop(endpoint, None)

    def due(self, endpoints: Sequence[str], now: float) -> list[str]:
        """The endpoints to ask."""
        return [each for each in endpoints if self._not_before.get(each, now) <= now]

    def differ(self, endpoints: Sequence[str]) -> InvalidRequest | None:
        """The error if two of the endpoints are known to have different stores."""
        known = {each: store for each in endpoints if (store := self._ids.get(each)) is not None}
        return different(known)


def different(stores: Mapping[str, str]) -> InvalidRequest | None:
    """The error if two daemons have different stores; ``stores`` has ids by endpoint."""
    for (one, ones), (other, others) in pairwise(stores.items()):
        if ones != others:
            return InvalidRequest(
                f"{one} writes to store {ones} and {other} to store {others}: the daemons of a"
                " client must share a store. Name daemons of one store, or correct `store` in their"
                " settings, and make a new client"
            )
    return None
