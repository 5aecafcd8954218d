"""Rights, grants, and callers who have them.

    right   read < admin, write < admin; read and write do not imply each other
    grant   NAMESPACE:RIGHT[,RIGHT…]     NAMESPACE may be "*": all of them, and what is of none

Law of this file: pure; a grant that is not understood is refused, never taken for a smaller one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

Right = Literal["read", "write", "admin"]
RIGHTS: tuple[Right, ...] = get_args(Right)
EVERY = "*"
"""The namespace of a grant that is for all of them."""


class BadGrant(ValueError):
    """A grant that is not understood; the message has it."""


class Grant(NamedTuple):
    """Rights in a namespace, or in all."""

    namespace: str
    rights: frozenset[Right]

    def covers(self, right: Right | None, namespace: str | None) -> bool:
        """Say whether it gives the right there.

        Args:
            right: None asks for any right.
            namespace: None is what is of no namespace, which only a grant for all of them covers.
        """
        if self.namespace not in (EVERY, namespace):
            return False
        return right is None or right in self.rights or "admin" in self.rights

    def __str__(self) -> str:
        return f"{self.namespace}:{','.join(r for r in RIGHTS if r in self.rights)}"


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who has shown a token.

    Attributes:
        name: what logs call it.
        token_id: the token's id; of a JWT its ``jti``, or nothing.
        grants: what it may do.
        expires: when the token ends, in seconds since 1970; None is never.
    """

    name: str
    token_id: str
    grants: tuple[Grant, ...]
    expires: float | None = None

    def may(self, right: Right | None, namespace: str | None) -> bool:
        """Say whether the caller has this right, or any, in a namespace, or in what is of none."""
        return any(grant.covers(right, namespace) for grant in self.grants)


EVERYBODY = Caller("-", "", (Grant(EVERY, frozenset(RIGHTS)),))
"""The one caller of a daemon without ``[auth]``."""
NOBODY = Caller("-", "", ())
"""A caller without a token."""


def parse_grant(text: str) -> Grant:
    """Read a grant as ``shop:read,write``. Raises :class:`BadGrant`."""
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
    """Read several grants, at least one. Raises :class:`BadGrant`."""
    grants = tuple(map(parse_grant, texts))
    if not grants:
        raise BadGrant("no grant is given: nothing could be done with this token")
    return grants
