"""TLS of both listeners: certificates are read, checked, served and reloaded.

    files ─▶ :func:`check_certificates` ─▶ :class:`Certificates`, or an error that names the setting
    :class:`HeldCertificates` owns those in use:
        files change ─▶ usable ─────▶ used for new connections
                     └▶ not usable ─▶ reported; the previous ones stay in use
    :func:`pem_files` shows them as files in memory to libraries that read files only

Flight and HTTP show the same certificates. A key goes to pyarrow and OpenSSL only, and no message
contains one (``tests/server/tls/test_certificates.py``). Certificate and key are two files: a pair
that does not match is reported only if it is still the same at the next look
(``tests/server/tls/test_held.py``).

Source: RFC 5280 (certificates), RFC 8446 4.4.2 (a server's own certificate comes first).
"""

from __future__ import annotations

import datetime
import os
import ssl
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from ingester.config.settings import TlsSettings
from ingester.config.watched_files import WatchedFiles

log = structlog.get_logger(__name__)

WARN_BEFORE = datetime.timedelta(days=14)
"""A certificate that expires sooner causes a warning, once a day."""
WARN_EVERY = datetime.timedelta(days=1)


class TlsError(ValueError):
    """TLS cannot be served with these files; the message names the setting and the reason."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Checked certificates for both listeners; times are in UTC."""

    cert: bytes
    """PEM: the daemon's certificate, followed by its intermediates."""
    key: bytes = field(repr=False)
    client_ca: bytes | None
    """PEM: the authorities of clients; None requires no client certificates."""
    subject: str
    names: tuple[str, ...]
    """The host names and addresses in the certificate."""
    serial: str
    not_before: datetime.datetime
    not_after: datetime.datetime
    """The earliest expiry in the chain."""

    def fault(self, now: datetime.datetime) -> str | None:
        """Return why clients would refuse the chain at this time; None if they would not."""
        if now > self.not_after:
            return f"the certificate has expired at {_utc(self.not_after)}"
        if now < self.not_before:
            return f"the certificate is not valid before {_utc(self.not_before)}"
        return None


def check_certificates(cert: bytes, key: bytes, client_ca: bytes | None) -> Certificates:
    """Return the certificates of three PEM files.

    Raises:
        TlsError: A file has no PEM, the key does not match or has a passphrase, the chain begins
            with another certificate, or the certificate is not for servers.
    """
    chain = _chain("tls.cert", cert)
    own = chain[0]
    _check_key(chain, key)
    _check_use(own)
    if client_ca is not None:
        _chain("tls.client_ca", client_ca)
    return Certificates(
        cert,
        key,
        client_ca,
        own.subject.rfc4514_string(),
        _names(own),
        f"{own.serial_number:x}",
        max(each.not_valid_before_utc for each in chain),
        min(each.not_valid_after_utc for each in chain),
    )


def _chain(setting: str, content: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except (ValueError, UnsupportedAlgorithm) as exc:
        held = "a private key" if b"PRIVATE KEY-----" in content else "no usable certificate"
        raise TlsError(f"{setting}: the file has {held} in place of PEM certificates") from exc


def _check_key(chain: list[x509.Certificate], content: bytes) -> None:
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError as exc:
        raise TlsError(
            "tls.key: the key has a passphrase, which no one could enter at a restart: remove it"
            " (openssl pkey) and keep the file readable by the daemon alone"
        ) from exc
    except (ValueError, UnsupportedAlgorithm):
        # The cause would contain the file's content.
        raise TlsError("tls.key: the file has no private key in PEM") from None
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    public = key.public_key().public_bytes(*form)
    found = [each.public_key().public_bytes(*form) == public for each in chain]
    if any(found[1:]) and not found[0]:
        raise TlsError(
            f"tls.cert: certificate {found.index(True) + 1} of {len(chain)} is that of tls.key: it"
            " has to be the first, with those that sign it behind it"
        )
    if not found[0]:
        raise TlsError("tls.key: the key is not that of the certificate in tls.cert")


def _check_use(own: x509.Certificate) -> None:
    try:
        uses = own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    allowed = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
    if not allowed & set(uses):
        raise TlsError(
            "tls.cert: the certificate is for no server (its extended key usage lacks serverAuth)"
        )


def _names(own: x509.Certificate) -> tuple[str, ...]:
    try:
        found = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = (str(each) for each in found.get_values_for_type(x509.IPAddress))
    return (*found.get_values_for_type(x509.DNSName), *addresses)


def _utc(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def pem_files(certificates: Certificates) -> Iterator[tuple[str, str, str | None]]:
    """Yield the paths of certificate, key and client authorities; they end with the block.

    A listener reads what was checked, even while the files change, and no disk has a second copy of
    the key.
    """
    with ExitStack() as opened:
        paths = [
            None if content is None else _path(opened, content)
            for content in (certificates.cert, certificates.key, certificates.client_ca)
        ]
        cert, key, client_ca = paths
        assert cert is not None
        assert key is not None
        yield cert, key, client_ca


def check_by_openssl(certificates: Certificates) -> None:
    """Return where OpenSSL takes them.

    Raises:
        TlsError: it does not, for example because a key is too short.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        with pem_files(certificates) as (cert, key, client_ca):
            context.load_cert_chain(cert, key)
            if client_ca is not None:
                context.load_verify_locations(client_ca)
    except (ssl.SSLError, ValueError) as exc:
        reason = getattr(exc, "reason", None) or exc
        raise TlsError(
            f"tls.cert, tls.key, tls.client_ca: OpenSSL refuses them ({reason})"
        ) from exc


def _path(opened: ExitStack, content: bytes) -> str:
    number = os.memfd_create("tls", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(number), "wb") as file:
        file.write(content)
    opened.callback(os.close, number)
    return f"/proc/self/fd/{number}"


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
