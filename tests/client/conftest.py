"""A small daemon and a client of it."""

import sys
from collections.abc import Iterator

import pytest

from ingester.client import Client, RetryPolicy
from tests.client.small_daemon import SmallDaemon

QUICK = RetryPolicy(for_s=10, first_delay_s=0.005, max_delay_s=0.05)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDaemon]:
    # Otherwise pyarrow's server adds tracebacks to its messages; the daemon sets this, too.
    monkeypatch.setattr(sys, "tracebacklimit", 0, raising=False)
    with SmallDaemon() as running:
        yield running


@pytest.fixture
def client(daemon: SmallDaemon) -> Iterator[Client]:
    with Client(daemon.endpoint, timeout_s=10, retry=QUICK) as connected:
        yield connected
