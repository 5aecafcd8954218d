"""The way down: refuse, drain, flush, close.

Law of this file: a stop that is in time leaves a log without operations; one that is not leaves
everything in it.
"""

from __future__ import annotations

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

SPANS_S = 2.0
"""The time to send the last spans: a receiver that is away does not keep the stop."""
LISTS_S = 5.0
"""The time to tell others of the last versions, once everything is closed: nobody needs it."""


async def drain_and_stop(runtime: Runtime) -> int:
    """Refuse writes, drain, flush, close. The log keeps whatever the deadline cuts off."""
    began = time.monotonic()
    runtime.state = "stopping"
    runtime.admission.stop()
    runtime.live.stop()
    runtime.copies.stop()
    log.info("stopping", buffered_bytes=runtime.ledger.buffered + runtime.ledger.frozen)
    with trio.move_on_after(runtime.settings.stop_deadline) as deadline:
        runtime.flusher.hurry()
        await until_in_files(runtime)
        # Last: there are answers for as long as there is something else to wait for.
        await runtime.queries.places.wait_idle()
        await _close_tables_and_log(runtime)
    if runtime.spark_metadata is not None and not deadline.cancelled_caught:
        with trio.move_on_after(LISTS_S):
            await runtime.spark_metadata.catch_up()
    runtime.queries.close_all()
    try:
        await runtime.wal.close()
    except LogError as exc:
        # The next start judges the open segment; everything acknowledged is in it.
        log.warning("log not sealed", error=str(exc), runbook="disk-full")
    if runtime.traces is not None:
        await trio.to_thread.run_sync(runtime.traces.close, SPANS_S)
    left = sum(1 for _ in runtime.tree.unreleased())
    if deadline.cancelled_caught:
        log.warning("stop deadline passed", buffers_left=left, runbook="stop-deadline")
    log.info("stopped", seconds=round(time.monotonic() - began, 3), buffers_left=left)
    return EXIT_DEADLINE if deadline.cancelled_caught else EXIT_DONE


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
