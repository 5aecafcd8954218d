"""Rules and dashboard as files: the metrics they name exist, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ingester.observability.alarms import ALARMS
from tests.alerts.faults import FAULTS
from tests.alerts.prometheus import needs_prometheus, promtool
from tests.alerts.recorded import check_fires
from tests.alerts.rules import (
    RULE_FILES,
    Alert,
    alerts,
    dashboard,
    expressions,
    metrics_in,
    panels,
    queries,
    recorded_names,
)
from tests.house.test_documents import RUNBOOK, anchors
from tests.readme.metrics_page import daemon_metrics

NAMES = {row.name for row in daemon_metrics()}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_an_alert_has_a_summary_and_links_to_its_runbook_entry(alert: Alert) -> None:
    assert set(alert.annotations) == {"summary", "description", "runbook_url"}
    assert alert.entry in anchors(RUNBOOK)
    assert alert.severity in ("warning", "critical")
    assert re.fullmatch(r"Ingester[A-Z]\w+", alert.name)


def test_every_alarm_has_an_alert_and_alert_names_are_unique() -> None:
    names = [alert.name for alert in alerts()]
    assert len(names) == len(set(names))
    assert set(ALARMS) <= {alert.entry for alert in alerts()}
    told = {name for each in alerts() for name in re.findall(r'alarm="([\w-]+)"', each.expr)}
    assert told <= set(ALARMS)


def test_rules_and_panels_use_existing_metrics() -> None:
    asked = {**expressions(), **{k: " ".join(v) for k, v in queries().items()}}
    for where, expr in asked.items():
        assert metrics_in(expr) <= NAMES, where
    made = {name for e in asked.values() for name in re.findall(r"ingester:\w+:\w+", e)}
    assert made <= recorded_names()


def test_the_dashboard_queries_the_chosen_data_source_and_instances() -> None:
    board = dashboard()
    assert {each["name"] for each in board["templating"]["list"]} == {"datasource", "instance"}
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    for panel in panels():
        if panel["type"] == "row":
            continue
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["description"]
        for expr in queries()[panel["title"]]:
            assert '$instance"' in expr, panel["title"]
    places = [panel["gridPos"] for panel in panels()]
    cells = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells)), "panels lie on each other"
    assert max(x for x, _ in cells) < 24


_NAMED = '{job="ingester", instance="a"}'
_ORIGIN = '{job="ingester", instance="a", namespace="s", origin="o"}'
# Alerts that no fault of the campaign causes: the series that do, and their minutes.
SYNTHETIC: dict[str, tuple[dict[str, str], int]] = {
    "IngesterFenced": ({'ingester_alarm{alarm="fenced", instance="a"}': "0x4 1x4"}, 3),
    "IngesterLogStalled": ({'ingester_alarm{alarm="log-stalled", instance="a"}': "0x4 1x4"}, 3),
    "IngesterOperationsLost": (
        {'ingester_alarm{alarm="operations-lost", instance="a"}': "0x4 1x4"},
        3,
    ),
    "IngesterPublishBehind": (
        {'ingester_alarm{alarm="publish-behind", instance="a"}': "0x4 1x12"},
        5,
    ),
    "IngesterPublishStopped": (
        {'ingester_alarm{alarm="publish-stopped", instance="a"}': "0x4 1x8"},
        5,
    ),
    "IngesterRestarts": ({f"process_start_time_seconds{_NAMED}": "1x4 2x4 3x4 4x4"}, 5),
    "IngesterStarting": ({f"ingester_ready{_NAMED}": "0x60"}, 15),
    "IngesterAbsent": ({f"up{_NAMED}": "stale", f"ingester_ready{_NAMED}": "stale"}, 10),
    "IngesterSlowWrites": (
        {
            f"ingester_ack_seconds_bucket{_NAMED}".replace("}", ', le="1.0"}'): "0+1x90",
            f"ingester_ack_seconds_bucket{_NAMED}".replace("}", ', le="10.0"}'): "0+9x90",
            f"ingester_ack_seconds_bucket{_NAMED}".replace("}", ', le="+Inf"}'): "0+9x90",
        },
        20,
    ),
    "IngesterDiskFills": (
        {f"ingester_disk_free_bytes{_NAMED}".replace("}", ', disk="log"}'): "200-1x160"},
        40,
    ),
    "IngesterBehindOthers": ({f"ingester_refresh_lag_seconds{_NAMED}": "400x20"}, 5),
    "IngesterFewDescriptors": (
        {f"process_open_fds{_NAMED}": "95x40", f"process_max_fds{_NAMED}": "100x40"},
        10,
    ),
    "IngesterCleanUpFails": ({f"ingester_clean_up_failed_runs_total{_NAMED}": "0+1x20"}, 5),
    "IngesterSlowClients": ({f"ingester_streams_stalled{_NAMED}": "11x80"}, 20),
    "IngesterAuditNotWritten": ({f"ingester_audit_left_out{_NAMED}": "0x4 5x4"}, 3),
    "IngesterInsecure": ({f"ingester_insecure{_NAMED}": "1x60"}, 15),
    "IngesterReplicationBehind": ({f"ingester_replication_lag_seconds{_ORIGIN}": "900x60"}, 15),
    "IngesterReplicationRivals": ({f"ingester_replication_rivals{_ORIGIN}": "1x20"}, 5),
    "IngesterReplicationRetries": (
        {f"ingester_replication_retries_total{_ORIGIN}": "0+1x20"},
        5,
    ),
    "IngesterReplicationUnheardAfterStart": (
        {f"ingester_replication_up{_ORIGIN}": "1x8 stale"},
        30,
    ),
}


@needs_prometheus
def test_alerts_without_a_reproducible_fault_fire_on_recorded_series(tmp_path: Path) -> None:
    check_fires(tmp_path, SYNTHETIC)


@needs_prometheus
def test_a_missing_and_an_additional_alert_are_detected(tmp_path: Path) -> None:
    values, minutes = SYNTHETIC["IngesterFenced"]
    for wrong in ("IngesterDown", "IngesterSlowClients"):
        with pytest.raises(AssertionError, match="FAILED"):
            check_fires(tmp_path, {wrong: (values, minutes)})


def test_every_alert_is_fired_by_a_fault_or_a_series() -> None:
    fired = {name for fault in FAULTS.values() for name in fault.alerts}
    assert fired | set(SYNTHETIC) == {alert.name for alert in alerts()}


@needs_prometheus
def test_promtool_accepts_the_rules() -> None:
    assert promtool("check", "rules", *RULE_FILES).count("SUCCESS") == len(RULE_FILES)
