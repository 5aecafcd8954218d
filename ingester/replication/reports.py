"""The latest report of each replicator, and which replicators are alive.

    replication_report ─▶ the newest of its replicator ─▶ /api/status, the page, /metrics

Reports are kept in memory only and decide nothing; after a restart replicators report again within
seconds. A silent replicator is shown for a day, with the time of its last report. Each replicator
draws a random name for itself, so two that report the same origin are recognized
(``tests/replication/test_reports.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from ingester.errors import BadRequest
from ingester.observability.status import ReplicationStatus
from ingester.reports.replications import ReplicationReport, bounded

ALIVE_S = 30.0
"""A replicator without a report for this time counts as not alive."""
FORGOTTEN_S = 86_400.0
"""A silent replicator is no longer shown after this time."""
MOST_ORIGINS = 64
MAX_BYTES = 16 << 20
"""Limits of all reports; the oldest are dropped."""

Key = tuple[str, str]
"""A namespace, and an origin that writes into it."""


class _Reporter:
    """When a replicator first and last reported."""

    def __init__(self, now: float) -> None:
        self.first_at = self.last_at = now
        self.ended = False


class _Origin:
    """An origin's latest report, and its reporters."""

    def __init__(self, report: ReplicationReport) -> None:
        self.report = report
        self.nbytes = 0
        self.at = self.wall_at = 0.0
        self.reporters: dict[str, _Reporter] = {}

    def rivals(self, now: float) -> int:
        """Count other live replicators that have reported since the latest one began."""
        newest = self.reporters[self.report.reporter]
        return sum(
            each is not newest
            and not each.ended
            and each.last_at > newest.first_at
            and now - each.last_at < ALIVE_S
            for each in self.reporters.values()
        )


class ReplicationReports:
    """The reports of all replicators. Loop only.

    Args:
        now: A monotonic clock for ages.
        wall: A clock in Unix time.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._now = now
        self._wall = wall
        self._origins: dict[Key, _Origin] = {}

    def take(self, report: ReplicationReport) -> ReplicationReport:
        """Store a report; return it within its bounds.

        Raises:
            BadRequest: no origin or namespace.
        """
        if not report.origin or not report.namespace:
            raise BadRequest("replication_report: expected an 'origin' and a 'namespace'")
        report, now = bounded(report), self._now()
        key = (report.namespace, report.origin)
        origin = self._origins.setdefault(key, _Origin(report))
        reporter = origin.reporters.setdefault(report.reporter, _Reporter(now))
        reporter.last_at, reporter.ended = now, report.state == "ended"
        origin.report, origin.at, origin.wall_at = report, now, self._wall()
        origin.nbytes = len(msgspec.json.encode(report))
        origin.reporters = {
            name: each
            for name, each in origin.reporters.items()
            if each is reporter or now - each.last_at < ALIVE_S
        }
        self._forget(now)
        return report

    def known(self) -> Iterator[ReplicationStatus]:
        """All replications, by namespace and origin."""
        now = self._now()
        self._forget(now)
        for _, origin in sorted(self._origins.items()):
            report, heard_s = origin.report, now - origin.at
            fields = {name: getattr(report, name) for name in report.__struct_fields__}
            yield ReplicationStatus(
                **fields,
                phases=report.count_phases(),
                alive=heard_s < ALIVE_S and report.state != "ended",
                heard_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(origin.wall_at)),
                heard_s=round(heard_s, 3),
                rivals=origin.rivals(now),
            )

    def _forget(self, now: float) -> None:
        oldest_first = sorted(self._origins.items(), key=lambda item: item[1].at)
        nbytes = sum(each.nbytes for each in self._origins.values())
        for key, origin in oldest_first:
            many = len(self._origins) > MOST_ORIGINS or nbytes > MAX_BYTES
            if not many and now - origin.at <= FORGOTTEN_S:
                break
            nbytes -= origin.nbytes
            del self._origins[key]
