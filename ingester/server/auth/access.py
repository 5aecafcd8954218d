"""The one place where tokens become callers, and where callers' rights are checked.

    bearer ─▶ :meth:`Access.admit` ─▶ a permit of this call ─▶ ``require("put write", "shop")``
                                                            ─▶ ``renew()`` for each batch

A permit is renewed for each batch of a stream: that costs a comparison while no token has changed,
and a look at the token, its rights included, where one has.

Law of this file: closed unless it says otherwise. What :data:`NEEDS` does not have is refused, and
no error says whether there is what a caller may not see.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol

import structlog

from ingester.errors import Forbidden, IngesterError, Unauthenticated, kind_of
from ingester.server.auth.audit import AuditLog
from ingester.server.auth.rights import EVERYBODY, NEEDS, NOBODY, Caller, Need
from ingester.server.auth.tokens import UNKNOWN

log = structlog.get_logger(__name__)

MAX_BEARER_BYTES = 16 << 10
_SHOWN = 128


class TokenSource(Protocol):
    """Knows tokens of one kind. Any thread."""

    def knows(self, token: str) -> bool:
        """Say whether a token looks like one of this kind."""

    def caller(self, token: str) -> Caller:
        """Return who shows this token. Raises :class:`Unauthenticated`."""


class Access:
    """Admits callers to a daemon. Any thread.

    Args:
        audit: what hears of refusals.
        opened: the words of ``auth.open``.
    """

    def __init__(self, audit: AuditLog | None = None, opened: Collection[str] = ()) -> None:
        self.generation = 0
        """Another number whenever tokens may have changed."""
        self.audit = audit or AuditLog()
        self._sources: list[TokenSource] = []
        self._lock = threading.Lock()
        self._held: dict[Permit, Callable[[], object]] = {}
        self._opened = frozenset(opened)
        self._meters: list[Callable[[str], None]] = []

    @property
    def enabled(self) -> bool:
        """Whether a token is needed: else everybody is let in, and may do everything."""
        return bool(self._sources)

    def trust(self, source: TokenSource) -> None:
        """Let in whom this source knows. Before the first call."""
        self._sources.append(source)

    def meter(self, count: Callable[[str], None]) -> None:
        """Have what is let in counted by its namespace; it may refuse. Before the first call."""
        self._meters.append(count)

    def count(self, namespace: str) -> None:
        """Count a request that is let in. Raises what refuses it."""
        for meter in self._meters:
            meter(namespace)

    def changed(self) -> None:
        """Have all permits look again: tokens have changed."""
        self.generation += 1

    def admit(self, header: Sequence[str], peer: str = "") -> Permit:
        """Return the permit of one call.

        Args:
            header: the values of its ``authorization`` header.
            peer: where it comes from, for the audit log.

        Raises:
            Unauthenticated: no token, or none that is valid.
        """
        if not self.enabled:
            return Permit(self, "", EVERYBODY, peer)
        token = bearer_of(header)
        # Before the look-up: a change between the two is then looked at again.
        generation = self.generation
        return Permit(self, token, self.caller(token), peer, generation)

    def caller(self, token: str) -> Caller:
        """Return who shows a token. Raises :class:`Unauthenticated`."""
        for source in self._sources:
            if source.knows(token):
                return source.caller(token)
        raise Unauthenticated(UNKNOWN)

    def nobody(self, peer: str = "") -> Permit:
        """Return the permit of a call without a token: it may do what is open."""
        return Permit(self, "", NOBODY if self.enabled else EVERYBODY, peer, self.generation)

    def is_open(self, asked: str) -> bool:
        """Say whether this needs no token."""
        need = NEEDS.get(asked)
        return need is not None and (need.of == "open" or need.setting in self._opened)

    @contextmanager
    def holding(self, permit: Permit, end: Callable[[], object]) -> Iterator[None]:
        """Have :meth:`end_those_over` call ``end`` if the permit ends before this block does."""
        with self._lock:
            self._held[permit] = end
        try:
            yield
        finally:
            with self._lock:
                self._held.pop(permit, None)

    def end_those_over(self) -> None:
        """End the streams whose permit has ended: a token was revoked, or has expired.

        Each is ended once; what it brings nevertheless is refused.
        """
        with self._lock:
            held = list(self._held.items())
        for permit, end in held:
            try:
                permit.renew()
            except (Unauthenticated, Forbidden):
                with self._lock:
                    over = self._held.pop(permit, None)
                if over is not None:
                    end()

    def note_refusal(
        self,
        error: IngesterError,
        caller: Caller,
        peer: str,
        asked: str,
        place: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """Have the audit log tell of a refusal."""
        self.audit.refused(caller, peer, asked, place, kind_of(error).code, error.message)


class Permit:
    """What the caller of one call may do, and has been let do."""

    __slots__ = ("_access", "_generation", "_held", "_token", "caller", "peer")

    def __init__(
        self, access: Access, token: str, caller: Caller, peer: str, generation: int = 0
    ) -> None:
        self._access = access
        self._token = token
        self._generation = generation
        self._held: list[tuple[str, str | None]] = []
        self.caller = caller
        self.peer = peer

    def require(self, asked: str, namespace: str | None = None, table: str | None = None) -> None:
        """Check that the caller may do what it asks for, and remember it for :meth:`renew`.

        Args:
            asked: a key of :data:`NEEDS`.
            namespace: where; None where the request names none.
            table: for the audit log.

        Raises:
            Unauthenticated: nobody may be let do this without a token.
            Forbidden: the caller has not the right.
            OverQuota: the namespace has asked for too much of late.
        """
        try:
            self._check(asked, namespace)
        except (Unauthenticated, Forbidden) as exc:
            self._access.note_refusal(exc, self.caller, self.peer, asked, (namespace, table))
            raise
        self._held.append((asked, namespace))
        if namespace is not None:
            self._access.count(namespace)
        log.debug(
            "request let in",
            asked=asked,
            namespace=namespace,
            table=table,
            principal=self.caller.name,
            peer=self.peer,
        )

    def refuse(self, error: Forbidden, asked: str, namespace: str, table: str) -> NoReturn:
        """Have the audit log tell of a refusal that is not by rights alone, and raise it."""
        self._access.note_refusal(error, self.caller, self.peer, asked, (namespace, table))
        raise error

    def renew(self) -> None:
        """Check that what was let is let still: the token may have been revoked since.

        Raises:
            Unauthenticated, Forbidden: it is not.
        """
        expires = self.caller.expires
        if self._generation == self._access.generation:
            if expires is None or time.time() < expires:
                return
        elif not self._token:
            return  # nobody's, or everybody's
        asked, namespace = self._held[-1] if self._held else ("", None)
        try:
            generation = self._access.generation
            self.caller = self._access.caller(self._token)
            for held in self._held:
                self._check(*held)
            self._generation = generation
        except (Unauthenticated, Forbidden) as exc:
            self._access.note_refusal(exc, self.caller, self.peer, asked, (namespace, None))
            raise

    def sees(self, asked: str) -> Callable[[str], bool] | None:
        """Say which namespaces an answer to this may tell of; None is everything.

        For what is asked without a namespace, after :meth:`require`.
        """
        need, caller = NEEDS[asked], self.caller
        if self._access.is_open(asked) or caller.may(need.right, None):
            return None
        return lambda namespace: caller.may(need.right, namespace)

    def done(
        self, asked: str, namespace: str | None, table: str | None, error: BaseException | None
    ) -> None:
        """Have the audit log tell of an administrative action that has ended."""
        need = NEEDS.get(asked)
        if need is None or not need.audited or isinstance(error, Unauthenticated | Forbidden):
            return
        outcome = "done"
        if error is not None:
            outcome = kind_of(error).code if isinstance(error, IngesterError) else "internal"
        self._access.audit.done(self.caller, self.peer, asked, (namespace, table), outcome)

    def _check(self, asked: str, namespace: str | None) -> None:
        need = NEEDS.get(asked)
        if need is None:
            if self.caller is EVERYBODY:
                return
            raise Forbidden(f"{asked[:_SHOWN]!r} is nothing that a token can have a right to")
        if self._access.is_open(asked):
            return
        if self.caller is NOBODY:
            raise Unauthenticated(_NO_TOKEN)
        if not _allowed(need, self.caller, namespace):
            raise Forbidden(_forbidden(need, self.caller, namespace))


def bearer_of(header: Sequence[str]) -> str:
    """Return the token of ``authorization: Bearer TOKEN``. Raises :class:`Unauthenticated`."""
    if not header:
        raise Unauthenticated(_NO_TOKEN)
    scheme, _, token = header[0].strip().partition(" ")
    if len(header) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("the authorization header is not one 'Bearer TOKEN'")
    if len(token) > MAX_BEARER_BYTES:
        raise Unauthenticated(f"the token is longer than {MAX_BEARER_BYTES} B: no token of ours is")
    return token.strip()


_NO_TOKEN = (
    "a token is needed: send 'authorization: Bearer TOKEN' ('ingester tokens add' makes one)"
)


def _allowed(need: Need, caller: Caller, namespace: str | None) -> bool:
    if need.of == "caller":
        return True
    if need.of == "shown" and namespace is None:
        return True  # and the answer is cut to what the caller may see
    return caller.may(need.right, namespace)


def _forbidden(need: Need, caller: Caller, namespace: str | None) -> str:
    right = need.right or "any right"
    where = "all namespaces ('*')" if namespace is None else f"namespace {namespace[:_SHOWN]!r}"
    return (
        f"token {caller.token_id or '-'} ({caller.name}) does not have {right} in {where}: use one"
        " that has ('ingester tokens add --grant')"
    )
