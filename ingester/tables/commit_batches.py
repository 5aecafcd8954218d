"""Committing a batch of finished flushes of one table in one version.

    without a primary key   all of them, in order; what cannot be committed is uploaded again at
    once
    with a primary key      those that can be committed; the others are refused, made again, and
    come back

Nothing is committed that belongs to another daemon, that is in files already, or that was made
for other files than its keyed partition has now. Buffers of a table without a primary key never
overtake each other. In a keyed table a batch has at most one buffer of each partition,
independent of the others unless they belong to one atomic flush (tests/tables). Callers hold the
table's gate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from random import Random

import structlog
import trio

from ingester.buffer import BufferHandle, BufferTree, TableBuffer
from ingester.errors import StoreUnreachable
from ingester.tables.claims import (
    CheckpointClaims,
    Claims,
    OriginClaims,
    actions_of,
    covered,
    shares_of,
)
from ingester.tables.commit_schedule import FinishedFlush, FlushState, whole
from persist.backoff import Backoff
from persist.manifest import (
    Action,
    Add,
    OriginMoved,
    PartitionKey,
    PartitionsChanged,
    PartlyCovered,
    TableState,
    UploadExpired,
    VersionSealed,
    WriterIdentity,
)


class VersionOverlap:
    """The buffers filled by replay, until they are released."""

    def __init__(self, tree: BufferTree, ingester_id: str, claims: OriginClaims) -> None:
        self._tree = tree
        self._claims = claims
        self._ingester_id = ingester_id
        self._replayed: dict[TableBuffer, set[BufferHandle]] = {}

    def note_replayed(self, table: TableBuffer, handle: BufferHandle) -> None:
        """Record a buffer with operations that other logs may contain as well."""
        self._replayed.setdefault(table, set()).add(handle)

    def freeze_behind(
        self, table: TableBuffer, state: TableState, besides: Collection[BufferHandle] = ()
    ) -> list[BufferHandle]:
        """Freeze and return the buffers that prevent a version from being installed.

        Args:
            besides: buffers released together with that version.
        """
        behind = [h for h in self._replayed_into(table) if self._has_rows_of(state, h)]
        if state.origins is not table.state.origins:
            lost = self._claims.lost_rows(table, state)
            behind += [handle for handle in lost if handle not in behind]
        behind = [handle for handle in behind if handle not in besides]
        for handle in behind:
            if not handle.frozen:
                self._tree.freeze(table.partitions[handle.partition])
        return behind

    def _replayed_into(self, table: TableBuffer) -> list[BufferHandle]:
        known = self._replayed.get(table)
        if known is None:
            return []
        known -= {handle for handle in known if handle.released}
        if not known:
            del self._replayed[table]
        return list(known)

    def _has_rows_of(self, state: TableState, handle: BufferHandle) -> bool:
        spec_id, values = handle.partition
        upto = state.applied_to(self._ingester_id, handle.epoch, spec_id, values)
        return upto >= handle.first_seq


def held_back(table: TableBuffer) -> StoreUnreachable:
    """Return the error for a version by others that cannot be shown yet."""
    return StoreUnreachable(
        f"table {table.namespace}/{table.name}: its newest version has rows that are still being"
        " flushed here as well; retry",
        retry_after_s=0.5,
    )


log = structlog.get_logger(__name__)

FilesOf = Mapping[PartitionKey, Sequence[Add] | None]
"""Return the partitions that must still have the files that the flushes were made for."""
NO_FILES: FilesOf = {}
Commit = Callable[
    [TableBuffer, TableState, tuple[Action, ...], Claims, FilesOf], Awaitable[TableState]
]
Batch = list[FinishedFlush]


class CommitBatches:
    """Commits batches. Event loop only."""

    def __init__(
        self,
        claims: OriginClaims,
        checkpoints: CheckpointClaims,
        writer: WriterIdentity,
        commit: Commit,
        newest: Callable[[TableBuffer], Awaitable[TableState]],
    ) -> None:
        """Args:
        commit: retries until the store has answered.
        newest: returns the table's newest version after a switch, with the same retries.
        """
        self._claims = claims
        self._checkpoints = checkpoints
        self._writer = writer
        self._commit = commit
        self._newest = newest

    async def commit_all(self, table: TableBuffer, base: TableState, batch: Batch) -> TableState:
        """Commit everything that is not in files as one version, whose files represent whole
        buffers.

        Left out are operations that an adoption flushed meanwhile and those that are no longer
        this daemon's; readers of such a buffer continue in the complete files, which were
        uploaded and are in no version. Expired files, and files for a table version that is no
        longer current, are uploaded again while the gate is held, because no later buffer may be
        committed first. If the store's clock went back, all uploads are late for a while.
        """
        backoff = Backoff(0.1, 60.0, Random())
        while True:
            for flush in batch:
                if not flush.is_for(base):
                    await flush.remaker.upload_again(flush, base)
            await self._leave_out(batch, base)
            try:
                return await self._commit_batch(table, base, batch)
            except PartlyCovered as exc:
                for flush in batch:
                    if self._note_covered(flush, exc):
                        flush.actions = await flush.remaker.encode_rest(flush, base)
            except OriginMoved as exc:
                base = exc.state
            except VersionSealed:
                base = await self._newest(table)
            except UploadExpired as exc:
                log.info("upload expired, uploading again", table=table.key, error=str(exc))
                await trio.sleep(backoff.next_s())
                for flush in batch:
                    if _has_expired(flush, exc):
                        await flush.remaker.upload_again(flush, base)

    async def commit_keyed(
        self, table: TableBuffer, base: TableState, batch: Batch
    ) -> tuple[TableState, Batch]:
        """Commit the flushes that are valid as they are; return the version and these flushes.

        The others are refused, to be made again without ``left_out`` on top of the version noted
        in them, or left out with the rest of their atomic flush.
        """
        while batch := whole(self._as_encoded(batch, base)):
            files = {flush.partition: flush.expected_files for flush in batch}
            try:
                return await self._commit_batch(table, base, batch, files), batch
            except OriginMoved as exc:
                base = exc.state
            except VersionSealed:
                base = await self._newest(table)
            except PartitionsChanged as exc:
                base = exc.state
                for flush in batch:
                    if flush.partition in exc.partitions:
                        flush.refuse(base)
            except (UploadExpired, PartlyCovered) as exc:
                log.info("flushing again what the table does not take", error=str(exc))
                for flush in [flush for flush in batch if self._cannot_go_in(flush, exc)] or batch:
                    flush.refuse()
        return base, []

    async def _commit_batch(
        self, table: TableBuffer, base: TableState, batch: Batch, files: FilesOf = NO_FILES
    ) -> TableState:
        actions = tuple(action for flush in batch for action in flush.actions)
        handles = [flush.handle for flush in batch]
        ready = self._checkpoints.ready(table, base, frozenset(handles))
        claims = self._claims.of(base, handles, actions, shares_of(ready))
        ready = covered(ready, claims.actions)
        actions += self._claims.due_to_expire(table.key, base, actions)
        state = await self._commit(table, base, (*actions, *actions_of(ready)), claims, files)
        for pending in ready:
            pending.committed_in = state.place
        return state

    async def commit_checkpoints(self, table: TableBuffer) -> TableState | None:
        """Commit the checkpoints whose rows are in files; None if there are none."""
        base = table.state
        while self._checkpoints.ready(table, base, frozenset()):
            try:
                return await self._commit_batch(table, base, [])
            except OriginMoved as exc:
                base = exc.state
            except VersionSealed:
                base = await self._newest(table)
        return None

    def _as_encoded(self, batch: Batch, base: TableState) -> Batch:
        """Return the flushes that are not refused and whose files have exactly this daemon's
        rows.
        """
        batch = [flush for flush in batch if flush.state is FlushState.DUE]
        for flush in batch:
            if not flush.is_for(base):
                flush.refuse(base)
        batch = [flush for flush in batch if flush.state is FlushState.DUE]
        for flush in self._with_other_rows(batch, base):
            flush.refuse(base)
        return [flush for flush in batch if flush.state is FlushState.DUE]

    async def _leave_out(self, batch: Batch, base: TableState) -> None:
        for flush in self._with_other_rows(batch, base):
            flush.actions = await flush.remaker.encode_rest(flush, base)

    def _with_other_rows(self, batch: Batch, base: TableState) -> Batch:
        """Return the flushes whose files have other rows than this daemon's; sets their
        ``left_out``.
        """
        left_out = self._claims.left_out(base, [flush.handle for flush in batch])
        changed = []
        for flush, not_ours in zip(batch, left_out, strict=True):
            if not_ours != flush.left_out:
                flush.left_out = not_ours
                changed.append(flush)
        return changed

    def _cannot_go_in(self, flush: FinishedFlush, exc: UploadExpired | PartlyCovered) -> bool:
        if isinstance(exc, UploadExpired):
            return _has_expired(flush, exc)
        return self._note_covered(flush, exc)

    def _note_covered(self, flush: FinishedFlush, exc: PartlyCovered) -> bool:
        """Record that the buffer is in files up to an operation in its middle; False if it is
        not.
        """
        upto = exc.covered.get(flush.applied_key(self._writer.ingester_id), -1)
        covered = flush.handle.first_seq <= upto < flush.handle.last_seq
        if covered:
            flush.covered_to = upto
        return covered


def _has_expired(flush: FinishedFlush, exc: UploadExpired) -> bool:
    return any(add in flush.actions for add in exc.adds)
