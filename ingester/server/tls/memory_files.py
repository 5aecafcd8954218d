"""Certificates as files in memory, for libraries that read files only.

What a listener reads is then what was checked, also while the files on disk change, and no second
copy of the key is on a disk.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ingester.server.tls.certificates import Certificates, TlsError


@contextmanager
def pem_files(certificates: Certificates) -> Iterator[tuple[str, str, str | None]]:
    """Yield the paths of certificate, key and client authorities; they end with the block."""
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
