"""The Iceberg catalogue: its answers, and pyiceberg as a client of it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    ServiceUnavailableError,
    UnauthorizedError,
)

from ingester.errors import OverQuota
from ingester.server.auth.access import Access
from ingester.server.http.app import MAX_ANSWERS, create_app
from ingester.server.http.entrance import Entrance
from ingester.server.http.iceberg import ENDPOINTS, s3_defaults
from persist.publish.publisher import Publisher
from persist.store import ObjectInfo, ObjectStore, open_store
from tests.drivers.memory_store import MemoryStore
from tests.drivers.waiting import until
from tests.persist.publish.tables import BuiltTable
from tests.server.http.serving import Answer, RunningServer, TurnableSource, serving
from tests.server.http.test_entrance import OneToken

ROWS = pa.table({"i": pa.array([1, 2], pa.int64())})


def publish(table: BuiltTable) -> None:
    """Publish all versions of a table as Iceberg."""
    Publisher(table.store, "ns", table.table).publish(["iceberg"], retain_s=3600)


def built(store: ObjectStore, name: str) -> BuiltTable:
    """A table ``ns/<name>`` with two rows."""
    table = BuiltTable(store, ROWS.schema, table=name)
    table.append(ROWS)
    return table


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TurnableSource:
    """A daemon's state with a store that has two published tables and one that is not."""
    store = open_store(f"file://{tmp_path_factory.mktemp('store')}")
    for name in ("a", "b"):
        publish(built(store, name))
    built(store, "unpublished")
    store.put("_ingesters/x", b"")
    return TurnableSource(store=store)


@pytest.fixture(scope="module")
def server(source: TurnableSource) -> Iterator[RunningServer]:
    """The app over that state."""
    with serving(source) as server:
        yield server


def connected(server: RunningServer, **options: str) -> Catalog:
    """pyiceberg's catalogue at this server."""
    return load_catalog("test", type="rest", uri=f"{server.url}/iceberg", **options)


def failed(answer: Answer) -> tuple[int, str]:
    """The status and type of an error, which has the form of the specification."""
    body = json.loads(answer.body)
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "code"}
    assert body["error"]["code"] == answer.status
    return answer.status, body["error"]["type"]


class HangingStore(MemoryStore):
    """A store whose listings wait."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        self.answers.wait(60)
        return super().list(prefix, start_after)


def test_the_status_is_answered_while_the_store_hangs() -> None:
    store = HangingStore()
    with serving(TurnableSource(store=store)) as server, ExitStack() as held:
        for _ in range(MAX_ANSWERS):
            waiting = held.enter_context(socket.create_connection(server.address))
            waiting.sendall(b"GET /iceberg/v1/namespaces HTTP/1.1\r\nHost: localhost\r\n\r\n")
        config = "/iceberg/v1/config"
        until(lambda: server.request(config).status == 503, "requests of the catalogue to wait")
        assert server.request("/api/status").status == 200
        store.answers.set()
        until(lambda: server.request(config).status == 200, "them to be answered")


def test_pyiceberg_lists_loads_and_reads(server: RunningServer) -> None:
    catalog = connected(server, **{"rest-page-size": "1"})
    assert catalog.list_namespaces() == [("ns",)]
    assert catalog.list_namespaces("ns") == []
    assert catalog.load_namespace_properties("ns") == {}
    assert catalog.list_tables("ns") == [("ns", "a"), ("ns", "b")]
    assert catalog.namespace_exists("ns")
    assert not catalog.namespace_exists("other")
    assert catalog.table_exists("ns.a")
    assert not catalog.table_exists("ns.unpublished")
    assert catalog.load_table("ns.a").scan().to_arrow().to_pylist() == ROWS.to_pylist()


def test_pyiceberg_learns_that_it_cannot_write(server: RunningServer) -> None:
    catalog = connected(server)
    table = catalog.load_table("ns.a")
    before = table.metadata_location
    for write in (
        lambda: table.append(ROWS),
        lambda: catalog.create_namespace("new"),
        lambda: catalog.create_table("ns.c", ROWS.schema),
        lambda: catalog.drop_table("ns.a"),
        lambda: catalog.rename_table("ns.a", "ns.c"),
    ):
        with pytest.raises(NotImplementedError, match="does not support endpoint"):
            write()
    assert catalog.load_table("ns.a").metadata_location == before


def test_a_new_version_is_loaded_at_once(source: TurnableSource, server: RunningServer) -> None:
    assert source.store is not None
    table = built(source.store, "growing")
    publish(table)
    loaded = connected(server).load_table("ns.growing")
    table.append(ROWS)
    publish(table)
    assert len(loaded.refresh().scan().to_arrow()) == 4


def test_what_does_not_exist_is_named_as_clients_expect(server: RunningServer) -> None:
    catalog = connected(server)
    for table in ("ns.nothing", "nothing.a", "ns.unpublished", "ns.a.snapshots", "ns.a b"):
        with pytest.raises(NoSuchTableError, match="NoSuchTableException"):
            catalog.load_table(table)
    for namespace in ("nothing", "ns.a", "_ingesters"):
        with pytest.raises(NoSuchNamespaceError, match="NoSuchNamespaceException"):
            catalog.list_tables(namespace)
    parent = server.request("/iceberg/v1/namespaces?parent=nothing")
    assert failed(parent) == (404, "NoSuchNamespaceException")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/namespaces/ns/views", 404),
        ("POST", "/namespaces", 405),
        ("POST", "/namespaces/ns/tables", 405),
        ("POST", "/namespaces/ns/tables/a", 405),
        ("DELETE", "/namespaces/ns/tables/a", 405),
        ("POST", "/transactions/commit", 405),
        ("POST", "/oauth/tokens", 405),
        ("GET", "/namespaces/ns/tables/a/metrics", 405),
        ("GET", "/namespaces/n%2Fs/tables", 404),
    ],
)
def test_other_requests_are_refused_in_the_form_of_the_specification(
    server: RunningServer, method: str, path: str, status: int
) -> None:
    kind = {404: "NotFoundException", 405: "UnsupportedOperationException"}[status]
    assert failed(server.request(f"/iceberg/v1{path}", method)) == (status, kind)


def test_a_client_that_has_the_newest_metadata_gets_none(server: RunningServer) -> None:
    path = "/iceberg/v1/namespaces/ns/tables/b"
    first = server.request(path)
    tag = first.headers["etag"]
    again = server.request(path, **{"If-None-Match": tag})
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert server.request(path, **{"If-None-Match": '"other"'}).body == first.body


def test_a_metrics_report_is_accepted(server: RunningServer) -> None:
    path = "/iceberg/v1/namespaces/ns/tables/a/metrics"
    assert server.request(path, "POST").status == 204


def test_every_endpoint_that_is_named_is_answered(
    source: TurnableSource, server: RunningServer
) -> None:
    told = json.loads(server.request("/iceberg/v1/config?warehouse=x").body)
    assert told == {"defaults": {}, "overrides": {}, "endpoints": list(ENDPOINTS)}
    for endpoint in told["endpoints"]:
        method, _, path = endpoint.partition(" ")
        path = path.replace("{prefix}/", "").format(namespace="ns", table="a")
        assert server.request(f"/iceberg{path}", method).status in (200, 204), endpoint


@pytest.fixture
def guarded(source: TurnableSource) -> Iterator[RunningServer]:
    """The app with a token that may read ``sensors`` alone."""
    access = Access()
    access.trust(OneToken())
    assert source.store is not None
    source.store.put("sensors/t/v1/x", b"")
    server = RunningServer(create_app(source, Entrance(access)))
    yield server
    server.stop()


def test_a_token_shows_and_opens_its_own_namespaces_only(guarded: RunningServer) -> None:
    catalog = connected(guarded, token="igt_one")
    assert catalog.list_namespaces() == [("sensors",)]
    assert catalog.list_tables("sensors") == []
    for unseen in ("ns", "nothing"):
        with pytest.raises(ForbiddenError, match="does not have read"):
            catalog.list_tables(unseen)
        with pytest.raises(ForbiddenError):
            catalog.load_table(f"{unseen}.a")
        with pytest.raises(ForbiddenError, match="does not have read"):
            catalog.list_namespaces(unseen)
    assert catalog.list_namespaces("sensors") == []
    with pytest.raises(UnauthorizedError, match="NotAuthorizedException"):
        connected(guarded)


def test_refusals_of_the_entrance_have_the_form_of_the_specification(
    guarded: RunningServer,
) -> None:
    config, token = "/iceberg/v1/config", {"Authorization": "Bearer igt_one"}
    unknown = guarded.request(config)
    assert failed(unknown) == (401, "NotAuthorizedException")
    assert unknown.headers["www-authenticate"].startswith("Bearer")
    assert failed(guarded.request("/iceberg/v1/namespaces/ns", **token)) == (
        *(403, "ForbiddenException"),
    )
    assert failed(guarded.request(config, **token, Host="evil.example"))[0] == 421


def test_a_namespace_over_its_quota_is_told_when_to_come_back(source: TurnableSource) -> None:
    def meter(namespace: str) -> None:
        raise OverQuota("too many requests", retry_after_s=1.5)

    access = Access()
    access.meter(meter)
    server = RunningServer(create_app(source, Entrance(access)))
    try:
        refused = server.request("/iceberg/v1/namespaces/ns")
        assert failed(refused) == (429, "TooManyRequestsException")
        assert refused.headers["retry-after"] == "2"
    finally:
        server.stop()


def test_metadata_of_another_writer_is_an_error_of_the_server(
    source: TurnableSource, server: RunningServer
) -> None:
    assert source.store is not None
    publish(built(source.store, "taken"))
    source.store.put("ns/taken/metadata/v9.metadata.json", b"{}")
    answer = server.request("/iceberg/v1/namespaces/ns/tables/taken")
    assert failed(answer) == (500, "InternalServerError")
    assert b"no longer published as iceberg" in answer.body


def test_a_store_that_cannot_be_read_is_answered_with_503(server_away: RunningServer) -> None:
    away = server_away.request("/iceberg/v1/config")
    assert failed(away) == (503, "ServiceUnavailableException")
    assert int(away.headers["retry-after"]) > 0
    with pytest.raises(ServiceUnavailableError):
        connected(server_away)


@pytest.fixture
def server_away() -> Iterator[RunningServer]:
    """The app of a daemon that cannot read its store."""
    with serving(TurnableSource()) as server:
        yield server


def test_on_s3_clients_learn_the_endpoint_and_no_secret() -> None:
    options: dict[str, Any] = {
        "endpoint_url": "http://minio:9000",
        "region": "eu-central-1",
        "key": "key",
        "secret": "secret",
        "token": "token",
    }
    assert s3_defaults(options) == {
        "s3.endpoint": "http://minio:9000",
        "s3.path-style-access": "true",
        "s3.region": "eu-central-1",
        "client.region": "eu-central-1",
    }
    virtual = {"endpoint_url": "http://x", "config_kwargs": {"s3": {"addressing_style": "virtual"}}}
    assert s3_defaults(virtual)["s3.path-style-access"] == "false"
    assert s3_defaults({"key": "key"}) == {}
