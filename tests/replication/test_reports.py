"""Reports of replicators in the daemon: which replicators are alive, and how much is kept."""

from __future__ import annotations

from typing import Any

import pytest

from ingester.errors import BadRequest
from ingester.observability.status import ReplicationStatus
from ingester.replication import reports as reports_module
from ingester.replication.reports import ALIVE_S, FORGOTTEN_S, MOST_ORIGINS, ReplicationReports
from ingester.reports.replications import ReplicationReport, TableReport


class Clock:
    """A clock that the test sets."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reports(clock: Clock) -> ReplicationReports:
    return ReplicationReports(now=clock, wall=lambda: clock.now - 1_000.0)


def report(origin: str = "o", reporter: str = "r1", **more: Any) -> ReplicationReport:
    named = {"namespace": "n", "source": "db", "slot": "s", **more}
    return ReplicationReport(origin=origin, reporter=reporter, **named)


def one(reports: ReplicationReports) -> ReplicationStatus:
    (found,) = reports.known()
    return found


def test_a_replicator_that_died_is_shown_as_it_was_heard_last_for_a_day(
    reports: ReplicationReports, clock: Clock
) -> None:
    reports.take(report(lag_s=0.5))
    clock.now += ALIVE_S - 1
    assert one(reports).alive
    clock.now += 1
    left = one(reports)
    assert (left.alive, left.heard_s, left.heard_at) == (False, ALIVE_S, "1970-01-01T00:00:00Z")
    assert left.lag_s == 0.5
    clock.now += FORGOTTEN_S - ALIVE_S
    assert not one(reports).alive
    clock.now += 1
    assert list(reports.known()) == []


def test_one_that_has_ended_is_not_alive_and_the_next_one_is_no_rival(
    reports: ReplicationReports, clock: Clock
) -> None:
    reports.take(report())
    reports.take(report(state="ended", reason="stopped"))
    assert not one(reports).alive
    reports.take(report(reporter="r2"))
    now = one(reports)
    assert (now.alive, now.rivals, now.reason) == (True, 0, "")


def test_only_who_goes_on_reporting_beside_another_is_a_rival(
    reports: ReplicationReports, clock: Clock
) -> None:
    for reporter in ("killed", "again"):
        reports.take(report(reporter=reporter))
        clock.now += 1
    assert one(reports).rivals == 0, "the first has not been heard since the second began"
    reports.take(report(reporter="killed"))
    assert one(reports).rivals == 1, "it was not dead"
    clock.now += 1
    reports.take(report(reporter="again"))
    assert one(reports).rivals == 1
    clock.now += ALIVE_S
    reports.take(report(reporter="again"))
    assert one(reports).rivals == 0
    reports.take(report(namespace="elsewhere", reporter="again"))
    assert [(each.namespace, each.rivals) for each in reports.known()] == [
        ("elsewhere", 0),
        ("n", 0),
    ]


def test_the_origins_and_the_bytes_that_are_kept_are_bounded(
    reports: ReplicationReports, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(MOST_ORIGINS + 3):
        reports.take(report(origin=f"o{number:03}"))
        clock.now += 1
    kept = [each.origin for each in reports.known()]
    assert (len(kept), kept[0]) == (MOST_ORIGINS, "o003")
    monkeypatch.setattr(reports_module, "MAX_BYTES", 170_000)
    tables = tuple(
        TableReport(table=f"t{number}", source="x" * 200, phase="waiting") for number in range(200)
    )
    for number in range(9):
        reports.take(report(origin=f"big{number}", tables=tables))
        clock.now += 1
    assert [each.origin for each in reports.known()] == ["big7", "big8"]


def test_a_report_without_an_origin_is_refused(reports: ReplicationReports) -> None:
    with pytest.raises(BadRequest, match="expected an 'origin' and a 'namespace'"):
        reports.take(report(origin=""))
    assert list(reports.known()) == []
