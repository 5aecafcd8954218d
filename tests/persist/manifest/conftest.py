"""An empty store for each test, on local files, in memory or on an S3 server process."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from persist.manifest import Manifest
from persist.store import ObjectStore, open_store
from tests.drivers.memory_store import MemoryStore
from tests.drivers.s3_server import S3Server
from tests.persist.manifest.aged_table import AgedTable
from tests.persist.manifest.stores import ClockedStore, FaultyStore

BUCKET = "manifest-bucket"

# Local files are enough for most tests, as the contract tests in `tests/persist/store` ensure that
# all stores answer alike. One test of each kind also runs on S3: races, listings, missing objects,
# lost answers, garbage collection.
EVERY_STORE = pytest.mark.parametrize(
    "real_store", ["local", pytest.param("s3", marks=pytest.mark.s3)], indirect=True
)
# For tests that would spend most of their time on syncs.
IN_MEMORY = pytest.mark.parametrize("real_store", ["memory"], indirect=True)


@pytest.fixture(scope="session")
def manifest_s3_server() -> Iterator[S3Server]:
    """A server with the bucket ``BUCKET``; use fresh prefixes."""
    with S3Server.start() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(params=["local"])
def real_store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store on local files, or of the kind that a test requests."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "local":
        return open_store(f"file://{tmp_path}/store")
    server: S3Server = request.getfixturevalue("manifest_s3_server")
    return open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}", **server.storage_options)


@pytest.fixture
def store(real_store: ObjectStore) -> FaultyStore:
    """The same store, with fault injection."""
    return FaultyStore(real_store)


@pytest.fixture
def manifest(store: FaultyStore) -> Manifest:
    """The manifest of a table that does not exist yet."""
    return Manifest(store, "ns", "flights")


@pytest.fixture
def aged(real_store: ObjectStore) -> AgedTable:
    """A table that does not exist yet, in a store with a clock that the test moves."""
    store = ClockedStore(real_store)
    return AgedTable(store, Manifest(store, "ns", "flights"))
