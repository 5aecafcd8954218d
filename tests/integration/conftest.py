"""One daemon with default settings for all modules that need no other, and a new table per test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow.flight as fl
import pytest

from tests.daemon import Daemon
from tests.integration.wire import Table

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that nobody kills. Its memory limit is fixed, so that machines do not differ."""
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
