"""A real S3 server for tests of published tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.drivers.s3_server import S3Server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """A server without buckets."""
    with S3Server.start() as server:
        yield server
