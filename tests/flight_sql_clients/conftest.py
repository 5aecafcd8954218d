"""A daemon with tables for all clients, and the clients, each started once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow.flight as fl
import pytest
from py4j.java_gateway import JavaGateway

from tests.drivers.all_types import all_types
from tests.drivers.daemon import Daemon
from tests.drivers.secured import Secured
from tests.drivers.sql_tables import fill
from tests.drivers.wire import put
from tests.flight_sql_clients.programs import GoClient, jvm
from tests.server.auth.secured import Shows


class SecuredDaemon(NamedTuple):
    """A daemon with TLS and two tokens: ``all`` for everything, ``acme`` for its namespace."""

    daemon: Daemon
    secured: Secured


@pytest.fixture(scope="package")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with ``sql_tables``, and with all types in ``types.every``."""
    folder = tmp_path_factory.mktemp("clients")
    with Daemon.start(folder / "data") as daemon, fl.connect(daemon.flight) as client:
        fill(client)
        put(client, ("types", "every"), *all_types("us").combine_chunks().to_batches())
        yield daemon


@pytest.fixture(scope="package")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredDaemon]:
    """See :class:`SecuredDaemon`."""
    folder = tmp_path_factory.mktemp("secured")
    made = Secured(folder, {"all": "*:admin", "acme": "acme:read,write"})
    with Daemon.start(folder / "data", environment=None, arguments=(), **made.settings) as daemon:
        shows = Shows([f"Bearer {made.tokens['all']}"])
        pem = made.ca.read_bytes()
        with fl.connect(daemon.flight, tls_root_certs=pem, middleware=[shows]) as client:
            fill(client)
        yield SecuredDaemon(daemon, made)


@pytest.fixture(scope="package")
def go() -> Iterator[GoClient]:
    """The Go program."""
    with GoClient() as client:
        yield client


@pytest.fixture(scope="package")
def java() -> Iterator[JavaGateway]:
    """A JVM with the JDBC driver."""
    gateway = jvm()
    yield gateway
    gateway.shutdown()
