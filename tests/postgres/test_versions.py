"""The oldest and the newest PostgreSQL that are tried."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.peers.installing import Missing
from tests.postgres.cluster import Cluster, serve
from tests.postgres.versions import NEWEST, OLDEST


@pytest.fixture(scope="module", params=[OLDEST, NEWEST])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    try:
        with serve(tmp_path_factory.mktemp("postgres"), request.param) as running:
            yield running
    except Missing as exc:
        pytest.skip(f"no such PostgreSQL here: {exc}")


def test_a_server_of_the_version_decodes_and_keeps_what_was_committed(cluster: Cluster) -> None:
    cluster.run("CREATE TABLE t (a int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    cluster.run("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    cluster.restart()
    assert cluster.run("SELECT a FROM t") == [(1,)]
