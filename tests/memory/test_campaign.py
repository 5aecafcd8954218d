"""The short form of the memory campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.memory.campaign import Plan, campaign, faults


@pytest.mark.slow
def test_a_daemon_killed_by_its_memory_limit_loses_no_acknowledged_row(tmp_path: Path) -> None:
    found = campaign(tmp_path, Plan(rounds=2))
    assert not faults(found, 2), found
