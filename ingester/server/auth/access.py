"""Authentication and authorization: tokens become callers, and callers' rights are checked.

    bearer ─▶ :meth:`Access.admit` ─▶ a permit of this call ─▶ ``require("put write", "shop")``
                                                            ─▶ ``renew()`` for each batch

A permit is renewed for each batch of a stream. That is one comparison while no token has changed;
after a change the token and its rights are looked up again.

A request that is not in :data:`NEEDS` is refused, and no error reveals whether something exists
that the caller may not see (``tests/server/auth/test_every_need.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol

import structlog

from ingester.errors import AccessDenied, IngesterError, NotAuthenticated, kind_of
from ingester.server.auth.audit import AuditLog
from ingester.server.auth.rights import EVERYBODY, NEEDS, NOBODY, Caller, Need, Sees
from ingester.server.auth.tokens import UNKNOWN

log = structlog.get_logger(__name__)

MAX_BEARER_BYTES = 16 << 10
_SHOWN = 128


class TokenSource(Protocol):
    """A source of tokens of one kind. Any thread."""

    def knows(self, token: str) -> bool:
        """Return whether a token looks like one of this kind."""

    def caller(self, token: str) -> Caller:
        """Return the caller of this token. Raises :class:`NotAuthenticated`."""


class Access:
    """Admits callers to a daemon. Any thread.

    Args:
        audit: records refusals.
        opened: the words of ``auth.open``.
    """

    def __init__(self, audit: AuditLog | None = None, opened: Collection[str] = ()) -> None:
        self.generation = 0
        """Incremented whenever tokens may have changed."""
        self.audit = audit or AuditLog()
        self._sources: list[TokenSource] = []
        self._lock = threading.Lock()
        self._held: dict[Permit, Callable[[], object]] = {}
        self._opened = frozenset(opened)
        self._meters: list[Callable[[str], None]] = []

    @property
    def enabled(self) -> bool:
        """Whether a token is needed; otherwise everybody may do everything."""
        return bool(self._sources)

    def trust(self, source: TokenSource) -> None:
        """Admit the tokens of this source. Before the first call."""
        self._sources.append(source)

    def meter(self, count: Callable[[str], None]) -> None:
        """Count admitted requests by namespace; ``count`` may refuse. Before the first call."""
        self._meters.append(count)

    def count(self, namespace: str) -> None:
        """Count an admitted request. Raises what a meter refuses it with."""
        for meter in self._meters:
            meter(namespace)

    def changed(self) -> None:
        """Make all permits look their token up again, because tokens have changed."""
        self.generation += 1

    def admit(self, header: Sequence[str], peer: str = "") -> Permit:
        """Return the permit of one call.

        Args:
            header: the values of its ``authorization`` header.
            peer: the client's address, for the audit log.

        Raises:
            NotAuthenticated: the token is missing or invalid.
        """
        if not self.enabled:
            return Permit(self, "", EVERYBODY, peer)
        token = bearer_of(header)
        # Read before the look-up, so that a change in between is noticed.
        generation = self.generation
        return Permit(self, token, self.caller(token), peer, generation)

    def caller(self, token: str) -> Caller:
        """Return the caller of a token. Raises :class:`NotAuthenticated`."""
        for source in self._sources:
            if source.knows(token):
                return source.caller(token)
        raise NotAuthenticated(UNKNOWN)

    def nobody(self, peer: str = "") -> Permit:
        """Return the permit of a call without a token, which may do what is open."""
        return Permit(self, "", NOBODY if self.enabled else EVERYBODY, peer, self.generation)

    def is_open(self, asked: str) -> bool:
        """Return whether this needs no token."""
        need = NEEDS.get(asked)
        return need is not None and (need.of == "open" or need.setting in self._opened)

    @contextmanager
    def holding(self, permit: Permit, end: Callable[[], object]) -> Iterator[None]:
        """Let :meth:`end_those_over` call ``end`` if the permit ends within this block."""
        with self._lock:
            self._held[permit] = end
        try:
            yield
        finally:
            with self._lock:
                self._held.pop(permit, None)

    def end_those_over(self) -> None:
        """End the streams whose token was revoked or has expired.

        Each is ended once; batches that still arrive are refused.
        """
        with self._lock:
            held = list(self._held.items())
        for permit, end in held:
            try:
                permit.renew()
            except (NotAuthenticated, AccessDenied):
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
        """Record a refusal in the audit log."""
        self.audit.refused(caller, peer, asked, place, kind_of(error).code, error.message)


class Permit:
    """The rights of one call, and what it was granted so far."""

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
        """Check the caller's right to a request, and remember it for :meth:`renew`.

        Args:
            asked: a key of :data:`NEEDS`.
            namespace: None if the request names none.
            table: for the audit log.

        Raises:
            NotAuthenticated: the request needs a token.
            AccessDenied: the caller lacks the right.
            OverQuota: the namespace is over its quota of requests.
        """
        try:
            self._check(asked, namespace)
        except (NotAuthenticated, AccessDenied) as exc:
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

    def refuse(self, error: AccessDenied, asked: str, namespace: str, table: str) -> NoReturn:
        """Record a refusal for another reason than a missing right, and raise it."""
        self._access.note_refusal(error, self.caller, self.peer, asked, (namespace, table))
        raise error

    @property
    def authorization(self) -> str:
        """The value of an ``authorization`` header with the call's token; empty without one."""
        return f"Bearer {self._token}" if self._token else ""

    def renew(self) -> None:
        """Check again what was granted: the token may have been revoked.

        Raises:
            NotAuthenticated, AccessDenied: it is no longer granted.
        """
        expires = self.caller.expires
        if self._generation == self._access.generation:
            if expires is None or time.time() < expires:
                return
        elif not self._token:
            return  # a call without a token
        asked, namespace = self._held[-1] if self._held else ("", None)
        try:
            generation = self._access.generation
            self.caller = self._access.caller(self._token)
            for held in self._held:
                self._check(*held)
            self._generation = generation
        except (NotAuthenticated, AccessDenied) as exc:
            self._access.note_refusal(exc, self.caller, self.peer, asked, (namespace, None))
            raise

    def sees(self, asked: str) -> Sees | None:
        """Return the test for namespaces that the answer may cover; None means all.

        For requests without a namespace, after :meth:`require`.
        """
        need, caller = NEEDS[asked], self.caller
        if self._access.is_open(asked) or caller.may(need.right, None):
            return None
        return lambda namespace: caller.may(need.right, namespace)

    def done(
        self, asked: str, namespace: str | None, table: str | None, error: BaseException | None
    ) -> None:
        """Record an administrative action that has ended in the audit log."""
        need = NEEDS.get(asked)
        if need is None or not need.audited or isinstance(error, NotAuthenticated | AccessDenied):
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
            raise AccessDenied(f"{asked[:_SHOWN]!r} is nothing that a token can have a right to")
        if self._access.is_open(asked):
            return
        if self.caller is NOBODY:
            raise NotAuthenticated(_NO_TOKEN)
        if not _allowed(need, self.caller, namespace):
            raise AccessDenied(_forbidden(need, self.caller, namespace))


def bearer_of(header: Sequence[str]) -> str:
    """Return the token of ``authorization: Bearer TOKEN``. Raises :class:`NotAuthenticated`."""
    if not header:
        raise NotAuthenticated(_NO_TOKEN)
    scheme, _, token = header[0].strip().partition(" ")
    if len(header) > 1 or scheme.lower() != "bearer" or not token.strip():
        raise NotAuthenticated("the authorization header is not one 'Bearer TOKEN'")
    if len(token) > MAX_BEARER_BYTES:
        raise NotAuthenticated(
            f"the token is longer than {MAX_BEARER_BYTES} B: no token of ours is"
        )
    return token.strip()


_NO_TOKEN = (
    "a token is needed: send 'authorization: Bearer TOKEN' ('ingester tokens add' makes one)"
)


def _allowed(need: Need, caller: Caller, namespace: str | None) -> bool:
    if need.of == "caller":
        return True
    if need.of == "shown" and namespace is None:
        return True  # the answer is cut to what the caller may see
    return caller.may(need.right, namespace)


def _forbidden(need: Need, caller: Caller, namespace: str | None) -> str:
    right = need.right or "any right"
    where = "all namespaces ('*')" if namespace is None else f"namespace {namespace[:_SHOWN]!r}"
    return (
        f"token {caller.token_id or '-'} ({caller.name}) does not have {right} in {where}: use one"
        " that has ('ingester tokens add --grant')"
    )
