"""Checks of an HTTP request: its Host header, and the right of its caller.

A page of another site can point its own name at this daemon's address (DNS rebinding), and then
reads the answers as its own. Its browser still sends that name as Host. Requests for an IP address
need no setting: no page of another site has one. ``/health`` is answered for any name: load
balancers and probes have names of their own, and learn nothing.

Every route goes through :meth:`Entrance.behind` (``tests/server/auth/test_every_need.py``).
"""

from __future__ import annotations

import ipaddress
import math
import socket
from collections.abc import Awaitable, Callable, Collection

import trio
from starlette.requests import Request
from starlette.responses import Response

from ingester.config.settings import HttpSettings, split_address
from ingester.errors import (
    AccessDenied,
    IngesterError,
    NotAuthenticated,
    OverQuota,
    Status,
    kind_of,
)
from ingester.server.auth.access import Access, Permit, bearer_of
from ingester.server.auth.rights import NOBODY
from ingester.server.auth.tokens import PREFIX

Handler = Callable[[Request], Awaitable[Response]]
_NAMELESS = "/health/"
CHECKS = 4
"""JWTs that are checked at a time; a check may wait for the provider's keys."""


class TurnedAway(Exception):
    """A refused request: status, code, message, headers."""

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = headers or {}


GONE = (499, "gone", "the client has disconnected")
"""Counted, and read by nobody."""
_STATUSES: dict[Status, int] = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


def turned_away(error: IngesterError) -> TurnedAway:
    """Return the refusal of a request that failed with one of the errors of every protocol."""
    kind, headers = kind_of(error), dict[str, str]()
    status = 429 if isinstance(error, OverQuota) else _STATUSES[kind.status]
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="ingester"'
    if status in (429, 503):
        headers["Retry-After"] = str(math.ceil(error.retry_after_s or 1))
    return TurnedAway(status, kind.code, error.message, headers)


class Entrance:
    """Admits requests. On the loop.

    Args:
        access: checks rights; by default everybody may do everything.
        names: accepted host names, besides loopback names and addresses.
    """

    def __init__(self, access: Access | None = None, names: Collection[str] = ()) -> None:
        self._access = access or Access()
        self._hosts = Hosts(names)
        # Strangers must not take the threads that flushes need.
        self._checks = trio.CapacityLimiter(CHECKS)

    def behind(self, path: str, handle: Handler) -> Handler:
        """Return a handler that checks a request first.

        ``handle`` finds the caller's permit in ``request.state.permit``, and what it sees in
        ``request.state.sees``.

        It raises :class:`TurnedAway` for a refused request.
        """
        asked = f"http {path}"

        async def answer(request: Request) -> Response:
            if not path.startswith(_NAMELESS):
                self._check_host(request)
            permit = await self._permit(request, asked)
            request.state.permit = permit
            request.state.sees = None if self._access.is_open(asked) else permit.sees(asked)
            return await handle(request)

        return answer

    def _check_host(self, request: Request) -> None:
        host = request.headers.get("host", "")
        if not self._hosts.allow(host):
            shown = ascii(host[:128])
            raise TurnedAway(
                421,
                "invalid",
                f"host name {shown} is not accepted; if it is the daemon's, add it to http.hosts",
            )

    async def _permit(self, request: Request, asked: str) -> Permit:
        access, peer = self._access, _peer(request)
        try:
            permit = access.nobody(peer)
            if access.enabled and not access.is_open(asked):
                permit = await self._admitted(request, peer, asked)
            named = request.scope.get("path_params", {})
            permit.require(asked, named.get("namespace"), named.get("table"))
        except (NotAuthenticated, AccessDenied, OverQuota) as exc:
            raise turned_away(exc) from exc
        return permit

    async def _admitted(self, request: Request, peer: str, asked: str) -> Permit:
        header = request.headers.getlist("authorization")
        try:
            if bearer_of(header).startswith(PREFIX):
                return self._access.admit(header, peer)
            # A JWT is expensive to check, and the provider's keys may have to be loaded.
            return await trio.to_thread.run_sync(
                self._access.admit, header, peer, limiter=self._checks
            )
        except NotAuthenticated as exc:
            self._access.note_refusal(exc, NOBODY, peer, asked)
            raise


def own_names(settings: HttpSettings) -> list[str]:
    """Return the names of this machine and those of the settings."""
    host, _ = split_address(settings.listen)
    return [*settings.hosts, host, socket.gethostname()]


def _peer(request: Request) -> str:
    client = request.client
    return "" if client is None else f"{client.host}:{client.port}"


class Hosts:
    """The accepted host names. Pure.

    Args:
        names: those of the settings and this machine's; a leading dot includes all names below it.
    """

    def __init__(self, names: Collection[str]) -> None:
        lower = {name.lower().rstrip(".") for name in names if name}
        self._names = {"localhost"} | {name for name in lower if not name.startswith(".")}
        self._below = (".localhost", *sorted(name for name in lower if name.startswith(".")))

    def allow(self, host: str) -> bool:
        """Return whether a Host header is an address or one of the names."""
        name = _name_of(host)
        if _is_address(name):
            return True
        return name in self._names or name.endswith(self._below)


def _name_of(host: str) -> str:
    """Return the name or address without the port."""
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.rpartition(":")[0].lower().rstrip(".") if ":" in host else host.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
