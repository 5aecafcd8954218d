"""From a frozen buffer to a committed file: sort, encode, put, commit, release.

    enqueue ─▶ queue ─▶ begin (ordered) ─▶ finish (encoded, put) ─▶ the table's gate ─▶ committed

Law of this file: a frozen buffer is tried until it is committed. Its file goes up under a fresh
name for every attempt, so an upload that arrives late can only be garbage. Buffers of one partition
are uploaded in order and reach the table's gate in that order; when they are committed is decided
there (:mod:`ingester.tables.commit_schedule`). In a table without a primary key the next buffer's
rows are put into order while the one before is encoded, and it is encoded while that one waits for
its commit. With a primary key a partition's buffers go one after another, because the next one may
replace files of the one before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from random import Random

import structlog
import trio

from ingester.buffer import BufferHandle, FlushJob, PartitionBuffer
from ingester.flush.file_writer import CannotEncode, FileWriter, Upload
from ingester.flush.worker_pool import Begun, WorkerPool, lanes, step
from ingester.memory.ledger import MemoryLedger
from ingester.observability.status import PersistStatus
from ingester.tables.catalog import Catalog
from ingester.tables.commit_schedule import CommitSchedule, FinishedFlush, FlushState
from persist.backoff import Backoff
from persist.jobs import PersistQueue
from persist.manifest import Action, Add, TableState
from persist.switching import held_bytes

log = structlog.get_logger(__name__)

ENCODE_RETRY_S = 30.0
REASON = "replaced by newer rows"


@dataclass(frozen=True, slots=True)
class FlushHooks:
    """Observers of flushes."""

    persisted: Callable[[FlushJob, tuple[Add, ...], float, float], None] = lambda *_: None
    """Is told of a flushed buffer, its files, and its seconds in the queue and at work."""
    failed: Callable[[FlushJob, Exception], None] = lambda *_: None
    """Is told of a buffer why an attempt to upload it has failed."""


class Flusher:
    """Turns frozen buffers into files. The work runs in threads, the order is kept on the loop."""

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
        """The event that buffers are released: it is set, and made anew."""
        self._hooks = hooks
        self._ledger = ledger
        ledger.gauge("rewritten", lambda: file_writer.limits.older.nbytes + held_bytes())
        self._commits = catalog.commits
        # Kept: a flush outlives the worker that has uploaded it, and ends with `run`.
        self._nursery: trio.Nursery | None = None
        self._behind: dict[PartitionBuffer, deque[FlushJob]] = {}
        """The buffers of partitions that are served beside the workers, in order."""
        self._behind_bytes = 0
        self._queued: dict[FlushJob, int] = {}
        """The bytes of each buffer that waits, as they count for its namespace."""

    @property
    def queued_bytes(self) -> int:
        """Memory of the frozen buffers that wait for a worker or for another one. Any thread."""
        return self.queue.queued_bytes + self._behind_bytes

    def statistics(self) -> PersistStatus:
        """The number of buffers that are on their way to files now."""
        return PersistStatus(
            queued_jobs=self.queue.queued_jobs,
            queued_bytes=self.queued_bytes,
            active=self.queue.active,
        )

    def hurry(self) -> None:
        """Flush with more threads from now on: the daemon stops, and nobody writes any more."""
        self.pool.hurry()

    def enqueue(self, job: FlushJob) -> None:
        """Queue a frozen buffer behind the earlier ones of its partition."""
        namespace, table = job.table.key
        self._schedule_of(job).expect(job)
        key = f"{namespace}/{table}/{job.handle.partition}"
        self._queued[job] = job.handle.nbytes
        job.table.use.queued_bytes += job.handle.nbytes
        self.queue.put(key, job, job.handle.nbytes, namespace)

    async def until_released(self, handle: BufferHandle) -> None:
        """Return when the buffer's rows are in committed files."""
        while not handle.released:
            await self.released.wait()

    async def run(self) -> None:
        """Flush what is queued until cancelled.

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
        except CannotEncode:
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
        """Stop counting a buffer among those of its namespace that wait."""
        job.table.use.queued_bytes -= self._queued.pop(job)

    def _serve_apart(self, job: FlushJob, flush: FinishedFlush | None = None) -> None:
        assert self._nursery is not None
        self._behind[job.partition] = deque([job])
        self._nursery.start_soon(self._serve_partition, job.partition, flush)

    async def _serve_partition(
        self, partition: PartitionBuffer, flush: FinishedFlush | None
    ) -> None:
        """Flush a partition's buffers one after another, beside the workers.

        These are partitions of keyed tables, and those with a buffer that cannot be encoded now.
        ``flush``: of the first one, where it is uploaded already.
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
            except CannotEncode:
                for each in waiting:
                    self._let_others_go(each)
                await trio.sleep(ENCODE_RETRY_S)
        del self._behind[partition]

    def _schedule_of(self, job: FlushJob) -> CommitSchedule:
        return self._commits.gate(job.table.key).schedule

    def _let_others_go(self, job: FlushJob) -> None:
        if self._schedule_of(job).dissolve(job):
            log.info(
                "partitions of a replicated table go into files without one that cannot",
                table=job.table.key,
                partition=job.partition_name,
            )

    async def _upload(self, begun: Begun) -> FinishedFlush:
        """Make a buffer's first upload, with a place among those that wait for their commit."""
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
        """Return when a flush is committed: the partition's next buffer may replace its files."""
        schedule, backoff = self._schedule_of(flush.job), Backoff(0.05, 5.0, Random())
        schedule.finish(flush)
        while not await self._commits.committed(flush):
            await trio.sleep(backoff.next_s())
            if flush.state is FlushState.REFUSED:
                await self._make_anew(flush)
            schedule.assemble(flush)
        self._report(flush)

    async def _make_anew(self, flush: FinishedFlush) -> None:
        """Upload a refused flush again, on top of the newest version, without what is not ours."""
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

    # What a commit has done while it holds the table's gate

    async def encode_rest(self, flush: FinishedFlush, base: TableState) -> tuple[Action, ...]:
        """See :class:`ingester.tables.finished_flush.Remaker`."""
        upload = await self._upload_until_done(flush.job, base, flush.covered_to, flush.left_out)
        return upload.actions(REASON)

    async def upload_again(self, flush: FinishedFlush, base: TableState) -> None:
        """See :class:`ingester.tables.finished_flush.Remaker`."""
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
        """Upload a buffer at the table's gate, where nobody else can go first.

        So what cannot be encoded waits.
        """
        while True:
            try:
                return await self.pool.until_done(job, base, after_seq=after_seq, left_out=left_out)
            except CannotEncode:
                await trio.sleep(ENCODE_RETRY_S)

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
        self.released.set()
        self.released = trio.Event()


def _facts_of(flush: FinishedFlush) -> dict[str, str | int]:
    """The attributes of a flush's span, once a version has its files."""
    adds = flush.files.adds
    return {
        "ingester.rows": flush.job.handle.total_rows,
        "ingester.files": len(adds),
        "ingester.bytes": sum(add.bytes for add in adds),
        "ingester.manifest_version": flush.table.state.version,
    }
