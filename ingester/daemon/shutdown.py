"""The way down: refuse, flush, close, and let the last queries end.

Law of this file: a stop that is in time leaves a log without operations; one that is not leaves
everything in it. Queries are answered all the while; one that outlasts the deadline is cut off, and
costs nobody a row.
"""

from __future__ import annotations

import math
import time

import structlog
import trio

from ingester.daemon.assembly import Runtime
from ingester.daemon.drain import close_tables_and_log, until_in_files
from ingester.daemon.exit_codes import EXIT_DEADLINE, EXIT_DONE
from ingester.errors import IngesterError
from ingester.recovery.data_mark import DamagedMark
from ingester.recovery.marks import note_stop
from persist.store import StoreError
from wal import LogError

log = structlog.get_logger(__name__)

TWICE_S = 0.5
SPANS_S = 2.0
"""The time to send the last spans: an unreachable receiver does not hold up the stop."""
LISTS_S = 5.0
"""The time to tell others of the last versions, once everything is closed: nobody needs it."""


class StopRequest:
    """The wish that the daemon ends; asked for twice at a terminal, it ends at once."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self._asked_at = math.inf
        self.deadline = trio.CancelScope()
        """What the stop has to be done in; it is entered when the stop begins."""

    def ask(self, *, impatient: bool = False) -> None:
        """Ask for a stop.

        Args:
            impatient: asked for again, more than ``TWICE_S`` later, it ends without the rest: one
                key reaches a process more than once where several pass it on.
        """
        now = trio.current_time()
        if not self.asked.is_set():
            self._asked_at = now
            self.asked.set()
        elif impatient and now - self._asked_at > TWICE_S:
            log.info("stopping at once, as asked twice")
            self.deadline.cancel()


async def drain_and_stop(runtime: Runtime, request: StopRequest | None = None) -> int:
    """Refuse writes, flush, close. The log keeps whatever the deadline cuts off."""
    deadline = (request or StopRequest()).deadline
    deadline.deadline = trio.current_time() + runtime.settings.stop_deadline
    is_closed = False
    began = time.monotonic()
    runtime.state = "stopping"
    runtime.admission.stop()
    runtime.live.stop()
    runtime.copies.stop()
    log.info("stopping", buffered_bytes=runtime.ledger.buffered + runtime.ledger.frozen)
    with deadline:
        runtime.flusher.hurry()
        await until_in_files(runtime)
        await _close_tables_and_log(runtime)
        is_closed = True
        # Last: there are answers for as long as there is something else to wait for, and who reads
        # slowly keeps no table from its next owner.
        await runtime.queries.places.wait_idle()
    if runtime.spark_metadata is not None and not deadline.cancelled_caught:
        with trio.move_on_after(LISTS_S):
            await runtime.spark_metadata.catch_up()
    cut = runtime.queries.places.taken
    runtime.queries.close_all()
    try:
        await runtime.wal.close()
    except LogError as exc:
        # The next start judges the open segment; everything acknowledged is in it.
        log.warning("log not sealed", error=str(exc), runbook="disk-full")
    traces = runtime.traces
    if traces is not None and not await trio.to_thread.run_sync(traces.close, SPANS_S):
        log.warning("last spans not sent", within_s=SPANS_S, runbook="spans-lost")
    left = sum(1 for _ in runtime.tree.unreleased())
    if deadline.cancelled_caught:
        log.warning(
            "stop deadline passed", buffers_left=left, answers_cut=cut, runbook="stop-deadline"
        )
    log.info("stopped", seconds=round(time.monotonic() - began, 3), buffers_left=left)
    return EXIT_DONE if is_closed else EXIT_DEADLINE


async def _close_tables_and_log(runtime: Runtime) -> None:
    """Close them, if that can be done at once.

    Everything is in files by now: what cannot be said or removed costs the next start a moment.
    """
    try:
        await close_tables_and_log(runtime)
        data_dir, store = runtime.settings.data_dir, runtime.store
        await trio.to_thread.run_sync(note_stop, data_dir, store, runtime.writer)
    except (IngesterError, StoreError, LogError, OSError, DamagedMark) as exc:
        log.warning("stop not recorded", error=str(exc), runbook="store-away")
