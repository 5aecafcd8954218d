"""Good and bad pushes to three regions, with kills; ``python -m tests.push`` is the long form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.push.campaign import Campaign


@pytest.mark.slow
@pytest.mark.s3
def test_pushes_end_as_they_should_whoever_is_killed_and_every_answer_is_of_one_version(
    tmp_path: Path,
) -> None:
    with Campaign(tmp_path, seed=3, delay_s=0.5) as campaign:
        campaign.begin()
        campaign.push(kills=4)
        campaign.push(kills=4, bad=True)
        report = campaign.finish()
    assert report.pushes == {"SERVING": 2, "ROLLED_BACK": 1}
    assert report.kills.total() >= 4, "some have ended before their time came"
    assert all(report.rows.values())
    # Only the first region has served the bad edition.
    served = {name: set(editions) for name, editions in report.answers.items()}
    assert served["eu by daemon"] == {1, 2, 3}
    assert served["us by daemon"] == served["asia by daemon"] == {1, 2}
    assert served["asia by DuckDB"] <= {1, 2}
