"""The stores of the contract tests; each test gets an empty one of each kind."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3fs import S3FileSystem

from persist.store import ObjectStore, StoreWatch, WatchedStore, open_store
from persist.store.generic import FsspecStore
from tests.drivers.memory_store import MemoryStore
from tests.drivers.s3_server import S3Server

BUCKET = "contract-bucket"
KINDS = [
    "local",
    "memory",
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("fsspec", marks=pytest.mark.s3),
]
# Any other server: INGESTER_TEST_S3_ENDPOINT, _BUCKET (must exist), _KEY, _SECRET, _REGION.
if "INGESTER_TEST_S3_ENDPOINT" in os.environ:
    KINDS.append(pytest.param("given-s3", marks=pytest.mark.s3))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A server with an empty bucket ``BUCKET``, shared by the session; use fresh prefixes."""
    with S3Server.start() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind."""
    prefix = uuid.uuid4().hex
    if request.param == "local":
        return open_store(f"file://{tmp_path}/the store")
    if request.param == "memory":
        # With a watch, as in a daemon; the results must be the same.
        return WatchedStore(MemoryStore(), StoreWatch())
    if request.param == "given-s3":
        return open_store(f"s3://{os.environ['INGESTER_TEST_S3_BUCKET']}/{prefix}", **_given())
    server: S3Server = request.getfixturevalue("s3_server")
    if request.param == "s3":
        return open_store(f"s3://{BUCKET}/{prefix}", **server.storage_options)
    # s3fs again, but only through the generic fsspec interface.
    fs = S3FileSystem(
        endpoint_url=server.url,
        key=server.access_key,
        secret=server.secret_key,
        client_kwargs={"region_name": "us-east-1"},
        skip_instance_cache=True,
    )
    return FsspecStore(fs, f"{BUCKET}/{prefix}", f"fsspec-s3://{BUCKET}/{prefix}")


def _given() -> dict[str, Any]:
    options = {"endpoint_url": os.environ["INGESTER_TEST_S3_ENDPOINT"]}
    for name in ("KEY", "SECRET", "REGION"):
        if f"INGESTER_TEST_S3_{name}" in os.environ:
            options[name.lower()] = os.environ[f"INGESTER_TEST_S3_{name}"]
    return options
