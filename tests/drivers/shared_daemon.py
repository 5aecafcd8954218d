"""Fixtures: one daemon with default settings for most tests, and a new table for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.mixed_rows import ROWS, SCHEMA
from tests.drivers.wire import Table, describe, persist, put

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that no test kills, with a memory limit that is the same on every machine."""
    folder = tmp_path_factory.mktemp("shared")
    with Daemon.start(folder / "data", memory__limit="1GiB", query__max_streams=64) as daemon:
        yield daemon


@pytest.fixture
def client(shared: Daemon) -> Iterator[fl.FlightClient]:
    """A connection to the shared daemon."""
    with fl.connect(shared.flight) as client:
        yield client


@pytest.fixture
def table() -> Table:
    """A table that no other test uses."""
    return ("it", f"t{next(_numbers)}")


@pytest.fixture
def origin(table: Table) -> str:
    """An origin that no other test uses."""
    return f"origin-{table[1]}"


@pytest.fixture(scope="module")
def mixed(shared: Daemon, request: pytest.FixtureRequest) -> Table:
    """The table with `ROWS`: 20 in a file and 20 in the buffer, several batches each.

    Each module has its own table, ``queries/mixed`` for the module ``test_queries``, since a
    module that runs in between may flush everything.
    """
    table = (request.module.__name__.rpartition("test_")[2], "mixed")
    with fl.connect(shared.flight) as client:
        for start in range(0, 40, 5):
            put(client, table, pa.RecordBatch.from_pylist(ROWS[start : start + 5], SCHEMA))
            if start == 15:
                persist(client, table)
        sizes = describe(client, table)
        assert sizes["persisted"]["rows"] == sizes["buffered"]["rows"] == 20
    return table
