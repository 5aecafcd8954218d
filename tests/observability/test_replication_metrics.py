"""Metrics of replications: up-to-date lags and a bounded number of series."""

from __future__ import annotations

from typing import Any

from prometheus_client.metrics_core import Metric

from ingester.observability.gauges import MAX_TABLE_PHASES, replication_metrics
from ingester.observability.status import ReplicationStatus
from ingester.reports.replications import Phase, ReplicationReport, TableReport


def status(*tables: TableReport, alive: bool = True, **more: Any) -> ReplicationStatus:
    report = ReplicationReport(
        origin="o", namespace="n", source="db", slot="s", tables=tables, lag_s=2.0, lag_bytes=9
    )
    fields = {name: getattr(report, name) for name in report.__struct_fields__}
    told: dict[str, Any] = {"alive": alive, "heard_at": "2026-11-26T08:10:00Z", "heard_s": 100.0}
    return ReplicationStatus(**{**fields, **told, "phases": report.count_phases(), **more})


def scraped(*replications: ReplicationStatus) -> dict[str, Metric]:
    return {each.name: each for each in replication_metrics(replications)}


def only(metric: Metric) -> float:
    (sample,) = metric.samples
    return float(sample.value)


def table(name: str, phase: Phase) -> TableReport:
    return TableReport(table=name, source=name, phase=phase)


def test_the_lag_grows_while_nobody_reports_and_bytes_are_not_known_then() -> None:
    alive, dead = scraped(status()), scraped(status(alive=False))
    assert only(alive["ingester_replication_lag_seconds"]) == 2.0
    assert only(dead["ingester_replication_lag_seconds"]) == 102.0
    assert only(alive["ingester_replication_lag_bytes"]) == 9
    assert dead["ingester_replication_lag_bytes"].samples == []
    assert (only(alive["ingester_replication_up"]), only(dead["ingester_replication_up"])) == (1, 0)
    assert only(dead["ingester_replication_heard_ago_seconds"]) == 100.0
    unknown = scraped(status(lag_s=None))
    assert unknown["ingester_replication_lag_seconds"].samples == []


def test_tables_are_counted_by_phase_and_at_most_a_thousand_have_a_series() -> None:
    following = [table(f"t{number:04}", "following") for number in range(1500)]
    aside = [table(f"a{number}", "set_aside") for number in range(3)]
    found = scraped(status(*following, *aside, left_out={"following": 10}))
    counts = {
        each.labels["phase"]: each.value for each in found["ingester_replication_tables"].samples
    }
    assert counts["set_aside"] == 3
    assert len(counts) == 6
    series = found["ingester_replication_table_phase"].samples
    assert len(series) == MAX_TABLE_PHASES
    assert [each.labels["phase"] for each in series[:4]] == ["set_aside"] * 3 + ["following"]


def test_two_tables_under_one_name_are_one_series_of_the_worse_phase() -> None:
    found = scraped(status(table("t", "set_aside"), table("t", "following")))
    (series,) = found["ingester_replication_table_phase"].samples
    assert series.labels == {"namespace": "n", "origin": "o", "table": "t", "phase": "set_aside"}
