"""PEM files: usable, or refused with the setting's name and advice. No message reveals a key."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ingester.server.tls import TlsError, check_certificates
from tests.drivers.certificates import Authority

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


def test_a_chain_says_its_names_and_when_its_first_certificate_ends(authority: Authority) -> None:
    began = datetime.datetime.now(datetime.UTC)
    pair = authority.issue("a", days=3)
    chain = pair.cert.read_bytes() + authority.path.read_bytes()
    found = check_certificates(chain, pair.key.read_bytes(), authority.path.read_bytes())
    assert found.names == ("localhost", "127.0.0.1")
    assert found.subject == "CN=a"
    late = found.not_after - began - datetime.timedelta(days=3)
    assert datetime.timedelta(seconds=-1) <= late < datetime.timedelta(minutes=5)
    assert found.fault(NOW) is None
    assert "has expired" in (found.fault(NOW + datetime.timedelta(days=4)) or "")
    assert "not valid before" in (found.fault(NOW - datetime.timedelta(days=90)) or "")
    assert pair.key.read_text() not in repr(found)


def test_what_cannot_be_served_with_is_refused_by_the_setting(authority: Authority) -> None:
    own, other = authority.issue("own"), authority.issue("other")
    cert, key = own.cert.read_bytes(), own.key.read_bytes()
    ca = authority.path.read_bytes()
    cases = {
        "tls.cert: the file has a private key": (key, key, None),
        "tls.cert: the file has no usable certificate": (b"", key, None),
        "tls.key: the file has no private key": (cert, cert, None),
        "tls.key: the key is not that of the certificate": (cert, other.key.read_bytes(), None),
        # The order in which a certificate authority sends the files.
        "certificate 2 of 2 is that of tls.key": (ca + cert, key, None),
        "tls.client_ca: the file has no usable": (cert, key, b"-----BEGIN CERTIFICATE-----\n"),
        "tls.key: the key has a passphrase": (cert, _locked(key), None),
    }
    for expected, files in cases.items():
        with pytest.raises(TlsError) as caught:
            check_certificates(*files)
        assert expected in str(caught.value)
        assert key.splitlines()[1].decode() not in str(caught.value)


def _locked(key: bytes) -> bytes:
    """The key with a passphrase, for which OpenSSL would prompt on the terminal and block."""
    loaded = serialization.load_pem_private_key(key, None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"open"),
    )


def test_a_certificate_of_clients_alone_is_refused(tmp_path: Path) -> None:
    clients = Authority(tmp_path).issue("client", purposes=["client"])
    with pytest.raises(TlsError, match="is for no server"):
        check_certificates(clients.cert.read_bytes(), clients.key.read_bytes(), None)
