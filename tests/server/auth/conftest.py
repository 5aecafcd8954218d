"""One token-protected daemon, shared by all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.auth.provider import AUDIENCE, ISSUER, RSA, public, write_keys
from tests.server.auth.secured import Secured


@pytest.fixture(scope="package")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A daemon that no test stops, with a table ``shop/t`` of two rows."""
    folder = tmp_path_factory.mktemp("secured")
    write_keys(folder / "jwks.json", public(RSA, "r1", "RS256"))
    found = Secured.start(
        folder,
        auth__jwks=str(folder / "jwks.json"),
        auth__issuer=ISSUER,
        auth__audience=AUDIENCE,
    )
    with found.daemon:
        yield found
