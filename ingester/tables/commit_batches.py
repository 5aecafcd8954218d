"""Persists of one table that wait together, in one version.

    plain   in order and all of them: what cannot go in as it is, is uploaded anew on the spot
    keyed   all that can go in: what cannot stands aside, is made anew by its partition, comes again

Law of this file: nothing is committed that is not ours, that is in files already, or that was made
for other files than its keyed partition has. Buffers of a plain table never overtake each other. In
a keyed table a partition has one buffer in a group at most, and those of other partitions do not
depend on it, unless they were frozen together: then all go in, or none. Hold the table's gate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random

import structlog
import trio

from ingester.buffer import TableBuffer
from ingester.tables.commit_barrier import whole
from ingester.tables.origin_claims import Claims, OriginClaims
from ingester.tables.pending_commit import PersistedBuffer
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
    WriterIdentity,
)

log = structlog.get_logger(__name__)

FilesOf = Mapping[PartitionKey, Sequence[Add] | None]
"""Partitions that have to have these files still."""
NO_FILES: FilesOf = {}
Commit = Callable[
    [TableBuffer, TableState, tuple[Action, ...], Claims, FilesOf], Awaitable[TableState]
]
Group = list[PersistedBuffer]


class CommitGroups:
    """Commits groups. Loop only."""

    def __init__(self, claims: OriginClaims, writer: WriterIdentity, commit: Commit) -> None:
        """``commit`` tries until the store has answered."""
        self.encode_rest: Callable[[PersistedBuffer], Awaitable[tuple[Action, ...]]]
        """Uploads what of a buffer is for us to commit; set by who persists, as is the next."""
        self.upload_again: Callable[[PersistedBuffer], Awaitable[None]]
        self._claims = claims
        self._writer = writer
        self._commit = commit

    async def commit_all(self, table: TableBuffer, base: TableState, group: Group) -> TableState:
        """One version with all that is not in files; its files stand for the whole buffers' too.

        What an adoption has put into files meanwhile is left out, and so is what is not ours any
        more; whoever reads a buffer then goes on in the files that have all of it, which were
        uploaded and are in no version. Expired files go up again within the gate: no later buffer
        may go in before. Where the store's clock went back, all uploads are too late for a while.
        """
        backoff = Backoff(0.1, 60.0, Random())
        while True:
            await self._leave_out(group, base)
            try:
                state = await self._together(table, base, group)
            except PartlyCovered as exc:
                for member in group:
                    if (upto := self._covered_to(member, exc)) is not None:
                        member.covered_to = upto
                        member.actions = await self.encode_rest(member)
            except OriginMoved as exc:
                base = exc.state
            except UploadExpired as exc:
                log.info("upload expired, uploading again", table=table.key, error=str(exc))
                await trio.sleep(backoff.next_s())
                for member in group:
                    if _is_late(member, exc):
                        await self.upload_again(member)
            else:
                for member in group:
                    member.on_committed()
                return state

    async def commit_keyed(
        self, table: TableBuffer, base: TableState, group: Group
    ) -> tuple[TableState, Group]:
        """One version with those that go in as they are, and who they are.

        The others are told what to be made anew without, and on top of which version at least.
        """
        while group := whole(self._as_encoded(group, base)):
            files = {member.partition: _files_of(member) for member in group}
            try:
                return await self._together(table, base, group, files), group
            except OriginMoved as exc:
                base = exc.state
            except PartitionsChanged as exc:
                base = exc.state
                for member in group:
                    if member.partition in exc.partitions:
                        member.base, member.refused = base, True
                group = [member for member in group if not member.refused]
            except (UploadExpired, PartlyCovered) as exc:
                log.info("flushing again what the table does not take", error=str(exc))
                aside = [member for member in group if self._stands_aside(member, exc)] or group
                for member in aside:
                    member.refused = True
                group = [member for member in group if not member.refused]
        return base, []

    async def _together(
        self, table: TableBuffer, base: TableState, group: Group, files: FilesOf = NO_FILES
    ) -> TableState:
        actions = tuple(action for member in group for action in member.actions)
        claims = self._claims.of(base, [member.handle for member in group], actions)
        actions += self._claims.due_to_expire(table.key, base, actions)
        return await self._commit(table, base, actions, claims, files)

    def _as_encoded(self, group: Group, base: TableState) -> Group:
        """Those whose files have what is ours and nothing else."""
        not_ours = self._claims.left_out(base, [member.handle for member in group])
        before = [member.left_out for member in group]
        for member, left_out in zip(group, not_ours, strict=True):
            if left_out != member.left_out:
                member.left_out, member.base, member.refused = left_out, base, True
        return [m for m, was, now in zip(group, before, not_ours, strict=True) if was == now]

    async def _leave_out(self, group: Group, base: TableState) -> None:
        not_ours = self._claims.left_out(base, [member.handle for member in group])
        for member, left_out in zip(group, not_ours, strict=True):
            if left_out != member.left_out:
                member.left_out = left_out
                member.actions = await self.encode_rest(member)

    def _stands_aside(self, member: PersistedBuffer, exc: UploadExpired | PartlyCovered) -> bool:
        if isinstance(exc, UploadExpired):
            return _is_late(member, exc)
        upto = self._covered_to(member, exc)
        if upto is not None:
            member.covered_to = upto
        return upto is not None

    def _covered_to(self, member: PersistedBuffer, exc: PartlyCovered) -> int | None:
        """Up to which operation the buffer is in files already, where that is in its midst."""
        upto = exc.covered.get(member.applied_key(self._writer.ingester_id), -1)
        return upto if member.handle.first_seq <= upto < member.handle.last_seq else None


def _is_late(member: PersistedBuffer, exc: UploadExpired) -> bool:
    return any(add in member.actions for add in exc.adds)


def _files_of(member: PersistedBuffer) -> Sequence[Add] | None:
    """Those of its partition in the version that it was made for."""
    assert member.base is not None
    return member.base.partitions.get(member.partition)
