"""The figures of a running daemon that alarms are judged by and that its history keeps.

Law of this file: it reads what the parts tell, in steps of the same cost whatever the daemon holds.
On the loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingester.config.settings import Settings
from ingester.daemon.assembly import Runtime
from ingester.errors import kind_of
from ingester.memory.machine import resident_bytes
from ingester.observability.alarms import SLOT_BYTES
from ingester.observability.history import STEP_S, Growth, quantile
from ingester.observability.logs import RecentProblems
from ingester.observability.status import SecurityStatus
from persist.store import StoreWatch
from persist.store.watched import ANSWERS

GRACE_S = 60.0


class Figures:
    """Gathers the figures of a moment for the history; its rates are since the last moment."""

    def __init__(self, problems: RecentProblems, store: StoreWatch) -> None:
        self._problems = problems
        self._store = store
        self._growth = Growth()
        self._problem_count = problems.count
        self._ack_counts: list[int] | None = None

    def gather(self, runtime: Runtime, now: float) -> Mapping[str, float | None]:
        """Return the figures of now by the names of ``history.FIGURES``."""
        rates = runtime.rates.over(round(STEP_S))
        memory = runtime.ledger.statistics()
        requests = self._store.tally().requests
        failures = sum(n for (_, outcome), n in requests.items() if outcome not in ANSWERS)
        totals = {
            "refusals_per_s": float(runtime.metrics.refusals),
            "persisted_bytes_per_s": float(runtime.instrumentation.persisted_bytes),
            "store_requests_per_s": float(sum(requests.values())),
            "store_failures_per_s": float(failures),
        }
        problems, self._problem_count = self._problem_count, self._problems.count
        return {
            "rows_per_s": rates.rows_per_s,
            "bytes_per_s": rates.bytes_per_s,
            "operations_per_s": rates.operations_per_s,
            "queries_per_s": rates.queries_per_s,
            **self._latencies(runtime),
            **self._growth.rates(now, totals),
            "buffered_bytes": runtime.ledger.buffered + runtime.ledger.frozen,
            "memory_bytes": memory.used_bytes,
            "resident_bytes": resident_bytes() or None,
            "queued_bytes": runtime.flusher.queued_bytes,
            "log_bytes": runtime.wal.statistics().bytes,
            "oldest_unpersisted_s": runtime.tree.oldest_s(),
            "streams": runtime.queries.statistics().open,
            "errors": self._problem_count - problems,
        }

    def _latencies(self, runtime: Runtime) -> dict[str, float | None]:
        timings = runtime.metrics.ack_timings
        before, after = self._ack_counts, timings.counts()
        self._ack_counts = after
        if before is None:
            return {}
        return {
            "write_p50_s": quantile(0.5, timings.bounds, before, after),
            "write_p99_s": quantile(0.99, timings.bounds, before, after),
        }


def security_facts(security: SecurityStatus) -> dict[str, object]:
    """Return the facts that the certificate and the tokens give."""
    certificate = security.certificate
    return {
        "certificate_ends_in_s": None if certificate is None else certificate.ends_in_s,
        "certificate_problem": certificate is not None and certificate.problem is not None,
        "token_problems": len(security.callers.problems),
    }


def runtime_facts(runtime: Runtime, settings: Settings) -> dict[str, object]:
    """Return the facts that the parts of a daemon give."""
    replications = list(runtime.reports.known())
    return {
        "fenced": runtime.state == "fenced",
        "log_writing_s": runtime.wal.writing_s,
        "refusals": frozenset(kind_of(each).code for each in runtime.admission.refusals()),
        "oldest_unpersisted_s": runtime.tree.oldest_s(),
        "oldest_allowed_s": 2 * settings.persist.max_age + GRACE_S,
        "frozen_bytes": runtime.ledger.frozen,
        "unheard": sum(not each.alive or each.rivals > 0 for each in replications),
        "large_slots": sum(
            each.alive and (each.slot_bytes or 0) > SLOT_BYTES for each in replications
        ),
        "set_aside": sum(each.phases.get("set_aside", 0) for each in replications),
        "hung_calls": sum(runtime.transforms.statistics().hung_calls.values()),
        "unled_pushes": sum(
            each.ended_at is None and not each.led for each in runtime.push_watch.pushes()
        ),
        "not_adopted": sum(
            each.state in ("failed", "refused") for each in runtime.left_logs.statistics()
        ),
    }
