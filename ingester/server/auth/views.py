"""Cuts answers about all namespaces to those that a caller may see.

Pure. Lists are cut to the caller's namespaces. Texts that may name any namespace (the log's
problems, unreadable paths) are left out unless the caller sees all of them. Totals stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from msgspec.structs import replace

from ingester.observability.status import DaemonStatus, TokenStatus

_UNTOLD = "told to those who have '*'"
Sees = Callable[[str], bool]
"""Returns whether a caller sees a namespace."""


class _Placed(Protocol):
    @property
    def namespace(self) -> str: ...


P = TypeVar("P", bound=_Placed)


def seen(placed: Iterable[P], sees: Sees | None) -> list[P]:
    """Return the items in namespaces that the caller sees; None sees all."""
    return [each for each in placed if sees is None or sees(each.namespace)]


def status_seen(status: DaemonStatus, sees: Sees | None) -> DaemonStatus:
    """Return the part of a status that its caller sees; None sees everything.

    Tables, origins, followers, replications and namespaces have been cut by :func:`seen` before.
    """
    if sees is None:
        return status
    return replace(
        status,
        # An error may name an object, and that its table.
        store_state=replace(status.store_state, last_error=None),
        drain=replace(status.drain, problem=None),
        adoptions=[replace(each, problem=None) for each in status.adoptions],
        persist=replace(status.persist, last=seen(status.persist.last, sees)),
        pushes=seen(status.pushes, sees),
        push_reading=replace(
            status.push_reading,
            failure=status.push_reading.failure and _UNTOLD,
            unreadable=[],
        ),
        transform=replace(status.transform, hung_calls={}),
        security=replace(status.security, callers=TokenStatus()),
        errors=[],
    )
