"""A PostgreSQL server, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres.cluster import Cluster, serve_or_skip


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A server of the version in the fixture's parameter, by default the installed one."""
    version = getattr(request, "param", None)
    with serve_or_skip(tmp_path_factory.mktemp("postgres"), version) as running:
        yield running
