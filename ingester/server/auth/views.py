"""What a caller may see of an answer that tells of all namespaces.

Law of this file: pure. A list by namespace is cut to those that the caller sees; what may name any
of them (the log's problems, unreadable paths) is left out for one who does not see all. Sums over
all namespaces stay: they name none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from msgspec.structs import replace

from ingester.observability.status import DaemonStatus, TokenStatus

_UNTOLD = "told to those who have '*'"
Sees = Callable[[str], bool]
"""Says whether a caller sees a namespace."""


class _Placed(Protocol):
    @property
    def namespace(self) -> str: ...


P = TypeVar("P", bound=_Placed)


def seen(placed: Iterable[P], sees: Sees | None) -> list[P]:
    """Give those that are in namespaces that the caller sees; all of them for None."""
    return [each for each in placed if sees is None or sees(each.namespace)]


def status_seen(status: DaemonStatus, sees: Sees | None) -> DaemonStatus:
    """Cut a status to what its caller sees; None is everything.

    Tables, origins, followers, replications and namespaces are those by :func:`seen` already.
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
