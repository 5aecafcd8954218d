"""The check of HTTP clients' certificates, where ``tls.client_ca`` asks for them.

Law of this file: a probe of health has none to show, so the handshake lets it in; everything else
is refused before its route is looked at. A handshake that takes up a session of before does not
look at the end of the certificate, and a connection may outlive it: each request does.
"""

from __future__ import annotations

import time

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN = ("/health/live", "/health/ready")
"""The paths that are answered without a certificate."""


class AskForCertificate:
    """An ASGI application before another one, which it lets no client without a certificate to."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        end = scope.get("state", {}).get("client_certificate")
        good = end is not None and time.time() <= end
        if scope["type"] != "http" or good or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        problem = "no client certificate was shown, and tls.client_ca asks for one"
        if end is not None:
            problem = "the client certificate has expired: connect with another one"
        body = {"code": "unauthenticated", "message": problem}
        headers = {"Cache-Control": "no-store", "Connection": "close"}
        refusal = Response(msgspec.json.encode(body), 403, headers, "application/json")
        await refusal(scope, receive, send)
