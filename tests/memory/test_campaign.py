"""The campaign of memory in short: loads that nobody counts, under a limit that kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers.daemon import Launch
from tests.memory.campaign import Plan, campaign


@pytest.mark.slow
def test_a_daemon_killed_by_its_memory_limit_loses_no_acknowledged_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Launch, "warm", False)  # its memory is laid out when it starts
    found = campaign(tmp_path, Plan(seconds=8.0))
    assert found["alive"], found
    assert found["health"] == 200
    assert found["complete"], "a row of the bystander's is missing, or there twice"
    assert 0 < found["peak_bytes"] < found["most_bytes"]
    assert set(found["heard"]["held dictionaries"]) != {"held"}, "nobody had to go"
