"""Counters that every write adds to: plain additions, with no lock and no label to look up.

Law of this file: the event loop alone adds; any thread may collect, and sees each figure as it was
at some moment of the collection. What is shown is what ``prometheus_client``'s own counters and
histograms would show.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

Labels = tuple[str, str]


class Written:
    """Operations, rows and bytes of one table that were acknowledged."""

    __slots__ = ("nbytes", "operations", "rows")

    def __init__(self) -> None:
        self.operations = self.rows = self.nbytes = 0

    def add(self, rows: int, nbytes: int, operations: int = 1) -> None:
        """Count an operation, or several together."""
        self.operations += operations
        self.rows += rows
        self.nbytes += nbytes


class WrittenTables(Collector):
    """All tables' :class:`Written`, as counters with a namespace and a table."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register with ``registry``."""
        self._tables: dict[Labels, Written] = {}
        registry.register(self)

    def of(self, namespace: str, table: str) -> Written:
        """The counts of a table, the same object each time. Any thread."""
        return self._tables.setdefault((namespace, table), Written())

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The families of operations, rows and bytes."""
        families = self.describe()
        for labels, written in list(self._tables.items()):
            figures = (written.operations, written.rows, written.nbytes)
            for family, figure in zip(families, figures, strict=True):
                family.add_metric(labels, figure)
        yield from families

    def describe(self) -> list[CounterMetricFamily]:
        """The families without their figures."""
        texts = {
            "operations": "Acknowledged operations",
            "rows": "Acknowledged rows",
            "bytes": "Arrow bytes of acknowledged rows, and some 200 of each batch",
        }
        return [
            CounterMetricFamily(f"ingester_{name}", text, labels=("namespace", "table"))
            for name, text in texts.items()
        ]


class Timings(Collector):
    """A histogram of seconds."""

    def __init__(
        self, name: str, text: str, buckets: Iterable[float], registry: CollectorRegistry
    ) -> None:
        """Register with ``registry``; ``buckets`` are upper bounds, ascending."""
        self._name, self._text = name, text
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count one timing, or several that took as long."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._sum += seconds * times

    @property
    def bounds(self) -> tuple[float, ...]:
        """The upper bounds of the buckets, ascending."""
        return self._bounds

    def counts(self) -> list[int]:
        """The counts of each bucket and of what is beyond the last one, not cumulative."""
        return list(self._counts)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The family with the counts of up to each bound."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(list(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)

    def describe(self) -> list[HistogramMetricFamily]:
        """The family without its figures."""
        return [HistogramMetricFamily(self._name, self._text)]
