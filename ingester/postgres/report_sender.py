"""Sends what a replicator tells of itself to the daemon, and never stands in its way.

    replicator ─ tell, as often as it likes ─▶ the newest report ─ a thread, every second ─▶ daemon

Law of this file: best effort. Nothing that goes wrong here is raised, and nobody waits for a daemon
but at the end, for :data:`LAST_S`. Only what was told anew is sent: a replicator that stands still
is shown as not heard of, and not by what it said before.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from ingester.client import (
    NEVER,
    Client,
    ClientError,
    ConnectionOptions,
    TimedOut,
    Unavailable,
    Unimplemented,
    Unreachable,
)
from ingester.reports.replications import ReplicationReport, bounded

EVERY_S = 1.0
"""A report is sent so often, and where one takes long (very many tables) less often."""
SHARE = 20
"""At most a 20th of the time goes into making and sending reports."""
TIMEOUT_S = 2.0
AWAY_S = 5.0
"""The pause while the daemon is away."""
REFUSED_S = 60.0
"""The pause where the daemon does not take reports: it may be replaced by a newer one."""
LAST_S = 2.0
"""The last report is waited for so long."""

Make = Callable[[], ReplicationReport]


class ReportSender:
    """Sends reports from a thread of its own, while it is entered.

    Args:
        endpoint: The daemon's, as :class:`Client` takes it.
        say: Told in a line what is wrong with reports, each once.
        every_s: The pause between two of them.
        options: As :class:`Client` takes them.
    """

    def __init__(
        self,
        endpoint: str,
        say: Callable[[str], None],
        *,
        every_s: float = EVERY_S,
        options: ConnectionOptions | None = None,
    ) -> None:
        self._client = Client(endpoint, retry=NEVER, timeout_s=TIMEOUT_S, options=options)
        self._say = say
        self._every_s = every_s
        self._reporter = uuid.uuid4().hex[:12]
        self._said: set[str] = set()
        self._changed = threading.Condition()
        self._newest: ReplicationReport | None = None
        self._closed = False
        self._due_at = 0.0
        self._thread = threading.Thread(target=self._run, name="ingester-reports", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Send what was told last, if the daemon takes it at once, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(LAST_S)
        self._client.close()

    def tell(self, make: Make, *, last: bool = False) -> None:
        """Have the report that ``make`` gives sent. Quick, and raises nothing.

        Call it at least every 10 s, also while a table is copied or the source is away.

        Args:
            make: Called at once, in this thread, and only if the last report was sent a second ago.
                A report without an origin is not sent: the replicator does not know it yet.
            last: The replicator ends: it is made and sent in any case.
        """
        if not last and time.monotonic() < self._due_at:
            return
        began = time.monotonic()
        try:
            report = msgspec.structs.replace(bounded(make()), reporter=self._reporter)
        except Exception as exc:  # a report is never worth a replication
            self._say_once(f"a report of the replication could not be made: {exc!r}")
            self._due_at = began + REFUSED_S
            return
        if not report.origin:
            return
        took_s = time.monotonic() - began
        with self._changed:
            self._newest = report
            self._due_at = began + max(self._every_s, SHARE * took_s)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._newest is None and not self._closed:
                    self._changed.wait()
                report, self._newest = self._newest, None
            if report is None:
                return
            began = time.monotonic()
            pause_s = self._send(report)
            with self._changed:
                self._due_at = max(self._due_at, began + pause_s)

    def _send(self, report: ReplicationReport) -> float:
        """Send a report; return the least time until the next one is."""
        began = time.monotonic()
        try:
            self._client.action("replication_report", msgspec.to_builtins(report))
        except (Unreachable, TimedOut, Unavailable):
            return AWAY_S  # the replicator itself tells of a daemon that is away
        except Unimplemented:
            self._say_once(
                "this daemon is an older one and shows no replications;"
                " `ingester replicate status` tells of the tables' states"
            )
            return REFUSED_S
        except ClientError as exc:
            self._say_once(f"the daemon does not take reports of the replication: {exc}")
            return REFUSED_S
        except Exception as exc:
            self._say_once(f"a report of the replication could not be sent: {exc!r}")
            return REFUSED_S
        return max(self._every_s, SHARE * (time.monotonic() - began))

    def _say_once(self, text: str) -> None:
        if text not in self._said and len(self._said) < 100:
            self._said.add(text)
            self._say(text)
