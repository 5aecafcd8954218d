"""The short form of the kills; ``make follow`` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.follower.kills import Campaign


@pytest.mark.slow
def test_a_copy_equals_its_table_after_kills_of_follower_and_daemon(tmp_path: Path) -> None:
    with Campaign(tmp_path, seed=7) as campaign:
        report = campaign.run(kills=8)
    assert report.kills.total() == 8
    assert all(report.rows.values())
