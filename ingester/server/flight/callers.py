"""Who calls: pyarrow's middleware reads the bearer's token before a handler runs.

A stream that brings rows is refused here, before anything of it is read: it could fill the room for
messages that are arriving. So is GetSchema, of whose handler's errors pyarrow forgets the status.
Of the other methods the request is there already; their handlers refuse it, as they know where it
comes from, which the audit log is told.

Law of this file: a handler has its permit from :func:`permit_of` and from nowhere else; where the
middleware has left none, nothing is permitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.flight as fl

from ingester.errors import Unauthenticated
from ingester.server.auth.access import Access, Permit
from ingester.server.auth.rights import NOBODY
from ingester.server.flight.call_room import CallRoom
from ingester.server.flight.refusals import flight_error

KEY = "caller"
_AT_ONCE = {
    fl.FlightMethod.DO_PUT: "put",
    fl.FlightMethod.DO_EXCHANGE: "exchange",
    fl.FlightMethod.GET_SCHEMA: "schema",
}


class _Admitted(fl.ServerMiddleware):  # type: ignore[misc]
    """What became of a call's token, for its handler; who is let in is counted until the end."""

    def __init__(self, found: Permit | Unauthenticated, room: CallRoom) -> None:
        self.found = found
        self._room = room
        self._is_counted = isinstance(found, Permit)
        if self._is_counted:
            room.enter()

    def call_completed(self, exception: Any) -> None:
        """Count the call no more."""
        if self._is_counted:
            self._is_counted = False
            self._room.leave()


class CallerMiddleware(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Admits callers, or refuses them.

    Args:
        access: who may do what.
        refused: is told the ``code`` of what a caller is refused for before its handler runs.
        room: counts the calls that are let in.
    """

    def __init__(self, access: Access, refused: Callable[[str], object], room: CallRoom) -> None:
        super().__init__()
        self._room = room
        self._access = access
        self._refused = refused

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Admitted:
        """Read the call's token."""
        try:
            permit = self._access.admit(headers.get("authorization", ()))
            return _Admitted(permit, self._room)
        except Unauthenticated as exc:
            asked = _AT_ONCE.get(info.method)
            if asked is None:
                return _Admitted(exc, self._room)
            self._refused("unauthenticated")
            self._access.note_refusal(exc, NOBODY, "", asked)
            raise flight_error(exc) from None
        except Exception as exc:
            raise flight_error(exc) from None


def middleware(
    access: Access, refused: Callable[[str], object], room: CallRoom
) -> dict[str, CallerMiddleware]:
    """Return the middleware of a server; none where nobody needs a token."""
    return {KEY: CallerMiddleware(access, refused, room)} if access.enabled else {}


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
