"""Each fault of the store proxy does what its name says, and a store behind it detects the lies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from persist.store import ObjectStore, StoreUnavailable, open_store
from tests.crash.store_proxy import PROFILES, StoreProxy
from tests.drivers.s3_server import S3Server

pytestmark = pytest.mark.s3

NOT_DONE = ("500", "503", "false")
WRITES = {
    "put": lambda store: store.put("new", b"new"),
    "create": lambda store: store.create("new", b"new"),
}
READS = {
    "get": lambda store: store.get("old"),
    "open": lambda store: store.open("old").read(),
    "exists": lambda store: store.exists("old"),
    "list": lambda store: list(store.list("")),
}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server.start() as server:
        yield server


@pytest.fixture
def proxy(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProxy]:
    """A proxy in front of a bucket that only this test uses."""
    for fault in (*NOT_DONE, "lost", "denied", "silent"):
        monkeypatch.setitem(PROFILES, f"always {fault}", {fault: 1.0})
    proxy = StoreProxy(server.url, 1)
    yield proxy
    proxy.close()


@pytest.fixture
def stores(
    server: S3Server, proxy: StoreProxy, request: pytest.FixtureRequest
) -> tuple[ObjectStore, ObjectStore]:
    """The same store, through the proxy and directly, with one object."""
    bucket = f"b{abs(hash(request.node.nodeid))}"
    server.make_bucket(bucket)
    options = server.storage_options
    direct = open_store(f"s3://{bucket}", **options)
    direct.put("old", b"old")
    through = {**options, "endpoint_url": proxy.url, "read_timeout_s": 0.5}
    return open_store(f"s3://{bucket}", **through), direct


def test_a_store_that_is_well_is_as_it_is(stores: tuple[ObjectStore, ObjectStore]) -> None:
    store, direct = stores
    store.put("a/b", b"x" * 200_000)
    assert direct.get("a/b") == store.get("a/b") == b"x" * 200_000
    assert [info.path for info in store.list("")] == ["a/b", "old"]
    assert store.exists("old") == direct.exists("old")
    assert store.open("a/b").read() == b"x" * 200_000
    store.delete("a/b")
    assert direct.exists("a/b") is None


@pytest.mark.parametrize("fault", NOT_DONE)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_that_was_not_done_is_not_taken_for_one(
    stores: tuple[ObjectStore, ObjectStore], proxy: StoreProxy, write: Any, fault: str
) -> None:
    store, direct = stores
    proxy.suffer(f"always {fault}")
    with pytest.raises(StoreUnavailable):
        write(store)
    assert proxy.faults[fault] > 0
    proxy.heal()
    assert direct.exists("new") is None
    write(store)
    assert direct.get("new") == b"new"


@pytest.mark.parametrize("fault", ["lost", "denied"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_that_was_done_and_denied_is_unclear(
    stores: tuple[ObjectStore, ObjectStore], proxy: StoreProxy, write: Any, fault: str
) -> None:
    store, direct = stores
    proxy.suffer(f"always {fault}")
    with pytest.raises(StoreUnavailable):
        write(store)
    assert direct.get("new") == b"new"


@pytest.mark.parametrize("fault", [*NOT_DONE, "lost", "silent"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_is_no_answer_of_a_store_is_not_read_as_one(
    stores: tuple[ObjectStore, ObjectStore], proxy: StoreProxy, read: Any, fault: str
) -> None:
    store, _ = stores
    proxy.suffer(f"always {fault}")
    with pytest.raises(StoreUnavailable):
        read(store)
    proxy.heal()
    assert read(store)
