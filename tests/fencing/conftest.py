"""The stores that two daemons share: local files, and an S3 server process."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drivers.s3_server import S3Server
from tests.fencing.pairs import Place, store_url

BUCKET = "fencing-bucket"


@pytest.fixture(scope="session")
def fencing_s3_server() -> Iterator[S3Server]:
    """A server with the bucket ``BUCKET``; use fresh prefixes."""
    with S3Server.start() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store of each kind."""
    if request.param == "local":
        return Place(tmp_path, store_url(tmp_path))
    server: S3Server = request.getfixturevalue("fencing_s3_server")
    url = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    return Place(tmp_path, url, server.environment, server.storage_options)
