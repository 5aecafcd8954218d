"""The log's events are not what these tests look at: they go nowhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(scope="module", autouse=True)
def _silent() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.configure(**before)
