"""TLS and authentication of the listeners: the certificates and tokens in use, and their status.

:class:`Security` is made before anything listens, and refuses a listener that other machines reach
without TLS and tokens (``tests/daemon/test_security``). Tokens, keys, certificates or an audit log
that cannot be used end the start. Later they are reported (log, audit log, status, metric), and the
previous ones stay in use.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
import trio

from ingester.config.exposure import check_exposure, exposed_listeners, is_insecure
from ingester.config.settings import AuditSettings, AuthSettings, ConfigError, Settings
from ingester.daemon.reloading import Reloading
from ingester.observability.status import CertificateStatus, SecurityStatus, TokenStatus
from ingester.server.auth.access import Access
from ingester.server.auth.audit import AuditFailed, AuditLog
from ingester.server.auth.jwt_tokens import MAX_AGE_S, JwksUnreachable, JwtTokens
from ingester.server.auth.tokens import BadTokens, WatchedTokens
from ingester.server.tls import Certificates, HeldCertificates

log = structlog.get_logger(__name__)


class Doorkeeper:
    """Owns the access control and its sources of tokens.

    Raises:
        ConfigError: tokens, keys, or the audit log cannot be used.
    """

    def __init__(self, auth: AuthSettings, audit: AuditSettings) -> None:
        try:
            self.audit = AuditLog(audit.file)
        except AuditFailed as exc:
            raise ConfigError("audit.file", f"{audit.file}: {exc.strerror}") from exc
        self._asked = trio.Event()
        # Threads of its own, so that a hanging store does not keep a revoked token valid.
        self._threads = trio.CapacityLimiter(2)
        self._tokens: WatchedTokens | None = None
        self._jwks: JwtTokens | None = None
        self.failed_readings = 0
        """Failed reloads of tokens or keys since the start."""
        self.access = Access(self.audit, auth.open)
        if auth.tokens:
            try:
                self._tokens = WatchedTokens(Path(auth.tokens))
            except BadTokens as exc:
                raise ConfigError("auth.tokens", str(exc)) from exc
            self.access.trust(self._tokens)
        if auth.jwks:
            self._jwks = JwtTokens(auth, self.access.changed)
            self.access.trust(self._jwks)

    def status(self) -> TokenStatus:
        """Return the status of the tokens and the audit log."""
        return TokenStatus(
            valid=self.valid_tokens(),
            failed_readings=self.failed_readings,
            problems=self.failures(),
            audited=self.audit.lines,
            audit_left_out=self.audit.left_out,
        )

    def valid_tokens(self) -> int:
        """Return the number of tokens in the file that are valid now."""
        return 0 if self._tokens is None else self._tokens.valid()

    def failures(self) -> list[str]:
        """Return why tokens or keys cannot be read now; empty if they can."""
        sources = (self._tokens, self._jwks)
        return [each.failure for each in sources if each is not None and each.failure]

    async def look(self, at_once: bool) -> None:
        """Read the tokens if they have changed; ``at_once`` reloads everything."""
        if at_once:
            self._asked.set()
            try:
                self.audit.reopen()
            except AuditFailed as exc:
                log.error("audit log not opened", error=str(exc), runbook="audit-not-written")
        if self._tokens is not None:
            await self._told("tokens", partial(self._tokens.look, again=at_once))
        await trio.to_thread.run_sync(self.access.end_those_over, limiter=self._threads)

    async def run(self) -> None:
        """Reload a provider's keys when they are old, and on request."""
        while self._jwks is not None:
            with trio.move_on_after(MAX_AGE_S):
                await self._asked.wait()
            self._asked = trio.Event()
            await self._told("token keys", self._jwks.refresh)

    async def _told(self, what: str, look: Callable[[], bool]) -> None:
        try:
            others = await trio.to_thread.run_sync(look, limiter=self._threads)
        except (BadTokens, JwksUnreachable) as exc:
            self.failed_readings += 1
            self.audit.noted("tokens reload", "failed", message=str(exc))
            log.warning(f"{what} not read", error=str(exc), runbook="tokens-not-read")
            return
        if others:
            self.access.changed()
            self.audit.noted("tokens reload", "done", valid=self.valid_tokens())
            log.info(f"{what} read", valid=self.valid_tokens())


class TlsListener(Protocol):
    """A listener that can be given other certificates."""

    @property
    def certificates(self) -> Certificates | None:
        """The certificates that new connections get."""

    async def renew(self, certificates: Certificates) -> None:
        """Show these to new connections, or raise :class:`TlsError`."""


class Security:
    """The certificates and the callers' rights. On the loop."""

    def __init__(self, settings: Settings) -> None:
        """Read certificates and tokens. Blocks while keys of JWTs are loaded.

        Raises:
            ConfigError: tokens, keys or the audit log cannot be used, or a listener is exposed
                without TLS and tokens.
            TlsError: the files of ``[tls]`` cannot be used.
        """
        check_exposure(settings)
        self._settings = settings
        self.reloading = Reloading()
        self.doorkeeper = Doorkeeper(settings.auth, settings.audit)
        self.reloading.add(self.doorkeeper.look)
        self._listeners: list[TlsListener] = []
        self._held = HeldCertificates(settings.tls, _now) if settings.tls.cert else None
        if self._held is not None:
            self.reloading.add(self._look)
        # As it was when the listeners were opened; a name is looked up once.
        self._exposed, self._insecure = exposed_listeners(settings), is_insecure(settings)
        if self._insecure:
            log.warning(
                "other machines reach the daemon without TLS or without tokens",
                listeners=self._exposed,
                runbook="insecure",
            )

    @property
    def access(self) -> Access:
        """The rights of callers."""
        return self.doorkeeper.access

    @property
    def certificates(self) -> Certificates | None:
        """The certificates in use; None without TLS."""
        return None if self._held is None else self._held.current

    def open_at(self, listener: TlsListener) -> None:
        """Give this listener the certificates of every reload."""
        self._listeners.append(listener)

    def status(self) -> SecurityStatus:
        """Return the state of TLS and authentication."""
        settings = self._settings
        return SecurityStatus(
            tls=self._held is not None,
            client_certificates=bool(settings.tls.client_ca),
            tokens=settings.auth.enabled,
            insecure=self._insecure,
            exposed=self._exposed,
            certificate=None if self._held is None else _certificate(self._held),
            callers=self.doorkeeper.status(),
        )

    async def _look(self, at_once: bool) -> None:
        assert self._held is not None
        await self._held.look(at_once, self._use)
        # They may have changed while a listener was opened.
        await self._use(self._held.current)
        self._held.warn_of_end()

    async def _use(self, certificates: Certificates) -> None:
        for listener in self._listeners:
            if certificates != listener.certificates:
                await listener.renew(certificates)


def _certificate(held: HeldCertificates) -> CertificateStatus:
    current, reloads = held.current, held.reloads
    return CertificateStatus(
        subject=current.subject,
        names=list(current.names),
        serial=current.serial,
        not_before=current.not_before.isoformat(),
        not_after=current.not_after.isoformat(),
        ends_in_s=(current.not_after - _now()).total_seconds(),
        reloads=reloads.done,
        failed_reloads=reloads.failed,
        problem=reloads.problem,
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
