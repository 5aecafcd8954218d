"""The certificates of a daemon: its chain, its key, the authorities of its clients.

Pure: from bytes to facts, or an error that names the setting and a remedy. No message contains a
key (``tests/server/tls/test_certificates.py``).

Source: RFC 5280 (certificates), RFC 8446 4.4.2 (a server's own certificate comes first).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID


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
