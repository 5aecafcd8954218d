"""The short form of the kill tests; ``make follow`` runs the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.followers.kills import Campaign


@pytest.mark.slow
def test_a_copy_equals_its_table_after_kills_of_follower_and_daemon(tmp_path: Path) -> None:
    with Campaign(tmp_path, seed=39) as campaign:
        report = campaign.run(kills=5)
    assert report.kills.keys() == {"follower", "daemon", "both"}
    assert report.pushes.keys() == {"prepared", "announced", "unannounced", "given up"}
    assert all(report.rows.values())
