"""What happens to pushes, as lines of the log: each change of a push, each failure of a hook.

Law of this file: a push's history is the truth, and the log repeats it, once for each event in the
process that leads the push.
"""

from __future__ import annotations

import structlog

from ingester.pushes.record import PushRecord, new_events
from ingester.pushes.runner import HookFailure

log = structlog.get_logger()


class PushLog:
    """Tells of the records of one push as they are kept."""

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self._last: PushRecord | None = None

    def hear(self, record: PushRecord) -> None:
        """Log what is new in a record; the first one says who leads the push from now on."""
        table = f"{record.namespace}/{record.table}"
        if self._last is None:
            log.info(
                "push led",
                push=record.push_id,
                table=table,
                status=record.status.value,
                controller=self._controller,
            )
        else:
            for event in new_events(self._last, record):
                log.info(
                    "push changed",
                    push=record.push_id,
                    table=table,
                    region=event.region,
                    what=event.what,
                )
        self._last = record

    def ended(self, record: PushRecord) -> None:
        """Log that the push is not led here any more, and where it stands."""
        reason = record.ending.reason if record.ending is not None else ""
        log.info(
            "push ended" if record.over else "push left",
            push=record.push_id,
            table=f"{record.namespace}/{record.table}",
            status=record.status.value,
            reason=reason,
        )


def log_hook_failure(failure: HookFailure) -> None:
    """Log a call of a hook that has failed, and what it counts as."""
    log.warning(
        "hook failed",
        push=failure.push_id,
        region=failure.region,
        hook=failure.hook,
        method=failure.method,
        outcome=failure.outcome,
        error=failure.error,
        counts_as=failure.counts_as.value,
        runbook="hook-failed",
    )
