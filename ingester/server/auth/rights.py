"""Rights, grants, the callers that have them, and the right that each request needs.

    right   read < admin, write < admin; read and write do not imply each other
    grant   NAMESPACE:RIGHT[,RIGHT…]     NAMESPACE may be "*": all of them, and what belongs to none
    need    of a Flight method with what its request says it is ("put sync", "get live",
            "action persist"), or of a route ("http /metrics")

Pure. A grant that cannot be parsed is refused, never taken for a smaller one. A request that is not
in :data:`NEEDS` is refused, so that a new method, action or route is closed until it is listed
(``tests/server/auth/test_every_need.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

Right = Literal["read", "write", "admin"]
RIGHTS: tuple[Right, ...] = get_args(Right)
EVERY = "*"
"""The namespace of a grant for all namespaces."""


Sees = Callable[[str], bool]
"""Returns whether a caller sees a namespace."""


class BadGrant(ValueError):
    """A grant that cannot be parsed; the message quotes it."""


class Grant(NamedTuple):
    """Rights in one namespace, or in all."""

    namespace: str
    rights: frozenset[Right]

    def covers(self, right: Right | None, namespace: str | None) -> bool:
        """Return whether it gives the right there.

        Args:
            right: None asks for any right.
            namespace: None stands for what belongs to no namespace; only a grant for all covers it.
        """
        if self.namespace not in (EVERY, namespace):
            return False
        return right is None or right in self.rights or "admin" in self.rights

    def __str__(self) -> str:
        return f"{self.namespace}:{','.join(r for r in RIGHTS if r in self.rights)}"


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a token.

    Attributes:
        name: its name in logs.
        token_id: the token's id; for a JWT its ``jti``, if any.
        grants: what it may do.
        expires: when the token expires, in seconds since 1970; None is never.
    """

    name: str
    token_id: str
    grants: tuple[Grant, ...]
    expires: float | None = None

    def may(self, right: Right | None, namespace: str | None) -> bool:
        """Return whether the caller has this right (None: any) in a namespace (None: in all)."""
        return any(grant.covers(right, namespace) for grant in self.grants)

    def may_somewhere(self, right: Right) -> bool:
        """Return whether the caller has this right in any namespace."""
        return any(grant.covers(right, grant.namespace) for grant in self.grants)


EVERYBODY = Caller("-", "", (Grant(EVERY, frozenset(RIGHTS)),))
"""The one caller of a daemon without ``[auth]``."""
NOBODY = Caller("-", "", ())
"""A caller without a token."""


def parse_grant(text: str) -> Grant:
    """Parse a grant such as ``shop:read,write``. Raises :class:`BadGrant`."""
    namespace, colon, rights = text.rpartition(":")
    names = [name.strip() for name in rights.split(",")]
    if not colon or not namespace or not text.isprintable():
        raise BadGrant(f"grant {text[:128]!r} is not NAMESPACE:RIGHTS, as shop:read,write")
    if unknown := [name for name in names if name not in RIGHTS]:
        raise BadGrant(
            f"grant {text[:128]!r}: {unknown[0]!r} is not a right; there are {', '.join(RIGHTS)}"
        )
    if EVERY in namespace and namespace != EVERY:
        raise BadGrant(f"grant {text[:128]!r}: '*' stands for all namespaces, not for a part")
    return Grant(namespace, frozenset(cast("list[Right]", names)))


def parse_grants(texts: Iterable[str]) -> tuple[Grant, ...]:
    """Parse grants, at least one. Raises :class:`BadGrant`."""
    grants = tuple(map(parse_grant, texts))
    if not grants:
        raise BadGrant("no grant is given: nothing could be done with this token")
    return grants


Of = Literal["namespace", "shown", "caller", "open"]


@dataclass(frozen=True, slots=True)
class Need:
    """The right that a request needs.

    Attributes:
        right: the right; None is any.
        of: ``namespace``: in the namespace that the request names, or in all if it names none.
            ``shown``: the same, but a request without a namespace is answered with those where the
            caller has the right. ``caller``: a valid token is enough. ``open``: no token is needed.
        setting: the word in ``auth.open`` that opens it.
        audited: whether the audit log records it also when it succeeds.
    """

    right: Right | None
    of: Of = "namespace"
    setting: str = ""
    audited: bool = False


_OPEN, _CALLER = Need(None, "open"), Need(None, "caller")
# Schemas, sizes and progress help writers as well as readers.
_ANY, _READ, _WRITE = Need(None), Need("read"), Need("write")

NEEDS: dict[str, Need] = {
    "put write": _WRITE,
    "put delete": Need("write", audited=True),
    "put sync": _WRITE,
    "put copy": _WRITE,
    "get all": _READ,
    "get version": _READ,
    "get buffered": _READ,
    "get live": _READ,
    # A table whose namespace the caller may not read does not exist for its queries.
    "get sql": Need("read", "shown"),
    "info sql": Need("read", "shown"),
    "schema sql": Need("read", "shown"),
    # Binds parameters of a prepared statement.
    "put sql": Need("read", "shown"),
    "action CreatePreparedStatement": Need("read", "shown"),
    "action ClosePreparedStatement": Need("read", "shown"),
    "action CancelFlightInfo": Need("read", "shown"),
    "action CancelQuery": Need("read", "shown"),
    "info": _ANY,
    "schema": _ANY,
    "list_flights": Need(None, "shown"),
    "list_actions": _CALLER,
    "exchange": _CALLER,
    "action create_table": Need("write", audited=True),
    "action describe_table": _ANY,
    "action persist": Need("write", audited=True),
    # Without a namespace in the request: the right in all of them.
    "action drain": Need("admin", audited=True),
    "action origins": Need(None, "shown"),
    "action checkpoint_get": _ANY,
    "action checkpoint_put": _WRITE,
    "action checkpoint_delete": Need("write", audited=True),
    "action checkpoints": Need(None, "shown"),
    "action copy_finish": Need("write", audited=True),
    "action copy_abort": Need("write", audited=True),
    "action followers": _ANY,
    "action followers_prepare": Need("admin", audited=True),
    "action replication_report": _WRITE,
    # Debug events concern all namespaces.
    "action log_level": Need("admin", audited=True),
    "action store": _CALLER,
    "action status": Need(None, "shown"),
    "action status_list": Need(None, "shown"),
    "http /": _OPEN,
    "http /runbook/{entry}": _OPEN,
    "http /health/live": _OPEN,
    "http /health/ready": _OPEN,
    # Labels name all namespaces.
    "http /metrics": Need("read", setting="metrics"),
    "http /api/status": Need(None, "shown", setting="status"),
    "http /api/tables/{namespace}/{table}": _READ,
    "http /api/tables/{namespace}/{table}/{list}": _READ,
    "http /api/status/{list}": Need(None, "shown", setting="status"),
    "http /api/history": Need(None, "shown", setting="status"),
    "http /api/sql": Need("read", "shown"),
    "http /iceberg/v1/config": _CALLER,
    "http /iceberg/v1/namespaces": Need("read", "shown"),
    "http /iceberg/v1/namespaces/{namespace}": _READ,
    "http /iceberg/v1/namespaces/{namespace}/tables": _READ,
    "http /iceberg/v1/namespaces/{namespace}/tables/{table}": _READ,
    "http /iceberg/v1/namespaces/{namespace}/tables/{table}/metrics": _READ,
}
