"""Counters and latencies of transformers, by class.

Law of this file: labels are bounded: :data:`MAX_CLASSES` classes have their own, the rest counts as
``_other``.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

MAX_CLASSES = 100
OTHER = "_other"
OUTCOMES = ("changed", "unchanged", "skipped", "failed", "timed_out", "refused")

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30)
_CLASS = ("class",)


class TransformerMetrics:
    """The counters of all transformers. Any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register with ``registry``."""
        batches = "Batches that a transformer was called with, by what came of it"
        self._batches = Counter(
            "ingester_transformer_batches", batches, ("class", "outcome"), registry=registry
        )
        self._rows_in = Counter(
            "ingester_transformer_rows_in", "Rows of these batches", _CLASS, registry=registry
        )
        self._rows_out = Counter(
            "ingester_transformer_rows_out", "Rows that they became", _CLASS, registry=registry
        )
        self._seconds = Histogram(
            "ingester_transformer_seconds",
            "One call of a transformer, the wait for a thread included",
            _CLASS,
            buckets=_SECONDS,
            registry=registry,
        )
        self._known: set[str] = set()

    def called(self, name: str, outcome: str, seconds: float, rows_in: int, rows_out: int) -> None:
        """Count one call."""
        if name not in self._known:
            if len(self._known) >= MAX_CLASSES:
                name = OTHER
            self._known.add(name)
        self._batches.labels(name, outcome).inc()
        self._rows_in.labels(name).inc(rows_in)
        self._rows_out.labels(name).inc(rows_out)
        self._seconds.labels(name).observe(seconds)
