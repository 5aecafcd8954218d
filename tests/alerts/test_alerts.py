"""What a daemon tells, scraped: all of it is on its page, answers the dashboard, fires alerts."""

from __future__ import annotations

import urllib.request

import pyarrow.flight as fl
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.alerts.faults import REPORT, TABLE
from tests.alerts.prometheus import needs_prometheus, promtool
from tests.drivers.daemon import Daemon
from tests.drivers.wire import act, numbers, put, rows
from tests.readme.metrics_page import daemon_metrics

EMPTY = {"Refusals", "Failed attempts", "Alarms"}
"""Panels that have nothing to draw where all is well."""


@pytest.fixture
def busy(shared: Daemon, client: fl.FlightClient) -> Daemon:
    """A daemon that has done of everything a little."""
    for first in range(0, 50, 10):
        put(client, ("alerts", "t"), numbers(first, 10))
    act(client, "persist", namespace="alerts")
    put(client, ("alerts", "t"), numbers(50, 10))
    assert len(rows(client, ("alerts", "t"))) >= 60
    table = TABLE | {"phase": "following"}
    facts = {"lag_s": 0.5, "slot_bytes": 1000, "tables": [table], "reporter": "r"}
    act(client, "replication_report", **REPORT | {"namespace": "alerts"}, **facts)
    return shared


def text_of(daemon: Daemon) -> str:
    with urllib.request.urlopen(daemon.http + "/metrics") as answer:
        text: str = answer.read().decode()
    return text


def test_everything_that_is_scraped_is_on_the_page_with_its_type_and_labels(busy: Daemon) -> None:
    page = {row.name.removesuffix("_total"): row for row in daemon_metrics()}
    seen = set()
    for family in text_string_to_metric_families(text_of(busy)):
        if family.name.endswith("_created") and family.type == "gauge":
            continue  # the moment at which a counter or a histogram began
        row = page[family.name.removesuffix("_total")]
        assert row.kind == family.type, family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels <= set(row.labels), family.name
        seen.add(family.name)
    assert {row.name.removesuffix("_total") for row in page.values()} - seen == set()


@needs_prometheus
def test_promtool_finds_no_fault_in_a_scrape(busy: Daemon) -> None:
    promtool("check", "metrics", stdin=text_of(busy).encode())
