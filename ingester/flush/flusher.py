"""From a frozen buffer to a committed file: sort, encode, upload, commit, release.

    enqueue ─▶ queue ─▶ begin (ordered) ─▶ finish (encoded, uploaded) ─▶ the table's gate ─▶
    committed

A frozen buffer is retried until it is committed (tests/flush). Buffers of one partition are
uploaded in order and reach the table's gate in that order;
:mod:`ingester.tables.commit_schedule` decides when they are committed. In a table without a
primary key, the next buffer is sorted while the previous one is encoded, and encoded while that
one waits for its commit. In a keyed table a partition's buffers are flushed one after another,
because each may replace files of the previous one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from random import Random

import msgspec
import structlog
import trio

from ingester.buffer import BufferHandle, FlushJob, PartitionBuffer
from ingester.flush.file_writer import CannotEncode, FileWriter, Upload
from ingester.flush.worker_pool import Begun, WorkerPool, lanes, step
from ingester.memory.ledger import MemoryLedger
from ingester.observability.metrics import Metrics
from ingester.observability.status import PersistedRows, PersistRun, PersistStatus
from ingester.tables.catalog import Catalog
from ingester.tables.commit_schedule import CommitSchedule, FinishedFlush, FlushState
from persist.backoff import Backoff
from persist.jobs import PersistQueue
from persist.manifest import Action, Add, TableState
from persist.switching import held_bytes

LAST_FLUSHES = 10


class FlushCounts:
    """Counts finished and failed flushes since the start. Event loop only."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._persisted = PersistedRows()
        self._failed_attempts = 0
        self.last_failure: tuple[float, str] | None = None
        """When a flush last failed, by the monotonic clock, and why; None once that buffer is
        flushed."""
        self._failed_first_row: tuple[object, ...] | None = None
        self._last: list[PersistRun] = []

    def flushed(
        self, job: FlushJob, adds: tuple[Add, ...], queued_s: float, active_s: float
    ) -> None:
        """Count a buffer whose rows are in these committed files."""
        table, rows, nbytes = job.table, job.handle.total_rows, sum(a.bytes for a in adds)
        self._metrics.persist_finished(queued_s, active_s)
        self._metrics.table(table.namespace, table.name).persisted(len(adds), rows, nbytes)
        if _first_row(job) == self._failed_first_row:
            self.last_failure = self._failed_first_row = None
        before = self._persisted
        self._persisted = PersistedRows(
            rows=before.rows + rows, bytes=before.bytes + nbytes, files=before.files + len(adds)
        )
        run = PersistRun(
            at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            namespace=table.namespace,
            table=table.name,
            partition=job.partition_name,
            rows=rows,
            bytes=nbytes,
            queued_s=queued_s,
            active_s=active_s,
            total_s=queued_s + active_s,
        )
        self._last = [run, *self._last][:LAST_FLUSHES]

    def failed(self, job: FlushJob, error: Exception) -> None:
        """Count a failed attempt, which will be retried."""
        self._failed_attempts += 1
        self._failed_first_row = _first_row(job)
        self.last_failure = (time.monotonic(), str(error))
        self._metrics.persist_failed()

    def add_to(self, queue: PersistStatus) -> PersistStatus:
        """Return the queue's status with these counts."""
        return msgspec.structs.replace(
            queue,
            persisted=self._persisted,
            failed_attempts=self._failed_attempts,
            last=self._last,
        )


def _first_row(job: FlushJob) -> tuple[object, ...]:
    """Identifies a buffer without referring to its rows."""
    return job.table.key, job.handle.partition, job.handle.epoch, job.handle.first_seq


log = structlog.get_logger(__name__)

ENCODE_RETRY_S = 30.0
REASON = "replaced by newer rows"


@dataclass(frozen=True, slots=True)
class FlushHooks:
    """Callbacks."""

    persisted: Callable[[FlushJob, tuple[Add, ...], float, float], None] = lambda *_: None
    """Called with a flushed buffer, its files, and its seconds in the queue and at work."""
    failed: Callable[[FlushJob, Exception], None] = lambda *_: None
    """Called with a buffer and the reason of a failed upload."""


@dataclass(frozen=True, slots=True)
class Unencodable:
    """A buffer whose last attempt failed for a reason that is not the store's."""

    job: FlushJob
    reason: str
    at: float
    """When it failed, by the monotonic clock."""
    holds_gate: bool
    """Whether the table's other buffers wait for it, too."""

    def __str__(self) -> str:
        partition = f", partition {self.job.partition_name}" if self.job.partition_name else ""
        return f"table {'/'.join(self.job.table.key)}{partition}: {self.reason}"


class Flusher:
    """Flushes frozen buffers. The work runs in threads; the event loop keeps the order."""

    def __init__(
        self,
        catalog: Catalog,
        ledger: MemoryLedger,
        file_writer: FileWriter,
        hooks: FlushHooks,
        *,
        workers: int,
    ) -> None:
        self.queue: PersistQueue[FlushJob, Begun] = PersistQueue(lanes(workers))
        look = partial(catalog.look, older_than_s=0.0)
        self.pool = WorkerPool(file_writer, ledger, hooks.failed, look, workers=workers)
        self.released = trio.Event()
        """Set, and replaced, whenever buffers are released or cannot be encoded."""
        self._unencodable: dict[BufferHandle, Unencodable] = {}
        self._retry = trio.Event()
        self._hooks = hooks
        self._ledger = ledger
        ledger.gauge("rewritten", lambda: file_writer.limits.older.nbytes + held_bytes())
        self._commits = catalog.commits
        # Kept, because a flush outlives the worker that uploaded it; it ends with `run`.
        self._nursery: trio.Nursery | None = None
        self._behind: dict[PartitionBuffer, deque[FlushJob]] = {}
        """Buffers of partitions that are flushed outside the workers, in order."""
        self._behind_bytes = 0
        self._queued: dict[FlushJob, int] = {}
        """Bytes of each waiting buffer, as counted for its namespace."""

    @property
    def queued_bytes(self) -> int:
        """Memory of the frozen buffers that wait. Thread-safe."""
        return self.queue.queued_bytes + self._behind_bytes

    def statistics(self) -> PersistStatus:
        """Number of buffers being flushed now."""
        return PersistStatus(
            queued_jobs=self.queue.queued_jobs,
            queued_bytes=self.queued_bytes,
            active=self.queue.active,
        )

    def hurry(self) -> None:
        """Use more threads from now on: the daemon is stopping and accepts no writes."""
        self.pool.hurry()

    def enqueue(self, job: FlushJob) -> None:
        """Queue a frozen buffer behind the earlier ones of its partition."""
        namespace, table = job.table.key
        self._schedule_of(job).expect(job)
        key = f"{namespace}/{table}/{job.handle.partition}"
        self._queued[job] = job.handle.nbytes
        job.table.use.queued_bytes += job.handle.nbytes
        self.queue.put(key, job, job.handle.nbytes, namespace)

    async def until_released(
        self, handle: BufferHandle, give_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Return once the buffer's rows are in committed files, or ``give_up`` returns True.

        Args:
            give_up: called whenever a buffer is released or cannot be encoded.
        """
        while not handle.released and not give_up():
            await self.released.wait()

    def unencodable(self) -> list[Unencodable]:
        """The buffers that could not be encoded and are not in files yet."""
        return [each for handle, each in self._unencodable.items() if not handle.released]

    def retry_now(self) -> None:
        """Try buffers that cannot be encoded again, as the cause may be removed."""
        self._retry.set()
        self._retry = trio.Event()

    async def _until_retry(self) -> None:
        with trio.move_on_after(ENCODE_RETRY_S):
            await self._retry.wait()

    def is_held_up(self, handle: BufferHandle) -> bool:
        """Return whether a buffer waits for one that cannot be encoded, or is one."""
        for each in self.unencodable():
            partitions = [each.job.partition]
            if each.holds_gate:
                partitions = list(each.job.table.partitions.values())
            if any(handle in partition.frozen for partition in partitions):
                return True
        return False

    def _note_unencodable(self, job: FlushJob, reason: str, *, holds_gate: bool = False) -> None:
        self._unencodable[job.handle] = Unencodable(job, reason, time.monotonic(), holds_gate)
        self._wake()

    def _wake(self) -> None:
        self.released.set()
        self.released = trio.Event()

    async def run(self) -> None:
        """Flush queued buffers until cancelled.

        Raises:
            Fenced: another process has taken over; nothing more can be committed.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self.queue.run(self.pool.begin, self._flush)

    async def _flush(self, job: FlushJob, begun: Begun) -> None:
        behind = self._behind.get(job.partition)
        if behind is not None:
            self.pool.drop(begun)
            self._schedule_of(job).withdraw(job)
            behind.append(job)
            self._behind_bytes += job.handle.nbytes
            return
        try:
            flush = await self._upload(begun)
        except CannotEncode as exc:
            self._note_unencodable(job, str(exc))
            self._schedule_of(job).withdraw(job)
            self._serve_apart(job)
            return
        finally:
            self._served(job)
        if job.handle.keyed:
            self._serve_apart(job, flush)
        else:
            self._finish(flush)

    def _served(self, job: FlushJob) -> None:
        """Stop counting a buffer among its namespace's waiting ones."""
        job.table.use.queued_bytes -= self._queued.pop(job)

    def _serve_apart(self, job: FlushJob, flush: FinishedFlush | None = None) -> None:
        assert self._nursery is not None
        self._behind[job.partition] = deque([job])
        self._nursery.start_soon(self._serve_partition, job.partition, flush)

    async def _serve_partition(
        self, partition: PartitionBuffer, flush: FinishedFlush | None
    ) -> None:
        """Flush a partition's buffers one after another, outside the workers.

        These are partitions of keyed tables, and those with a buffer that cannot be encoded now.
        ``flush``: the first buffer's flush, if it is uploaded already.
        """
        waiting = self._behind[partition]
        while waiting:
            try:
                if flush is None:
                    flush = await self._upload(await self.pool.begin(waiting[0]))
                current, flush = flush, None
                if current.handle.keyed:
                    await self._commit_keyed(current)
                else:
                    self._finish(current)
                waiting.popleft()
                if waiting:
                    self._behind_bytes -= waiting[0].handle.nbytes
                    self._served(waiting[0])
            except CannotEncode as exc:
                self._note_unencodable(waiting[0], str(exc))
                for each in waiting:
                    self._let_others_go(each)
                await self._until_retry()
        del self._behind[partition]

    def _schedule_of(self, job: FlushJob) -> CommitSchedule:
        return self._commits.gate(job.table.key).schedule

    def _let_others_go(self, job: FlushJob) -> None:
        if self._schedule_of(job).dissolve(job):
            log.info(
                "partitions of a replicated table are flushed without one that cannot be",
                table=job.table.key,
                partition=job.partition_name,
            )

    async def _upload(self, begun: Begun) -> FinishedFlush:
        """Upload a buffer for the first time, holding a place among the flushes that wait for
        commits.
        """
        upload = await self.pool.finish(begun)
        actions = upload.actions(REASON)
        await self._commits.take_place(begun.job)
        return FinishedFlush(begun.job, begun.at, upload.files, actions, upload.base, self)

    def _finish(self, flush: FinishedFlush) -> None:
        assert self._nursery is not None
        self._schedule_of(flush.job).finish(flush)
        self._nursery.start_soon(self._commit, flush)

    async def _commit(self, flush: FinishedFlush) -> None:
        order_bytes = flush.files.nbytes
        self._ledger.jobs += order_bytes
        try:
            await self._commits.committed(flush)
        finally:
            self._ledger.jobs -= order_bytes
        self._report(flush)

    async def _commit_keyed(self, flush: FinishedFlush) -> None:
        """Return once a flush is committed, because the partition's next buffer may replace its
        files.
        """
        schedule, backoff = self._schedule_of(flush.job), Backoff(0.05, 5.0, Random())
        schedule.finish(flush)
        while not await self._commits.committed(flush):
            await trio.sleep(backoff.next_s())
            if flush.state is FlushState.REFUSED:
                await self._make_anew(flush)
            schedule.assemble(flush)
        self._report(flush)

    async def _make_anew(self, flush: FinishedFlush) -> None:
        """Upload a refused flush again, on top of the newest version and without others' rows."""
        base = max(flush.table.state, flush.base, key=lambda state: state.place)
        try:
            upload = await self.pool.until_done(
                flush.job, base, after_seq=flush.covered_to, left_out=flush.left_out
            )
        except CannotEncode:
            self._commits.dismiss(flush.job)
            raise
        flush.files, flush.actions, flush.base = upload.files, upload.actions(REASON), upload.base
        step(flush.job, "made anew")

    # Called by a commit that holds the table's gate

    async def encode_rest(self, flush: FinishedFlush, base: TableState) -> tuple[Action, ...]:
        """See :class:`ingester.tables.commit_schedule.Remaker`."""
        upload = await self._upload_until_done(flush.job, base, flush.covered_to, flush.left_out)
        return upload.actions(REASON)

    async def upload_again(self, flush: FinishedFlush, base: TableState) -> None:
        """See :class:`ingester.tables.commit_schedule.Remaker`."""
        upload = await self._upload_until_done(flush.job, base)
        flush.files, flush.actions, flush.base = upload.files, upload.actions(REASON), upload.base
        flush.covered_to, flush.left_out = -1, frozenset()

    async def _upload_until_done(
        self,
        job: FlushJob,
        base: TableState,
        after_seq: int = -1,
        left_out: Collection[int] = (),
    ) -> Upload:
        """Upload a buffer while its table's gate is held, so that no other can go first.

        A buffer that cannot be encoded keeps the gate waiting.
        """
        while True:
            try:
                return await self.pool.until_done(job, base, after_seq=after_seq, left_out=left_out)
            except CannotEncode as exc:
                self._note_unencodable(job, str(exc), holds_gate=True)
                await self._until_retry()

    def _report(self, flush: FinishedFlush) -> None:
        job, adds = flush.job, flush.files.adds
        queued_s = flush.began - job.handle.frozen_at
        active_s = time.monotonic() - flush.began
        named = {}
        if (trace := job.handle.flush_trace) is not None:
            trace.committed(_facts_of(flush))
            named = {"trace_id": trace.trace_id} if trace.trace_id else {}
        log.info(
            "partition persisted",
            table="/".join(job.table.key),
            partition=job.partition_name,
            rows=job.handle.total_rows,
            files=len(adds),
            bytes=sum(add.bytes for add in adds),
            queued_s=round(queued_s, 4),
            active_s=round(active_s, 4),
            total_s=round(queued_s + active_s, 4),
            **named,
        )
        self._hooks.persisted(job, adds, queued_s, active_s)
        self._unencodable.pop(job.handle, None)
        self._wake()


def _facts_of(flush: FinishedFlush) -> dict[str, str | int]:
    """Return a flush's span attributes, once a version has its files."""
    adds = flush.files.adds
    return {
        "ingester.rows": flush.job.handle.total_rows,
        "ingester.files": len(adds),
        "ingester.bytes": sum(add.bytes for add in adds),
        "ingester.manifest_version": flush.table.state.version,
    }
