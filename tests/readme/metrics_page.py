"""The tables of ``docs/metrics.md``, generated from the code that registers the metrics.

Each metric has a row: name as scraped, type, unit, labels, and help text. The values of a label
and their number are described once per label, in :data:`LABELS`, with the limits of the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from ingester.cli.controller import HookMetrics, PushMetrics
from ingester.cli.follow import FollowMetrics
from ingester.config.settings import NamespaceQuota
from ingester.errors import ERRORS
from ingester.observability.gauges import MAX_NAMESPACES, MAX_TABLE_PHASES, GaugeCollector
from ingester.observability.metrics import (
    FREEZE_REASONS,
    LIMITS,
    MAX_CLASSES,
    MAX_TABLES,
    OUTCOMES,
    Metrics,
)
from ingester.pushes.controller import ControllerStatistics
from ingester.pushes.states import Status
from ingester.reports.replications import PHASES

LABELS: dict[str, tuple[str, str]] = {
    "namespace": (
        "a table's namespace; of `ingester_namespace_…` and `ingester_quota_refused_total` the"
        " namespaces that have the most in memory",
        f"with `table` {MAX_TABLES:,} pairs, else {MAX_NAMESPACES}; the rest is `_other`",
    ),
    "table": ("a table", f"{MAX_TABLES:,} pairs with `namespace`; the rest is `_other`"),
    "format": ("an open format that a table is published in", "2"),
    "why": ("why a buffer was frozen", f"{len(FREEZE_REASONS)}"),
    "code": (
        "a code of [errors](errors.md); of followers also `sink`",
        f"{len({kind.code for kind in ERRORS.values()})}",
    ),
    "quota": ("a setting of `[quotas]`", f"{len(NamespaceQuota.__struct_fields__)}, and `share`"),
    "limit": ("a setting of `[limits]`, and three of `[query]`", f"{len(LIMITS)}"),
    "kind": ("what holds memory, as in `by_kind` of the status", "some 15"),
    "class": (
        "of transformers: the class; of hooks: the configured class",
        f"{MAX_CLASSES}; the rest is `_other`",
    ),
    "outcome": (
        f"of transformers: {', '.join(OUTCOMES)}; of hooks: a decision, failed, timed_out;"
        " of the store: what it answered",
        "some 10 each",
    ),
    "origin": ("who writes a replication", "as many as replicators report, 100 at most"),
    "phase": ("the phase of a replicated table", f"{len(PHASES)}"),
    "method": ("a method of a hook", "15"),
    "call": ("a call of a follower's sink", "some 10"),
    "status": (
        "of pushes: the status of the push; of HTTP: the status of the answer",
        f"{len(Status)}, some 12",
    ),
    "alarm": ("an alarm, by its entry in [the runbook](../deploy/RUNBOOK.md)", "some 20"),
    "route": ("a route of HTTP as [the wire format](protocol.md#http) has it", "some 15"),
    "operation": ("a request to the store", "some 6"),
    "version": ("the version of the program", "1"),
    "disk": ("what lies on it", "3"),
}
"""The meaning of each label, and the number of its values."""
ORIGIN_TABLES = f"""
Of `ingester_replication_table_phase` at most {MAX_TABLE_PHASES:,} series are shown.
"""
UNITS = {"_seconds": "seconds", "_bytes": "bytes"}


class MetricRow(NamedTuple):
    """A metric's row of the page."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def unit(self) -> str:
        """The unit, taken from the name."""
        name = self.name.removesuffix("_total")
        if name.endswith("_timestamp_seconds"):
            return "seconds since 1970"
        return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


def daemon_metrics() -> list[MetricRow]:
    """The metrics of ``ingester serve``."""
    registry = CollectorRegistry()
    Metrics(registry)
    registry.register(GaugeCollector(_never))
    return sorted(_rows(registry))


def follower_metrics() -> list[MetricRow]:
    """The metrics of ``ingester follow --http``."""
    metrics = FollowMetrics()
    metrics.tell_of(list)
    return sorted(_rows(metrics.registry))


def controller_metrics() -> list[MetricRow]:
    """The metrics of ``ingester controller --metrics``."""
    registry = CollectorRegistry()
    idle: Any = _Idle()
    registry.register(HookMetrics(idle))
    registry.register(PushMetrics(idle))
    # Redundant today: the idle controller's metric reports the same label.
    named = {"ingester_pushes": ("status",)}
    return sorted(row._replace(labels=named.get(row.name, row.labels)) for row in _rows(registry))


class _Idle:
    """Statistics of an idle controller: no hook was called, and no push is retained."""

    def statistics(self) -> Any:
        return _IdleStatistics({}, 0, 0, 0, 0, 0, 0, 0.0)

    def queue_times(self) -> list[Any]:
        return []


class _IdleStatistics(ControllerStatistics):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def _never() -> Any:
    raise AssertionError("the page is made without a daemon")


def _rows(registry: CollectorRegistry) -> Iterator[MetricRow]:
    # Private attribute: a registry has no public list of collectors, and families lack labels.
    for collector in list(registry._collector_to_names):
        of_collector = getattr(collector, "_labelnames", None)
        if isinstance(collector, GaugeCollector):
            families: Iterable[Metric] = collector.describe()
        else:
            families = collector.collect()
        for family in families:
            labels = getattr(family, "_labelnames", None) if of_collector is None else of_collector
            name = family.name + ("_total" if family.type == "counter" else "")
            yield MetricRow(name, family.type, tuple(labels or ()), family.documentation)


def metrics_tables() -> str:
    """All tables of the page, with their headings."""
    own = [row for row in daemon_metrics() if not row.name.startswith("process_")]
    process = [row for row in daemon_metrics() if row.name.startswith("process_")]
    follower = [row for row in follower_metrics() if not row.name.startswith("process_")]
    used = {label for row in (*own, *follower, *controller_metrics()) for label in row.labels}
    labels = [(f"`{label}`", *LABELS[label]) for label in sorted(used)]
    parts = [
        ("Of a daemon", _metric_table(own)),
        ("Of every process", _metric_table(process)),
        ("Of a follower", _metric_table(follower)),
        ("Of a controller", _metric_table(controller_metrics())),
        ("Labels", table(("label", "meaning", "values"), labels) + ORIGIN_TABLES),
    ]
    return "\n".join(f"## {heading}\n\n{text}" for heading, text in parts)


def _metric_table(rows: Sequence[MetricRow]) -> str:
    cells = [
        (
            f"`{row.name}`",
            row.kind,
            row.unit,
            ", ".join(f"`{each}`" for each in row.labels),
            row.text,
        )
        for row in rows
    ]
    return table(("metric", "type", "unit", "labels", "meaning"), cells)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("|" + "|".join(f" {cell} " for cell in line) + "|\n" for line in lines)
