"""A certificate authority for tests with TLS.

authority = Authority(folder) daemon = authority.issue("daemon")                    # for
localhost and 127.0.0.1 late = authority.issue("late", days=-1)               # expired
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NAMES = ("localhost", "127.0.0.1")


_USES = {
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
}


class Pair(NamedTuple):
    """The PEM files of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; ``path`` is the authority's own certificate.

    Args:
        folder: Where all certificate and key files are written.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _subject(name)
        self.path = folder / f"{name}.pem"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        certificate = (
            self._builder(self._subject, self._key.public_key(), 30)
            .add_extension(constraints, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        names: Sequence[str] = NAMES,
        days: float = 30,
        purposes: Sequence[str] = (),
    ) -> Pair:
        """Issue a key and a certificate; existing files of that name are replaced.

        Args:
            names: Host names and addresses that the certificate is valid for.
            days: Validity from today; negative for an expired certificate.
            purposes: Extended key usage, ``client`` or ``server``; unrestricted by default.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        alternative = x509.SubjectAlternativeName([_general(each) for each in names])
        builder = self._builder(_subject(name), key.public_key(), days)
        builder = builder.add_extension(alternative, critical=False)
        if purposes:
            uses = x509.ExtendedKeyUsage([_USES[each] for each in purposes])
            builder = builder.add_extension(uses, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _replace(pair.key, private)
        _replace(pair.cert, certificate.public_bytes(serialization.Encoding.PEM))
        return pair

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: float
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=60))
            .not_valid_after(now + dt.timedelta(days=days))
        )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(data)
    new.chmod(0o600)
    new.replace(path)
