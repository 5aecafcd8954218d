"""The drain of a daemon: it refuses writes and flushes everything, so that it can be stopped.

    ready ──drain──▶ draining ──all in files; tables, origins and log released──▶ drained
      ▲                  │                                                           │
      └───────undo───────┴─────────────────────────undo──────────────────────────────┘

A drained daemon has no unflushed row, no claim on a table and no operation in its log: stopping it,
killing it or losing its disk loses nothing (``tests/daemon/test_drain``). Queries are answered
throughout. After an undo each table is claimed again before its next write, because another daemon
may own it by then; streams opened before the drain stay closed. Loop only.
"""

from __future__ import annotations

import time
from functools import partial
from random import Random

import structlog
import trio

from ingester.daemon.assembly import Runtime
from ingester.errors import FencedOff, IngesterError, Stopping
from ingester.observability.status import DrainState, DrainStatus
from persist.backoff import Backoff
from persist.store import StoreError
from wal import LogError

log = structlog.get_logger(__name__)

RETRY_S = 0.2
RETRY_CAP_S = 10.0


class Drain:
    """Drains one daemon, and undoes that. :meth:`run` does the work."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._state: DrainState = "none"
        self._since: float | None = None
        self._began_at = 0.0
        self._problem: str | None = None
        self._wanted = trio.Event()
        self._changed = trio.Event()
        self._work = trio.CancelScope()
        self._rests = trio.Event()
        self._ended = False
        self._one_at_a_time = trio.Lock()

    def status(self) -> DrainStatus:
        """Return the progress of the drain."""
        if self._state == "none" or self._since is None:
            return DrainStatus()
        runtime = self._runtime
        return DrainStatus(
            state=self._state,
            since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._since)),
            buffers=sum(1 for _ in runtime.tables.tree.unreleased()),
            bytes=runtime.ledger.buffered + runtime.ledger.frozen,
            tables=sum(table.registered for table in runtime.tables.tree.tables.values()),
            problem=self._problem or self._unpersisted(),
        )

    def _unpersisted(self) -> str | None:
        """The last failed flush since the drain began, if it still fails."""
        failure = self._runtime.flush.counts.last_failure
        if self._state != "draining" or failure is None or failure[0] < self._began_at:
            return None
        return failure[1]

    async def asked(self, undo: bool, wait_s: float) -> DrainStatus:
        """Begin the drain, or undo it. Idempotent.

        Args:
            wait_s: the longest time to wait for ``drained``.

        Raises:
            Stopping: the daemon is stopping, which drains it too.
            FencedOff: the daemon is fenced and cannot commit.
        """
        # Invariant: an undo is finished before the next drain begins.
        async with self._one_at_a_time:
            self._check_running()
            if undo:
                await self._undo()
                return self.status()
            if self._state == "none":
                self._begin()
        with trio.move_on_after(wait_s):
            while self._state == "draining":
                await self._changed.wait()
                self._check_running()
        return self.status()

    async def run(self) -> None:
        """Drain when asked, until cancelled.

        Raises:
            Fenced: another process has taken over.
        """
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            with self._work:
                await until_in_files(self._runtime)
                await self._let_go()
                self._turn("drained")
                log.info("drained", seconds=round(time.monotonic() - self._began_at, 3))
            self._rests.set()

    async def end(self) -> None:
        """End the drain: the stop does the same within its deadline."""
        self._ended = True
        await self._rest()
        self._tell()

    def _begin(self) -> None:
        runtime = self._runtime
        runtime.write.admission.stop(draining=True)
        runtime.copies.stop()
        self._since, self._problem = time.time(), None
        self._began_at = time.monotonic()
        self._work, self._rests = trio.CancelScope(), trio.Event()
        self._turn("draining")
        self._wanted.set()
        log.info("draining", buffered_bytes=runtime.ledger.buffered + runtime.ledger.frozen)

    async def _undo(self) -> None:
        await self._rest()
        self._check_running()
        if self._state == "none":
            return
        self._runtime.tables.catalog.reopen()
        self._runtime.write.admission.resume()
        self._since = self._problem = None
        self._turn("none")
        log.info("drain taken back")

    async def _rest(self) -> None:
        """Cancel the drain's work, and return when it has ended."""
        if self._state == "none":
            return
        self._work.cancel()
        await self._rests.wait()

    def _turn(self, state: DrainState) -> None:
        self._state = state
        # A fenced or stopping daemon keeps that state.
        if self._runtime.state in ("ready", "draining", "drained"):
            self._runtime.state = "ready" if state == "none" else state
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _check_running(self) -> None:
        if self._runtime.fence is not None:
            raise FencedOff("a later process runs under this ingester's id; this one is stopping")
        if self._ended:
            raise Stopping("the daemon is stopping, which drains it", retry_after_s=1.0)

    async def _let_go(self) -> None:
        """Release tables and log, and retry until that succeeds."""
        backoff = Backoff(RETRY_S, RETRY_CAP_S, Random())
        while True:
            try:
                await close_tables_and_log(self._runtime)
            except (IngesterError, StoreError, LogError) as exc:
                self._problem = str(exc)
                log.warning("drain retries", error=str(exc), runbook="store-away")
                await trio.sleep(backoff.next_s())
            else:
                self._problem = None
                return


async def until_in_files(runtime: Runtime, *, leave_unencodable: bool = False) -> bool:
    """Return when every admitted row is in a committed file.

    Args:
        leave_unencodable: leave buffers that cannot be encoded, and those behind them, in the log.

    Returns:
        Whether none was left.
    """
    # Polled once in a daemon's life: an event would cost every write.
    replication = runtime.replication.service
    while runtime.wal.pending or runtime.ledger.pending or replication.statistics().committing:
        await trio.sleep(0.005)
    runtime.flush.freeze_policy.freeze_all("stop")
    flusher = runtime.flush.flusher
    is_complete = True
    for handle in list(runtime.tables.tree.unreleased()):
        if leave_unencodable:
            await flusher.until_released(handle, partial(flusher.is_held_up, handle))
        else:
            await flusher.until_released(handle)
        is_complete = is_complete and handle.released
    if is_complete:
        committer = runtime.flush.checkpoint_committer
        await committer.until_committed(runtime.tables.tree.tables.values())
    return is_complete


async def close_tables_and_log(runtime: Runtime) -> None:
    """Release this daemon's claims in the manifests, and remove all operations from the log.

    Raises:
        IngesterError, StoreError, LogError: a step failed; it can be repeated.
    """
    tables = runtime.tables
    tables.catalog.close()
    for table in list(tables.tree.tables.values()):
        await tables.catalog.close_writer(table)
    await runtime.wal.rotate()
    await runtime.flush.log_truncation.truncate()
