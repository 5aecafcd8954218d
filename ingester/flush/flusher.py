"""From a frozen buffer to a committed file: sort, encode, put, commit, release.

Law of this file: a frozen buffer is tried until it is committed. Its file goes up under a fresh
name for every attempt, so an upload that arrives late can only be garbage. Buffers of one partition
are uploaded in order and join the table's commits in that order. In a table without a key the next
buffer's rows are put into order while the one before is encoded, and it is encoded while that one
waits for its commit. Commits are shared.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from random import Random

import structlog
import trio

from ingester.buffer import FlushJob, PartitionBuffer
from ingester.flush.commit_linger import CommitLinger
from ingester.flush.file_writer import CannotEncode, Upload, Uploader
from ingester.flush.worker_pool import Begun, Uploads
from ingester.memory.ledger import MemoryLedger
from ingester.observability.status import PersistStatus
from ingester.tables.catalog import Catalog
from ingester.tables.commit_barrier import CommitBarrier
from ingester.tables.pending_commit import PersistedBuffer
from persist.backoff import Backoff
from persist.jobs.queue import PersistQueue
from persist.manifest import (
    Action,
    Add,
    Applied,
    Remove,
)

log = structlog.get_logger(__name__)

ENCODE_RETRY_S = 30.0
MAX_WAITING_COMMITS = 1024
"""Uploaded buffers that may wait for their commit: their rows stay in memory meanwhile."""

Uploaded = tuple[Upload, float]
"""And when its persist began, in seconds of the monotonic clock."""


class Persister:
    """Turns frozen buffers into files. The work runs in threads, the order is kept on the loop."""

    def __init__(
        self,
        catalog: Catalog,
        ledger: MemoryLedger,
        uploader: Uploader,
        *,
        workers: int,
    ) -> None:
        self.queue: PersistQueue[FlushJob, Begun] = PersistQueue(workers)
        self.on_persisted: Callable[[FlushJob, tuple[Add, ...], float, float], None] | None = None
        self._ledger = ledger
        self._writer = uploader.writer
        ledger.gauge("rewritten", lambda: uploader.limits.older.nbytes)
        self.uploads = Uploads(uploader, ledger, workers=workers)
        self._commits = catalog.commits
        self._commits.groups.encode_rest = self._encode_rest
        self._commits.groups.upload_again = self._upload_again
        self._gathering = CommitLinger()
        self._meetings = CommitBarrier(self._commits.join)
        self._waiting = trio.Semaphore(MAX_WAITING_COMMITS)
        self._nursery: trio.Nursery | None = None
        self._behind: dict[PartitionBuffer, deque[FlushJob]] = {}
        self._behind_bytes = 0

    @property
    def queued_bytes(self) -> int:
        """Memory of the frozen buffers that wait for a worker or for another one. Any thread."""
        return self.queue.queued_bytes + self._behind_bytes

    def statistics(self) -> PersistStatus:
        """What is on its way to files now."""
        return PersistStatus(
            queued_jobs=self.queue.queued_jobs,
            queued_bytes=self.queued_bytes,
            active=self.queue.active,
        )

    def enqueue(self, job: FlushJob) -> None:
        """Queue a frozen buffer behind the earlier ones of its partition."""
        table, handle = job.table, job.handle
        self._gathering.expect(table.key, handle)
        self.queue.put(f"{table.namespace}/{table.name}/{handle.partition}", job, handle.nbytes)

    async def run(self) -> None:
        """Persist what is queued until cancelled.

        Raises:
            Fenced: another process has taken over; nothing more can be committed.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self.queue.run(self.uploads.begin, self._persist)

    async def _persist(self, job: FlushJob, begun: Begun) -> None:
        behind = self._behind.get(job.partition)
        if behind is not None:
            self.uploads.drop(begun)
            self._gathering.forget(job.table.key, job.handle)
            behind.append(job)
            self._behind_bytes += job.handle.nbytes
            return
        started = begun.at
        try:
            upload = await self.uploads.finish(begun)
        except CannotEncode:
            self._gathering.forget(job.table.key, job.handle)
            self._serve_apart(job)
            return
        await self._acquire(job)
        if job.handle.keyed:
            self._serve_apart(job, (upload, started))
        else:
            self._join(job, upload, started)

    def _serve_apart(self, job: FlushJob, uploaded: Uploaded | None = None) -> None:
        assert self._nursery is not None
        self._behind[job.partition] = deque([job])
        self._nursery.start_soon(self._serve_partition, job.partition, uploaded)

    async def _serve_partition(self, partition: PartitionBuffer, uploaded: Uploaded | None) -> None:
        """A partition's buffers one after another, beside the workers: what cannot be encoded now.

        And what is keyed: the next buffer may replace files of the one before its commit adds.
        """
        waiting = self._behind[partition]
        while waiting:
            job = waiting[0]
            try:
                if uploaded is None:
                    begun = await self.uploads.begin(job)
                    uploaded = (await self.uploads.finish(begun), begun.at)
                    await self._acquire(job)
                upload, started = uploaded
                uploaded = None
                if job.handle.keyed:
                    await self._commit_keyed(job, upload, started)
                else:
                    self._join(job, upload, started)
                waiting.popleft()
                if waiting:
                    self._behind_bytes -= waiting[0].handle.nbytes
            except CannotEncode:
                for each in waiting:
                    self._let_others_go(each)
                await trio.sleep(ENCODE_RETRY_S)
        del self._behind[partition]

    def _let_others_go(self, job: FlushJob) -> None:
        if self._meetings.dissolve(job):
            log.info(
                "partitions of a replicated table go into files without one that cannot",
                table=job.table.key,
                partition=job.partition_name,
            )

    async def _acquire(self, job: FlushJob) -> None:
        """Have a place among those that wait for their commit."""
        # Who may wait for others does not keep their places from them.
        if not job.handle.messages:
            await self._waiting.acquire()

    def _join(self, job: FlushJob, upload: Upload, started: float) -> None:
        assert self._nursery is not None
        ticket = self._ticket(job, upload)
        ticket.on_committed = self._waiting.release
        self._commits.join(ticket)
        self._nursery.start_soon(self._commit, job, ticket, started)

    async def _encode_rest(self, ticket: PersistedBuffer) -> tuple[Action, ...]:
        """What commits the operations that are ours to commit, and in no file yet."""
        upload = await self._upload_until_done(ticket, ticket.covered_to, ticket.left_out)
        return self._ticket(ticket.job, upload).actions

    async def _upload_again(self, ticket: PersistedBuffer) -> None:
        """Clean-up may have taken the files that waited for their commit: put them up anew."""
        fresh = self._ticket(ticket.job, await self._upload_until_done(ticket))
        ticket.files, ticket.actions = fresh.files, fresh.actions
        ticket.covered_to, ticket.left_out = -1, frozenset()

    async def _upload_until_done(
        self, ticket: PersistedBuffer, after_seq: int = -1, left_out: Collection[int] = ()
    ) -> Upload:
        """At the table's gate, where nobody else can go first: what cannot be encoded waits."""
        while True:
            try:
                return await self.uploads.until_done(
                    ticket.job, after_seq=after_seq, left_out=left_out
                )
            except CannotEncode:
                await trio.sleep(ENCODE_RETRY_S)

    def _ticket(self, job: FlushJob, upload: Upload) -> PersistedBuffer:
        handle = job.handle
        spec_id, values = handle.partition
        applied = Applied(
            ingester_id=self._writer.ingester_id,
            epoch=handle.epoch,
            spec_id=spec_id,
            values=values,
            seq=handle.last_seq,
        )
        removes = (Remove(path=path, reason="replaced by newer rows") for path in upload.replaces)
        actions: tuple[Action, ...] = (*removes, *upload.files.adds, applied)
        return PersistedBuffer(job, upload.files, actions, base=upload.base)

    async def _commit(self, job: FlushJob, ticket: PersistedBuffer, started: float) -> None:
        order_bytes = ticket.files.nbytes
        self._ledger.jobs += order_bytes
        try:
            await self._gathering.gathered(ticket.table.key, job.handle, job.handle.nbytes)
            await self._commits.joined(ticket)
        finally:
            self._ledger.jobs -= order_bytes
        self._report(job, ticket.files.adds, started)

    async def _commit_keyed(self, job: FlushJob, upload: Upload, started: float) -> None:
        """With others, and before the next buffer of the partition, which may replace its files."""
        table = job.table
        backoff = Backoff(0.05, 5.0, Random())
        ticket = self._ticket(job, upload)
        try:
            await self._gathering.gathered(table.key, job.handle, job.handle.nbytes)
            await self._meetings.join(ticket)
            while not await self._commits.joined(ticket):
                await trio.sleep(backoff.next_s())
                await self._make_anew(ticket)
                await self._meetings.join(ticket)
        finally:
            if not job.handle.messages:
                self._waiting.release()
        self._report(job, ticket.files.adds, started)

    async def _make_anew(self, ticket: PersistedBuffer) -> None:
        """On top of the newest version known, without what is not ours or in files already."""
        if not ticket.refused:
            return
        assert ticket.base is not None
        base = max(ticket.table.state, ticket.base, key=lambda state: state.version)
        upload = await self.uploads.until_done(
            ticket.job, base, after_seq=ticket.covered_to, left_out=ticket.left_out
        )
        fresh = self._ticket(ticket.job, upload)
        ticket.files, ticket.actions, ticket.base = fresh.files, fresh.actions, fresh.base
        ticket.refused = False

    def _report(self, job: FlushJob, adds: tuple[Add, ...], started: float) -> None:
        table, handle = job.table, job.handle
        finished = time.monotonic()
        queued_s, active_s = started - handle.frozen_at, finished - started
        log.info(
            "partition persisted",
            table=f"{table.namespace}/{table.name}",
            partition=job.partition_name,
            rows=handle.total_rows,
            files=len(adds),
            bytes=sum(add.bytes for add in adds),
            queued_s=round(queued_s, 4),
            active_s=round(active_s, 4),
            total_s=round(queued_s + active_s, 4),
        )
        if self.on_persisted is not None:
            self.on_persisted(job, adds, queued_s, active_s)
