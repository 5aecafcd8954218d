"""TLS and authentication of the listeners: the certificates and tokens in use, and their status.

:class:`Security` is made before anything listens, and refuses a listener that other machines reach
without TLS and tokens (``tests/daemon/test_security``).
"""

from __future__ import annotations

import datetime
from typing import Protocol

import structlog

from ingester.config.exposure import (
    asks_for_tokens,
    check_exposure,
    exposed_listeners,
    is_insecure,
)
from ingester.config.settings import Settings
from ingester.daemon.reloading import Reloading
from ingester.observability.status import CertificateStatus, SecurityStatus
from ingester.server.auth.access import Access
from ingester.server.auth.opening import Doorkeeper
from ingester.server.tls.certificates import Certificates
from ingester.server.tls.held import HeldCertificates

log = structlog.get_logger(__name__)


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
            tokens=asks_for_tokens(settings),
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
