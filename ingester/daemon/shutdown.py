"""The stop: refuse writes, flush, close, and let the last queries finish.

A stop within its deadline leaves a log without operations; otherwise the log keeps everything that
is not flushed (``tests/daemon/test_shutdown``). Buffers that cannot be encoded are left there at
once. Queries are answered throughout; those that outlast
the deadline are cut off.
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
from ingester.recovery.marks import DamagedMark, note_diskless_stop, note_stop
from persist.store import StoreError
from wal import LogError

log = structlog.get_logger(__name__)

TWICE_S = 0.5
SHOWN = 5
SPANS_S = 2.0
"""The time to send the last spans: an unreachable receiver does not hold up the stop."""
OBJECTS_S = 10.0
"""The time to delete log objects; the next start deletes the rest."""
LISTS_S = 5.0
"""The time to write the last lists of files for Spark, and to publish the last versions, after
everything else is closed."""


class StopRequest:
    """The request to stop; a second one from a terminal ends the daemon at once."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self._asked_at = math.inf
        self.deadline = trio.CancelScope()
        """The scope of the stop; its deadline is set when the stop begins."""

    def ask(self, *, impatient: bool = False) -> None:
        """Request a stop.

        Args:
            impatient: if this is the second request, and ``TWICE_S`` later than the first, stop
                without flushing. Several processes may pass on the same key press.
        """
        now = trio.current_time()
        if not self.asked.is_set():
            self._asked_at = now
            self.asked.set()
        elif impatient and now - self._asked_at > TWICE_S:
            log.info("stopping at once, as asked twice")
            self.deadline.cancel()


async def drain_and_stop(runtime: Runtime, request: StopRequest | None = None) -> int:
    """Refuse writes, flush, close; return the exit code. The log keeps unflushed rows."""
    deadline = (request or StopRequest()).deadline
    deadline.deadline = trio.current_time() + runtime.settings.stop_deadline
    is_closed = False
    began = time.monotonic()
    runtime.state = "stopping"
    runtime.write.admission.stop()
    runtime.query.live.stop()
    runtime.copies.stop()
    log.info("stopping", buffered_bytes=runtime.ledger.buffered + runtime.ledger.frozen)
    with deadline:
        runtime.flush.flusher.hurry()
        if await until_in_files(runtime, leave_unencodable=True):
            await _close_tables_and_log(runtime)
            is_closed = True
        # Last, so that a slow reader does not keep a table from its next owner.
        await runtime.query.queries.places.wait_idle()
    if not deadline.cancelled_caught:
        await _write_for_others(runtime)
    queries = runtime.query.queries
    cut = queries.places.taken
    queries.close_all()
    await trio.to_thread.run_sync(runtime.sql.close)
    try:
        await runtime.wal.close()
    except LogError as exc:
        # The next start reads the open segment; everything acknowledged is in it.
        log.warning("log not sealed", error=str(exc), runbook="disk-full")
    traces = runtime.traces
    if traces is not None and not await trio.to_thread.run_sync(traces.close, SPANS_S):
        log.warning("last spans not sent", within_s=SPANS_S, runbook="spans-lost")
    left = sum(1 for _ in runtime.tables.tree.unreleased())
    if deadline.cancelled_caught:
        log.warning(
            "stop deadline passed", buffers_left=left, answers_cut=cut, runbook="stop-deadline"
        )
    elif not is_closed:
        log.warning(
            "stopped with rows that cannot be encoded; the log keeps them",
            buffers_left=left,
            reasons=[str(each) for each in runtime.flush.flusher.unencodable()][:SHOWN],
            runbook="persist-failing",
        )
    log.info("stopped", seconds=round(time.monotonic() - began, 3), buffers_left=left)
    return EXIT_DONE if is_closed else EXIT_DEADLINE


async def _write_for_others(runtime: Runtime) -> None:
    """Publish what readers of other formats have not seen yet, for ``LISTS_S``."""
    spark_metadata = runtime.maintenance.spark_metadata
    with trio.move_on_after(LISTS_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.publishing.catch_up)
            if spark_metadata is not None:
                nursery.start_soon(spark_metadata.catch_up)


async def _close_tables_and_log(runtime: Runtime) -> None:
    """Close tables and log, without retries.

    Everything is in files by now, so a failure only makes the next start slower.
    """
    try:
        await close_tables_and_log(runtime)
        data_dir, store = runtime.settings.data_dir, runtime.store
        if runtime.settings.wal.disk == "off":
            await trio.to_thread.run_sync(note_diskless_stop, store, runtime.writer)
        else:
            await trio.to_thread.run_sync(note_stop, data_dir, store, runtime.writer)
        # After the record, with which a start does not need them.
        with trio.move_on_after(OBJECTS_S):
            await runtime.store_log.cleaner.clean_up()
    except (IngesterError, StoreError, LogError, OSError, DamagedMark) as exc:
        log.warning("stop not recorded", error=str(exc), runbook="store-away")
