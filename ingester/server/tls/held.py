"""The certificates in use, and their reload when the files change.

    files change ─▶ usable ─────▶ used for new connections
                 └▶ not usable ─▶ reported; the previous ones stay in use

Certificate and key are two files: a pair that does not match is reported only if it is still the
same at the next look (``tests/server/tls/test_held.py``).
"""

from __future__ import annotations

import datetime
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from ingester.config.settings import TlsSettings
from ingester.config.watched_files import WatchedFiles
from ingester.server.tls.certificates import Certificates, TlsError, check_certificates
from ingester.server.tls.memory_files import check_by_openssl

log = structlog.get_logger(__name__)

WARN_BEFORE = datetime.timedelta(days=14)
"""A certificate that expires sooner causes a warning, once a day."""
WARN_EVERY = datetime.timedelta(days=1)


Use = Callable[[Certificates], Awaitable[None]]
"""Gives the certificates to the listeners, or raises :class:`TlsError`."""


@dataclass(frozen=True, slots=True)
class Reloads:
    """Successful and failed reloads, and why the last one failed."""

    done: int = 0
    failed: int = 0
    problem: str | None = None


class HeldCertificates:
    """Owns the certificates in use. On the loop."""

    def __init__(self, settings: TlsSettings, now: Callable[[], datetime.datetime]) -> None:
        """Read the files.

        Raises:
            TlsError: They cannot be used. An expired certificate can, with a warning.
        """
        paths = [path for path in (settings.cert, settings.key, settings.client_ca) if path]
        self._files = WatchedFiles(paths)
        self._key = settings.key
        self._now = now
        self._suspected: str | None = None
        self._warned_at: datetime.datetime | None = None
        self.reloads = Reloads()
        self.current = self._read()
        self.warn_of_end()

    async def look(self, at_once: bool, use: Use) -> None:
        """Reload changed files.

        Args:
            at_once: Report unusable files without waiting for the next look.
            use: Shows them to new connections; if it raises, the previous ones stay in use.
        """
        if not (at_once or self._suspected or self._files.changed()):
            return
        try:
            found = self._read()
            fault = found.fault(self._now())
            if fault is not None and self.current.fault(self._now()) is None:
                raise TlsError(f"tls.cert: {fault}")
            if found != self.current:
                await use(found)
        except TlsError as exc:
            self._refuse(str(exc), at_once)
            return
        self._suspected = None
        if found == self.current:
            self.reloads = Reloads(self.reloads.done, self.reloads.failed)
            return
        self.current = found
        self.reloads = Reloads(self.reloads.done + 1, self.reloads.failed)
        self._warned_at = None
        log.info(
            "certificate taken up",
            subject=found.subject,
            names=list(found.names),
            not_after=found.not_after.isoformat(),
        )

    def warn_of_end(self) -> None:
        """Warn of a certificate that expires soon, once a day."""
        now = self._now()
        if now < self.current.not_after - WARN_BEFORE:
            return
        if self._warned_at is not None and now < self._warned_at + WARN_EVERY:
            return
        self._warned_at = now
        log.warning(
            "certificate ends",
            not_after=self.current.not_after.isoformat(),
            days=round((self.current.not_after - now) / datetime.timedelta(days=1), 1),
            subject=self.current.subject,
            runbook="certificate",
        )

    def _refuse(self, problem: str, at_once: bool) -> None:
        if problem == self.reloads.problem and not at_once:
            self._suspected = None
            return
        if not at_once and self._suspected != problem:
            self._suspected = problem
            return
        self._suspected = None
        self.reloads = Reloads(self.reloads.done, self.reloads.failed + 1, problem)
        log.warning(
            "certificate not taken up; the one before stays in force",
            error=problem,
            runbook="certificate",
        )

    def _read(self) -> Certificates:
        try:
            cert, key, *authorities = self._files.read()
        except OSError as exc:
            raise TlsError(f"tls.cert, tls.key, tls.client_ca: {exc}") from exc
        found = check_certificates(cert, key, authorities[0] if authorities else None)
        check_by_openssl(found)
        self._warn_of_mode()
        return found

    def _warn_of_mode(self) -> None:
        """Warn of a key that every account can read. Some volumes offer no other mode."""
        with suppress(OSError):
            mode = stat.S_IMODE(Path(self._key).stat().st_mode)
            if mode & 0o007:
                log.warning(
                    "others can read the key", file=self._key, mode=oct(mode), runbook="certificate"
                )
