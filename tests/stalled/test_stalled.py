"""The short form of the measurement, 40 readers on 100 MB; the full one is the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stalled.run import Extent, Run


@pytest.mark.slow
def test_readers_that_stop_cost_little_and_get_exactly_the_rest_when_they_go_on(
    tmp_path: Path,
) -> None:
    extent = Extent(readers=40, processes=4, megabytes=100, measure_s=2.0, hold_s=1.0, go_on=2)
    report = Run(tmp_path, extent).run()
    assert not report.faults
    assert len(report.answers) == 8
    assert report.growth <= 150_000_000, report.peaks
    # The full form asks for half; here the machine may be busy with anything. They must not stop.
    assert report.rate_kept >= 0.2, report.rates
