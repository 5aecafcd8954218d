"""The gauges of replications, by what their replicators have reported last.

Law of this file: pure, and labels are bounded: the daemon keeps the reports of few origins, and
:data:`MOST_SERIES` tables have a series of their own, those that do not follow first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from ingester.observability.status import ReplicationStatus
from ingester.reports.replications import PHASES

MOST_SERIES = 1_000
_ORIGIN = ("namespace", "origin")


def replication_metrics(replications: Sequence[ReplicationStatus]) -> Iterator[Metric]:
    """Yield the metrics of all replications; their names also where there is none."""
    for name, text, value in _NUMBERS:
        counts = name == "retries"
        kind = CounterMetricFamily if counts else GaugeMetricFamily
        family = kind(f"ingester_replication_{name}", text, labels=_ORIGIN)
        for each in replications:
            number = value(each)
            if number is not None:
                family.add_metric((each.namespace, each.origin), number)
        yield family
    yield _tables(replications)
    yield _phases(replications)


def _tables(replications: Sequence[ReplicationStatus]) -> Metric:
    family = GaugeMetricFamily(
        "ingester_replication_tables", "Tables by phase", labels=(*_ORIGIN, "phase")
    )
    for each in replications:
        for phase, count in each.phases.items():
            family.add_metric((each.namespace, each.origin, phase), count)
    return family


def _phases(replications: Sequence[ReplicationStatus]) -> Metric:
    family = GaugeMetricFamily(
        "ingester_replication_table_phase",
        "1 for the phase that a table is in; of very many tables only those that do not follow",
        labels=(*_ORIGIN, "table", "phase"),
    )
    # By name, and the last one counts, which is the first by phase: two tables of a source may be
    # told under one name here, and a scrape that has a series twice is refused as a whole.
    found = {
        (each.namespace, each.origin, table.table): table.phase
        for each in replications
        for table in reversed(each.tables)
    }
    order = sorted(found.items(), key=lambda item: (PHASES.index(item[1]), item[0]))
    for labels, phase in islice(order, MOST_SERIES):
        family.add_metric((*labels, phase), 1.0)
    return family


def _lag_s(of: ReplicationStatus) -> float | None:
    if of.lag_s is None:
        return None
    return of.lag_s if of.alive else of.lag_s + of.heard_s


_NUMBERS: tuple[tuple[str, str, Callable[[ReplicationStatus], float | None]], ...] = (
    ("up", "1 while a replicator reports", lambda r: float(r.alive)),
    ("heard_ago_seconds", "Seconds since a replicator has reported", lambda r: r.heard_s),
    (
        "lag_seconds",
        "Seconds by which the copy is behind its source; grows while nobody reports",
        _lag_s,
    ),
    (
        "lag_bytes",
        "Bytes of the source's log that the copy lacks; none while nobody reports",
        lambda r: r.lag_bytes if r.alive else None,
    ),
    (
        "slot_bytes",
        "Bytes of its log that the source keeps for the slot; none while nobody reports",
        lambda r: r.slot_bytes if r.alive else None,
    ),
    ("rivals", "Other replicators that report the same origin", lambda r: r.rivals),
    ("retries", "Sessions at the source or the daemon that have failed", lambda r: r.retries),
)
