"""The entrance of HTTP: whether a request was meant for this daemon, and its caller's right.

Law of this file: no route is answered but through :meth:`Entrance.behind`. ``/health`` is answered
to everybody, by whatever name: load balancers and probes have names of their own, and learn
nothing.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable, Collection

import trio
from starlette.requests import Request
from starlette.responses import Response

from ingester.config.settings import HttpSettings, split_address
from ingester.errors import Forbidden, OverQuota, Unauthenticated, kind_of
from ingester.server.auth.access import Access, Permit, bearer_of
from ingester.server.auth.hosts import Hosts
from ingester.server.auth.rights import NOBODY
from ingester.server.auth.tokens import PREFIX

Handler = Callable[[Request], Awaitable[Response]]
_NAMELESS = "/health/"
CHECKS = 4
"""So many of a provider's tokens are checked at a time; they may wait for its keys."""


class TurnedAway(Exception):
    """A request that is not answered: status, code, message, headers."""

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = headers or {}


class Entrance:
    """Lets requests in. On the loop.

    Args:
        access: who may do what; by default everybody everything.
        names: those by which this daemon may be asked, beside the loopback's and addresses.
    """

    def __init__(self, access: Access | None = None, names: Collection[str] = ()) -> None:
        self._access = access or Access()
        self._hosts = Hosts(names)
        # Strangers must not take the threads that flushes need.
        self._checks = trio.CapacityLimiter(CHECKS)

    def behind(self, path: str, handle: Handler) -> Handler:
        """Put a route's handler behind the entrance; it finds ``request.state.sees``.

        It raises :class:`TurnedAway` for those whom it does not let in.
        """
        asked = f"http {path}"

        async def answer(request: Request) -> Response:
            if not path.startswith(_NAMELESS):
                self._check_host(request)
            permit = await self._permit(request, asked)
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
                f"this daemon is not asked by the name {shown}: name it in http.hosts if it is",
            )

    async def _permit(self, request: Request, asked: str) -> Permit:
        access, peer = self._access, _peer(request)
        try:
            permit = access.nobody(peer)
            if access.enabled and not access.is_open(asked):
                permit = await self._admitted(request, peer, asked)
            named = request.scope.get("path_params", {})
            permit.require(asked, named.get("namespace"), named.get("table"))
        except Unauthenticated as exc:
            challenge = {"WWW-Authenticate": 'Bearer realm="ingester"'}
            raise TurnedAway(401, kind_of(exc).code, exc.message, challenge) from exc
        except Forbidden as exc:
            raise TurnedAway(403, kind_of(exc).code, exc.message) from exc
        except OverQuota as exc:
            wait = {"Retry-After": str(math.ceil(exc.retry_after_s or 1))}
            raise TurnedAway(429, kind_of(exc).code, exc.message, wait) from exc
        return permit

    async def _admitted(self, request: Request, peer: str, asked: str) -> Permit:
        header = request.headers.getlist("authorization")
        try:
            if bearer_of(header).startswith(PREFIX):
                return self._access.admit(header, peer)
            # A provider's token is dear to check, and its keys may have to be loaded.
            return await trio.to_thread.run_sync(
                self._access.admit, header, peer, limiter=self._checks
            )
        except Unauthenticated as exc:
            self._access.note_refusal(exc, NOBODY, peer, asked)
            raise


def own_names(settings: HttpSettings) -> list[str]:
    """Return the names of this machine, and those of the settings."""
    host, _ = split_address(settings.listen)
    return [*settings.hosts, host, socket.gethostname()]


def _peer(request: Request) -> str:
    client = request.client
    return "" if client is None else f"{client.host}:{client.port}"
