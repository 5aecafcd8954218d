"""Shared fixtures: one daemon, a new table for each test, and one table for filters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.wire import Table, create, persist, put
from tests.spark.spread_rows import ROWS, SPREAD

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that flushes only on request."""
    folder = tmp_path_factory.mktemp("spark")
    with Daemon.start(folder / "data", memory__limit="512MiB", persist__max_age="1h") as daemon:
        yield daemon


@pytest.fixture(scope="session")
def store(daemon: Daemon) -> Path:
    return daemon.data_dir / "store"


@pytest.fixture(scope="session")
def url(store: Path) -> str:
    return f"file://{store}"


@pytest.fixture
def client(daemon: Daemon) -> Iterator[fl.FlightClient]:
    with fl.connect(daemon.flight) as client:
        yield client


@pytest.fixture
def table() -> Table:
    """A table that no other test uses."""
    return ("spark", f"t{next(_numbers)}")


@pytest.fixture(scope="session")
def spread(daemon: Daemon) -> Table:
    """A table with one file per row, whose values compare in unusual ways."""
    table = ("source", "spread")
    batch = pa.record_batch(SPREAD)
    with fl.connect(daemon.flight) as client:
        create(
            client,
            table,
            batch.schema,
            timestamp_unit="ns",
            partition_by=["day(time)", "identity(s)"],
        )
        for start in range(ROWS):
            put(client, table, batch.slice(start, 1))
        persist(client, table)
    return table
