"""Metrics of how the daemon stands: alarms, store, disks, its oldest row; and of HTTP's answers.

Law of this file: pure, and labels are bounded: the alarms, the operations of a store with what came
of them, the routes of HTTP with statuses. They are there from the start of the process on, also
while the daemon waits for its store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from ingester.observability.alarms import ALARMS
from ingester.observability.standing import DiskStatus, StoreState
from persist.store.watched import BOUNDS_S, OPERATIONS, Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The figures of one moment."""

    version: str
    alarms: Collection[str]
    """The names of those that are raised."""
    store: StoreState
    requests: Tally
    disk: DiskStatus
    oldest_unpersisted_s: float | None
    """None where it is not known yet: the log is not replayed."""
    refresh_lag_s: float
    fenced: bool
    answers: Mapping[tuple[str, int], int]
    """HTTP's answers so far, by route and status."""


def standing_metrics(standing: Standing | None) -> Iterator[Metric]:
    """Yield all of them; their names alone for None."""
    yield from _gauges(standing)
    alarm = GaugeMetricFamily(
        "ingester_alarm",
        "1 while an alarm is raised, by its entry in the runbook",
        labels=["alarm"],
    )
    for name in () if standing is None else ALARMS:
        alarm.add_metric([name], float(standing is not None and name in standing.alarms))
    yield alarm
    yield _disks(None if standing is None else standing.disk)
    yield from _requests(None if standing is None else standing.requests)
    answers = CounterMetricFamily(
        "ingester_http_requests", "HTTP requests that were answered", labels=["route", "status"]
    )
    for (route, status), count in () if standing is None else sorted(standing.answers.items()):
        answers.add_metric([route, str(status)], count)
    yield answers


def _gauges(of: Standing | None) -> Iterator[Metric]:
    build = GaugeMetricFamily(
        "ingester_build_info", "1; the version is a label", labels=["version"]
    )
    if of is not None:
        build.add_metric([of.version], 1.0)
    yield build
    up = None if of is None else float(of.store.state == "ok")
    oldest = None if of is None else of.oldest_unpersisted_s
    yield GaugeMetricFamily("ingester_store_up", "1 while the store answers", value=up)
    yield GaugeMetricFamily(
        "ingester_oldest_unpersisted_seconds",
        "Age of the oldest row that is in no file, 0 where every row is in one; none while it is"
        " not known, as the log is not replayed yet",
        value=oldest,
    )
    yield GaugeMetricFamily(
        "ingester_refresh_lag_seconds",
        "Seconds for which a table that is asked for could not be looked up in the store",
        value=None if of is None else of.refresh_lag_s,
    )
    yield GaugeMetricFamily(
        "ingester_fenced",
        "1 once another process has taken over this id",
        value=None if of is None else float(of.fenced),
    )


def _disks(disk: DiskStatus | None) -> Metric:
    family = GaugeMetricFamily(
        "ingester_disk_free_bytes",
        "Room of a disk: of the log, of what queries put aside, of a store on local files",
        labels=["disk"],
    )
    if disk is not None:
        rooms = {
            "log": disk.log_free_bytes,
            "spill": disk.spill_free_bytes,
            "store": disk.store_free_bytes,
        }
        for name, free in rooms.items():
            if free is not None:
                family.add_metric([name], free)
    return family


def _requests(tally: Tally | None) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "ingester_store_requests",
        "Requests of the store; not_found and exists are answers, too",
        labels=["operation", "outcome"],
    )
    seconds = HistogramMetricFamily(
        "ingester_store_request_seconds",
        "Requests of the store, answered or not; of a listing, its first part",
        labels=["operation"],
    )
    if tally is not None:
        for (operation, outcome), count in sorted(tally.requests.items()):
            requests.add_metric([operation, outcome], count)
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        for operation in OPERATIONS:
            buckets = list(zip(bounds, accumulate(tally.buckets[operation]), strict=True))
            seconds.add_metric([operation], buckets, tally.seconds[operation])
    yield requests
    yield seconds
