"""The gauges of namespaces: what each has, beside its quotas.

Law of this file: labels are bounded. The namespaces with the most in memory have their names, the
rest counts together as ``_other``, and has no quota.

Pure: no trio, no sockets, no files.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from msgspec.structs import asdict
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from ingester.observability.status import NamespaceStatus

MAX_NAMESPACES = 100
"""The number of namespaces whose use and refusals are shown by name."""
OTHER_NAMESPACES = "_other"
"""Label of the others; no namespace can have this name."""

_GAUGES = {
    "bytes": "Bytes in buffers, and on their way there",
    "queued_bytes": "Bytes of frozen buffers that wait to be persisted",
    "partitions": "Partitions with a buffer",
    "tables": "Tables that are open",
    "writers": "Open streams of writers",
    "answers": "Answers under way, and calls of followers that wait",
}


def namespace_metrics(namespaces: Sequence[NamespaceStatus]) -> Iterator[Metric]:
    """Yield the metrics of all namespaces; their names also where there is none."""
    named = heapq.nlargest(MAX_NAMESPACES, namespaces, key=lambda each: (each.bytes, each.tables))
    known = {each.namespace for each in named}
    rest = [each for each in namespaces if each.namespace not in known]
    for name, text in _GAUGES.items():
        family = GaugeMetricFamily(f"ingester_namespace_{name}", text, labels=["namespace"])
        for each in named:
            family.add_metric([each.namespace], getattr(each, name))
        if rest:
            family.add_metric([OTHER_NAMESPACES], sum(getattr(each, name) for each in rest))
        yield family
    quotas = GaugeMetricFamily(
        "ingester_namespace_quota", "Quotas that are set", labels=["namespace", "quota"]
    )
    for each in named:
        for quota, most in asdict(each.quota).items():
            if most:
                quotas.add_metric([each.namespace, quota], most)
    yield quotas
