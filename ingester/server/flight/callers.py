"""Middleware that reads a call's bearer token before its handler runs.

DoPut, DoExchange and GetSchema are refused here: DoPut before any of the stream is read, GetSchema
because pyarrow drops the status of its handler's errors. The handlers of the other methods refuse
by themselves, as they know the peer, which the audit log records.

A handler takes its permit from :func:`permit_of` only; without middleware nothing is permitted
(tests/server/auth/test_every_need).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.flight as fl

from ingester.errors import Unauthenticated
from ingester.server.auth.access import Access, Permit
from ingester.server.auth.rights import NOBODY
from ingester.server.flight.refusals import flight_error

KEY = "caller"
_AT_ONCE = {
    fl.FlightMethod.DO_PUT: "put",
    fl.FlightMethod.DO_EXCHANGE: "exchange",
    fl.FlightMethod.GET_SCHEMA: "schema",
}


class _Admitted(fl.ServerMiddleware):  # type: ignore[misc]
    """The permit of a call, or why it has none, for its handler."""

    def __init__(self, found: Permit | Unauthenticated) -> None:
        self.found = found


class CallerMiddleware(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Admits callers, or refuses them.

    Args:
        access: who may do what.
        refused: is told the ``code`` of what a caller is refused for before its handler runs.
    """

    def __init__(self, access: Access, refused: Callable[[str], object]) -> None:
        super().__init__()
        self._access = access
        self._refused = refused

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Admitted:
        """Read the call's token."""
        try:
            return _Admitted(self._access.admit(headers.get("authorization", ())))
        except Unauthenticated as exc:
            asked = _AT_ONCE.get(info.method)
            if asked is None:
                return _Admitted(exc)
            self._refused("unauthenticated")
            self._access.note_refusal(exc, NOBODY, "", asked)
            raise flight_error(exc) from None
        except Exception as exc:
            raise flight_error(exc) from None


def middleware(access: Access, refused: Callable[[str], object]) -> dict[str, CallerMiddleware]:
    """Return the middleware of a server; none where nobody needs a token."""
    return {KEY: CallerMiddleware(access, refused)} if access.enabled else {}


def permit_of(context: Any, access: Access, asked: str) -> Permit:
    """Return the permit of a call. Raises :class:`Unauthenticated` where there is none."""
    if not access.enabled:
        return access.nobody(context.peer())
    held = context.get_middleware(KEY)
    found = Unauthenticated("the call has no caller") if held is None else held.found
    if isinstance(found, Unauthenticated):
        access.note_refusal(found, NOBODY, context.peer(), asked)
        raise found
    permit: Permit = found
    permit.peer = context.peer()
    return permit
