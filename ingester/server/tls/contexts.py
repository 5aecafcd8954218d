"""The context by which HTTP answers a new connection.

Law of this file: TLS 1.2 at least. Keys are on no disk but their own: OpenSSL reads files alone, so
it gets one of memory.
"""

from __future__ import annotations

import os
import ssl

from ingester.server.tls.certificates import Certificates, TlsError


def server_context(certificates: Certificates) -> ssl.SSLContext:
    """Return a context with these certificates.

    A client's certificate is checked where it shows one; which routes need one, the application
    says: a probe of health has none.

    Raises:
        TlsError: OpenSSL refuses what was read, as a key that is too short.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        _load(context, certificates)
        if certificates.client_ca is not None:
            context.load_verify_locations(cadata=certificates.client_ca.decode("ascii", "replace"))
            context.verify_mode = ssl.CERT_OPTIONAL
    except (ssl.SSLError, ValueError) as exc:
        reason = getattr(exc, "reason", None) or exc
        raise TlsError(
            f"tls.cert, tls.key, tls.client_ca: OpenSSL refuses them ({reason})"
        ) from exc
    return context


def _load(context: ssl.SSLContext, certificates: Certificates) -> None:
    number = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(number), "wb") as file:
            file.write(certificates.key.rstrip() + b"\n" + certificates.cert)
        context.load_cert_chain(f"/proc/self/fd/{number}")
    finally:
        os.close(number)
