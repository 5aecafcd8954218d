"""The short form of the measurement: 40 readers on 100 MB; the program runs the full one."""

from __future__ import annotations

import pytest

from tests.stalled.run import Extent, Report, Run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    extent = Extent(readers=40, processes=4, megabytes=100, measure_s=2.0, hold_s=1.0, go_on=2)
    return Run(tmp_path_factory.mktemp("stalled"), extent).run()


@pytest.mark.slow
def test_readers_that_stop_get_exactly_the_rest_when_they_go_on(report: Report) -> None:
    assert not report.faults
    assert len(report.answers) == 8


@pytest.mark.slow
def test_writers_go_on_while_readers_stand_still_and_buffers_are_persisted(report: Report) -> None:
    # The full form requires half the rate; this machine may be busy.
    assert min(report.rates.values()) > 0
    assert report.slowest_s < 10


@pytest.mark.slow
def test_readers_that_stop_cost_little_memory(report: Report) -> None:
    assert report.growth <= 150_000_000, report.peaks
