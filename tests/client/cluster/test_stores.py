"""Daemons of different stores are refused with an error that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from ingester.client import Client, InvalidRequest, RetryPolicy
from ingester.client.cluster.daemons import ASK_AGAIN_S, Stores
from ingester.spark.errors import RequestRefused
from ingester.spark.read.tail import TailRequest, connected, tails_of
from persist.manifest import Manifest
from persist.store import open_store
from tests.cli.conftest import check_refused, run_command
from tests.drivers.daemon import Daemon
from tests.drivers.ports import steady_flight

SCHEMA = pa.schema({"n": pa.int64()})
PATIENT = RetryPolicy(for_s=20, first_delay_s=0.02, max_delay_s=0.3)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Daemon]]:
    """Two daemons, each with its own store and a table of the same name."""
    folder = tmp_path_factory.mktemp("two")

    def started(name: str) -> Daemon:
        return Daemon.start(
            folder / name,
            arguments=steady_flight(),
            id=name,
            store=f"file://{folder}/store-{name}",
            wal__fsync="off",
        )

    with ThreadPoolExecutor(2) as pool:
        daemons = [*pool.map(started, ("y", "z"))]
    for number, daemon in enumerate(daemons):
        with Client(daemon.flight) as client:
            client.write("ns", "t", pa.table({"n": [number]}))
            client.persist("ns", "t")
            client.write("ns", "t", pa.table({"n": [number + 10]}))
    yield daemons
    for daemon in daemons:
        daemon.kill()


def test_reads_and_writes_over_two_stores_are_refused_by_name(
    two: list[Daemon], tmp_path: Path
) -> None:
    endpoints = [daemon.flight for daemon in two]
    calls: dict[str, Callable[[Client], object]] = {
        "query": lambda client: client.query("ns", "t"),
        "version": lambda client: client.query("ns", "t", version=1),
        "schema": lambda client: client.schema("ns", "t"),
        "tables": lambda client: client.tables(),
        "write": lambda client: client.write("ns", "t", pa.table({"n": [5]})),
        "named": lambda client: client.write("ns", "t", pa.table({"n": [5]}), origin="o"),
    }
    for name, call in calls.items():
        with Client(endpoints, retry=PATIENT) as client, pytest.raises(InvalidRequest) as refused:
            call(client)
        assert all(endpoint in str(refused.value) for endpoint in endpoints), name
        assert "Name daemons of one store" in str(refused.value), name
    asked = run_command("query", "ns", "t", "--endpoint", ",".join(endpoints), cwd=tmp_path)
    check_refused(asked, 1, "writes to store")
    asked = run_command("tail", "ns", "t", "--endpoint", ",".join(endpoints), cwd=tmp_path)
    check_refused(asked, 1, "writes to store")
    for number, daemon in enumerate(two):
        with Client(daemon.flight) as client:
            assert client.query("ns", "t")["n"].to_pylist() == [number, number + 10]


def test_spark_refuses_a_daemon_of_another_store_than_the_files(two: list[Daemon]) -> None:
    one, other = two
    manifest = Manifest(open_store(f"file://{one.data_dir.parent}/store-y"), "ns", "t")
    assert [tail["n"].to_pylist() for tail in _read(manifest, [one.flight])] == [[10]]
    for endpoints in ([one.flight, other.flight], [other.flight]):
        with pytest.raises(RequestRefused, match=f"{other.flight} writes to store .*store-y"):
            _read(manifest, endpoints)


def _read(manifest: Manifest, endpoints: list[str]) -> list[pa.Table]:
    with connected(endpoints, None) as daemons:
        return tails_of(manifest, manifest.load().version, None, TailRequest(daemons))


def test_a_writer_does_not_move_to_a_daemon_of_another_store(two: list[Daemon]) -> None:
    one, other = two
    other.kill()
    with Client([one.flight, other.flight], retry=PATIENT) as client:
        client.write("ns", "moved", pa.table({"n": [1]}))  # at the only running daemon
        two[1] = other.again()
        one.kill()
        with pytest.raises(InvalidRequest, match="writes to store"):
            client.write("ns", "moved", pa.table({"n": [2]}))
    with Client(two[1].flight) as client:
        assert all(each.table != "moved" for each in client.tables())
    two[0] = one.again()


def test_knowledge_of_stores() -> None:
    stores, both = Stores(), ("a", "b")
    assert stores.due(both, 0.0) == ["a", "b"]
    stores.reported("a", "1")
    stores.silent("b", 0.0)
    assert stores.due(both, ASK_AGAIN_S / 2) == []
    assert stores.due(both, ASK_AGAIN_S) == ["b"]
    stores.reported("b", None)  # a daemon of an earlier release
    assert stores.differ(both) is None
    stores.reported("b", "2")
    assert "a writes to store 1 and b to store 2" in str(stores.differ(both))
    assert stores.differ(("b",)) is None, "a is none of the endpoints any more"
    stores.was_unreachable("b")
    assert stores.due(both, 0.0) == ["b"]
    assert stores.differ(both) is not None, "what it said holds until it says something else"
