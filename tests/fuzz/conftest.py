"""One daemon for the tests that send malformed bytes, with enough memory for all of them."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from tests.drivers.daemon import Daemon
from tests.fuzz.attacked import ADDRESS_SPACE_BYTES, Attacked


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A daemon with a limited address space, which protects the machine's memory."""
    folder = tmp_path_factory.mktemp("attacked")
    with Daemon.start(folder / "data", memory__limit="512MiB") as daemon:
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES,) * 2)
        attacked = Attacked(daemon)
        yield attacked
        attacked.check()
