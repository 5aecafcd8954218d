"""Silences the log's events, which these tests do not check."""

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
