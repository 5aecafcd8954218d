"""One daemon that asks for tokens, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.auth.secured import Secured


@pytest.fixture(scope="package")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A daemon that nobody kills, with a table ``shop/t`` of two rows."""
    found = Secured.start(tmp_path_factory.mktemp("secured"))
    with found.daemon:
        yield found
