"""A daemon's scraped metrics: all are on the status page, and serve the dashboard and alerts."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pyarrow.flight as fl
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.alerts.background_faults import REPORT, TABLE
from tests.alerts.campaign import try_fault
from tests.alerts.faults import FAULTS
from tests.alerts.prometheus import needs_prometheus, program, promtool, scraping
from tests.alerts.rules import expressions, queries
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import act, numbers, put, rows
from tests.readme.metrics_page import daemon_metrics

HOSTILE = 'quo"te\\{a="b"} 1'
"""An origin's name that would be a separate sample if labels were not escaped."""
EMPTY = {"Refusals", "Failed attempts", "Alarms"}
"""Panels without data while everything is well."""


@pytest.fixture
def busy(shared: Daemon, client: fl.FlightClient) -> Daemon:
    """A daemon that has performed every kind of operation."""
    for first in range(0, 50, 10):
        put(client, ("alerts", "t"), numbers(first, 10))
    act(client, "persist", namespace="alerts")
    put(client, ("alerts", "t"), numbers(50, 10))
    assert len(rows(client, ("alerts", "t"))) >= 60
    table = TABLE | {"phase": "following"}
    facts = {"lag_s": 0.5, "slot_bytes": 1000, "tables": [table], "reporter": "r"}
    named = {"namespace": "alerts", "origin": HOSTILE}
    act(client, "replication_report", **REPORT | named, **facts)
    return shared


def text_of(daemon: Daemon) -> str:
    with urllib.request.urlopen(daemon.http + "/metrics") as answer:
        text: str = answer.read().decode()
    return text


def test_every_scraped_metric_is_documented_with_its_type_and_labels(busy: Daemon) -> None:
    page = {row.name.removesuffix("_total"): row for row in daemon_metrics()}
    seen = set()
    for family in text_string_to_metric_families(text_of(busy)):
        if family.name.endswith("_created") and family.type == "gauge":
            continue  # the time at which a counter or a histogram began
        row = page[family.name.removesuffix("_total")]
        assert row.kind == family.type, family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels <= set(row.labels), family.name
        seen.add(family.name)
    assert {row.name.removesuffix("_total") for row in page.values()} - seen == set()


@needs_prometheus
def test_promtool_accepts_a_scrape(busy: Daemon) -> None:
    promtool("check", "metrics", stdin=text_of(busy).encode())


@needs_prometheus
def test_every_query_of_dashboard_and_rules_returns_data(
    busy: Daemon, client: fl.FlightClient, tmp_path: Path
) -> None:
    with scraping(tmp_path, {"pod-0": busy.http.removeprefix("http://")}) as prometheus:
        put(client, ("alerts", "t"), numbers(60, 10))

        def counted() -> bool:
            return bool(prometheus.query("sum(rate(ingester_rows_total[10s])) > 0"))

        until(counted, "two scrapes")
        for expr in expressions().values():
            prometheus.query(expr)
        for title, panel in queries().items():
            found = []
            for expr in panel:
                shown = expr.replace("$__rate_interval", "10s").replace("$instance", ".*")
                found += prometheus.query(shown)
            assert found or title in EMPTY, title


@pytest.mark.parametrize(
    ("name", "secure", "waits"), [("unreachable_store", False, False), ("damaged_file", True, True)]
)
def test_a_fault_fires_its_alerts_and_the_runbook_alone_mends_it(
    name: str, secure: bool, waits: bool, tmp_path: Path
) -> None:
    checks = program("promtool") is not None
    try_fault(FAULTS[name], tmp_path, secure=secure, waits=waits, checks=checks)
