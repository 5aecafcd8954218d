"""From a frozen buffer to a committed file: sort, encode, put, commit, release.

Law of this file: a frozen buffer is tried until it is committed. Its file goes up under a fresh
name for every attempt, so an upload that arrives late can only be garbage. Buffers of one partition
are uploaded in order and join the table's commits in that order; the next buffer is encoded while
the one before waits for its commit, so commits are shared.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial
from random import Random

import structlog
import trio

from ingester.buffer import BufferHandle
from ingester.catalog import Catalog, PersistedBuffer
from ingester.memory import MemoryLedger
from ingester.query.align import align_table
from persist.backoff import Backoff
from persist.manifest import Add, Applied, WriterIdentity
from persist.parquet import encode_sorted
from persist.partitioning import folder_of
from persist.queue import PersistQueue
from persist.store import StoreError
from persist.table import TableDefinition

log = structlog.get_logger(__name__)

MAX_WAITING_COMMITS = 1024
"""Uploaded buffers that may wait for their commit: their rows stay in memory meanwhile."""


class Persister:
    """Turns frozen buffers into files. The work runs in threads, the order is kept on the loop."""

    def __init__(
        self,
        catalog: Catalog,
        ledger: MemoryLedger,
        writer: WriterIdentity,
        *,
        workers: int,
        target_file_bytes: int,
    ) -> None:
        self.queue: PersistQueue[BufferHandle] = PersistQueue(workers)
        self.on_persisted: Callable[[BufferHandle, tuple[Add, ...], float, float], None] | None = (
            None
        )
        self.on_failed: Callable[[], None] | None = None
        self._catalog = catalog
        self._ledger = ledger
        self._writer = writer
        self._target_file_bytes = target_file_bytes
        self._threads = trio.CapacityLimiter(workers)
        self._commits = trio.Semaphore(MAX_WAITING_COMMITS)
        self._nursery: trio.Nursery | None = None

    def enqueue(self, handle: BufferHandle) -> None:
        """Queue a frozen buffer behind the earlier ones of its partition."""
        table, key = handle.partition.table, handle.partition.key
        self.queue.put(f"{table.namespace}/{table.name}/{key}", handle, handle.nbytes)

    async def run(self) -> None:
        """Persist what is queued until cancelled.

        Raises:
            Fenced: another process has taken over; nothing more can be committed.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self.queue.run(self._persist)

    async def _persist(self, handle: BufferHandle) -> None:
        started = time.monotonic()
        nbytes = handle.nbytes
        self._ledger.jobs += nbytes
        try:
            adds = await self._upload(handle)
        finally:
            self._ledger.jobs -= nbytes
        await self._commits.acquire()
        assert self._nursery is not None
        ticket = self._ticket(handle, adds)
        self._catalog.join_commit(handle.partition.table, ticket)
        self._nursery.start_soon(self._commit, handle, ticket, started)

    async def _upload(self, handle: BufferHandle) -> tuple[Add, ...]:
        backoff = Backoff(0.1, 10.0, Random())
        while True:
            try:
                return await trio.to_thread.run_sync(
                    partial(self._encode_and_put, handle, handle.partition.table.definition),
                    limiter=self._threads,
                )
            except (StoreError, OSError) as exc:
                wait_s = backoff.next_s()
                if self.on_failed is not None:
                    self.on_failed()
                log.warning(
                    "upload failed, trying again",
                    table=handle.partition.table.key,
                    partition=handle.partition.name,
                    error=str(exc),
                    wait_s=round(wait_s, 3),
                    runbook="store-away",
                )
                await trio.sleep(wait_s)

    def _encode_and_put(self, handle: BufferHandle, definition: TableDefinition) -> tuple[Add, ...]:
        """Runs in a worker thread; the frozen buffer does not change under it."""
        table, (spec_id, values) = handle.partition.table, handle.partition.key
        folder = folder_of(definition.spec, values)
        metadata = {
            "ingester_id": self._writer.ingester_id,
            "incarnation": self._writer.incarnation,
            "epoch": str(handle.epoch),
            "spec_id": str(spec_id),
            "partition": folder,
            "first_seq": str(handle.first_seq),
            "last_seq": str(handle.last_seq),
            "schema_id": str(definition.schema_id),
        }
        rows = align_table(handle.rows.batches(), definition.schema)
        adds = []
        for file in encode_sorted(
            rows, definition, metadata=metadata, target_bytes=self._target_file_bytes
        ):
            path = "/".join(
                part for part in ("data", folder, f"{uuid.uuid4().hex}.parquet") if part
            )
            put = self._catalog.store.put(f"{table.namespace}/{table.name}/v1/{path}", file.data)
            adds.append(
                Add(
                    path=path,
                    kind="persist",
                    rows=file.rows,
                    bytes=file.data.size,
                    spec_id=spec_id,
                    values=values,
                    stats=file.stats,
                    writer=self._writer.ingester_id,
                    epoch=handle.epoch,
                    first_seq=handle.first_seq,
                    last_seq=handle.last_seq,
                    schema_id=definition.schema_id,
                    at=put.at.isoformat(),
                )
            )
        return tuple(adds)

    def _ticket(self, handle: BufferHandle, adds: tuple[Add, ...]) -> PersistedBuffer:
        spec_id, values = handle.partition.key
        applied = Applied(
            ingester_id=self._writer.ingester_id,
            epoch=handle.epoch,
            spec_id=spec_id,
            values=values,
            seq=handle.last_seq,
        )
        return PersistedBuffer(handle, adds, (*adds, applied))

    async def _commit(self, handle: BufferHandle, ticket: PersistedBuffer, started: float) -> None:
        table, adds = handle.partition.table, ticket.adds
        try:
            await self._catalog.commit_joined(table, ticket)
        finally:
            self._commits.release()
        finished = time.monotonic()
        queued_s, active_s = started - handle.frozen_at, finished - started
        log.info(
            "partition persisted",
            table=f"{table.namespace}/{table.name}",
            partition=handle.partition.name,
            rows=handle.total_rows,
            files=len(adds),
            bytes=sum(add.bytes for add in adds),
            queued_s=round(queued_s, 4),
            active_s=round(active_s, 4),
            total_s=round(queued_s + active_s, 4),
        )
        if self.on_persisted is not None:
            self.on_persisted(handle, adds, queued_s, active_s)
