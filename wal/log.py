"""The log's interface. Its stages follow in one direction, and each call belongs to one stage.

::

    new --recover--> recovered --replay*--> --start--> started --run--> closing --close--> closed
                     nothing is created                appends are taken
                     before replay is over
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

from wal import recovery
from wal.append_queue import Make
from wal.direct_io import CACHED_BYTES, DirectDisk
from wal.disk import Disk
from wal.entry import Draft, Entry
from wal.errors import LogError, LogFailed, LogFull, LogWriteFailed
from wal.format import LogIdentity
from wal.group import LogGroup
from wal.group_commit import GroupCommit
from wal.replay import Chain, Record, RecordSource, ReplayCursor, by_epoch, read_ahead
from wal.segments import Carry, SegmentSet
from wal.settings import LogSettings, LogStatistics, Recovered, SegmentFacts
from wal.shipping import Shipping

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

log = structlog.get_logger("wal")


class Log:
    """A durable, ordered log of opaque records in one folder.

    Args:
        directory: The log's folder, which `recover` creates. The caller holds a `DirectoryLock` for
            the log's whole life.
        carry: Called on the loop when a new segment is opened. Returns the ``(kind, parts)``
            records to write first in it. They must replace everything that older segments hold
            besides operations, so that those can be pruned.
    """

    def __init__(
        self,
        directory: Path,
        settings: LogSettings | None = None,
        *,
        disk: Disk | None = None,
        carry: Carry = lambda: (),
    ) -> None:
        self._directory = directory
        self._settings = settings or LogSettings()
        waits = self._settings.fsync == "commit"
        self._disk: Disk = disk or DirectDisk(0 if waits else CACHED_BYTES)
        self._segments = SegmentSet(self._disk, directory, self._settings, carry)
        self._commit = GroupCommit(self._segments, self._settings)
        self._groups = self._commit.groups
        self._recovered: Recovered | None = None
        self._started = False

    async def recover(self) -> Recovered:
        """Recover the log: check each segment in full, cut a torn tail, seal everything.

        Raises:
            LogDamaged, LogTooNew: nothing was changed.
            LogFull, LogWriteFailed: the disk refused; another call continues from there.
            LogFailed: a sync failed; the process must end.
        """
        recovered, next_number = await self._segments.in_thread(
            partial(recovery.recover, self._disk, self._directory)
        )
        self._segments.adopt(recovered, next_number)
        self._recovered = recovered
        if recovered.foreign:
            log.warning(
                "foreign files left alone",
                directory=str(self._directory),
                files=recovered.foreign,
                runbook="foreign-files",
            )
        if recovered.torn_segments or recovered.removed:
            log.warning(
                "torn tail cut",
                bytes=recovered.torn_bytes,
                kept=recovered.torn_files,
                removed=recovered.removed,
                runbook="torn-tail",
            )
        return recovered

    def replay(
        self,
        *,
        allocate: Callable[[int], WriteableBuffer] = bytearray,
        from_segment: int = 0,
        others: Mapping[int, RecordSource] | None = None,
    ) -> AsyncIterator[list[Record]]:
        """The records that `recover` found, oldest first, in lists of one segment each.

        A list has about 8 MiB of payload, or one larger record; the next list is read while the
        caller uses this one. `allocate` is called in a thread with a length in bytes and returns
        the buffer of one payload. Seals are left out, as are segments below `from_segment` and
        those pruned before the call; a segment that is still to be replayed must not be pruned.

        Args:
            others: by epoch, what else has records of it; they come after the epoch's segments.

        Raises:
            LogDamaged: a record has changed since `recover` checked it.
        """
        if self._recovered is None:
            raise RuntimeError("replay() comes after recover()")
        known = self._segments.sealed.facts
        facts = [
            one
            for one in self._recovered.segments
            if one.number in known and one.number >= from_segment
        ]

        def local(found: Sequence[SegmentFacts]) -> ReplayCursor:
            return ReplayCursor(self._disk, self._directory, found, allocate)

        return read_ahead(Chain(by_epoch(facts, local, others or {})))

    async def start(
        self, identity: LogIdentity, first_seq: int, begun: Callable[[], None] | None = None
    ) -> None:
        """Open a new segment; call it after replay.

        The first operation gets `first_seq`. On a full disk the log starts without a segment:
        appends are answered with LogFull until there is room.

        Args:
            begun: called in a thread when the first segment is durable, before anything is appended
                to it. If it raises OSError, the segment is not used.

        Raises:
            LogFailed: a sync failed; the process must end.
        """
        if self._recovered is None or self._started:
            raise RuntimeError("start() comes once, after recover()")
        self._started = True
        self._segments.begin(identity, first_seq, begun)
        with trio.CancelScope(shield=True):
            try:
                await self._segments.rotate()
            except (LogFull, LogWriteFailed) as exc:
                log.warning("segment refused", error=str(exc), runbook="disk-full")

    async def run(
        self,
        apply: Callable[[Sequence[Entry]], None],
        make: Make | None = None,
        shipping: Shipping | None = None,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Commit what is appended, until `close` or cancellation.

        For each group: written (and, under "commit", synced), then ``apply(entries)`` once, in log
        order, then each entry's ``on_done(entry, None)``, without an await in between. `apply` must
        not fail, because the log already holds the entries.

        ``make(drafts)`` is called in the writing thread before a group is formed, with consecutive
        drafts. It returns the entries that replace them, in any order, and answers drafts that it
        leaves out. It must not fail.

        Entries that ``shipping`` takes are applied and answered when it calls `shipped`.

        Raises:
            LogFailed: a sync or a cut failed, or `apply` raised. All waiting callers have been
                answered with it. The process must end.
        """
        if not self._started or self._commit.running:
            raise RuntimeError("run() comes once, after start()")
        await self._commit.run(apply, make, shipping, task_status)

    def shipped(self, entries: Sequence[Entry], error: LogError | None = None) -> None:
        """Apply and answer entries that shipping took, or answer them with an error. Any thread.

        Called once for each entry, in the order in which they are to be applied.
        """
        now = time.time_ns()
        group = LogGroup(list(entries), began_ns=now, stored_ns=now, shipped=True)
        self._groups.writer.shipped(group, error)

    def append_nowait(self, item: Entry | Draft) -> None:
        """Queue an entry, or a draft of one, for the next group. Any thread.

        If this returns, the entry's ``on_done`` is called exactly once, on the loop: with None,
        LogFull, LogWriteFailed, LogClosed or LogFailed. A draft is answered only if it never
        becomes an entry. One error object may go to several entries.

        Raises:
            LogClosed: the log takes nothing more; ``on_done`` is not called.
        """
        self._append(item, here=False)

    def append(self, item: Entry | Draft) -> None:
        """Queue as `append_nowait`; if no thread writes, the caller's thread writes the group.

        For a thread that waits for the outcome anyway. What arrives meanwhile is left to the log's
        own thread. The caller calls `tell` after it has passed the outcome on; until then the loop
        is not woken, because waking it would take the interpreter from the caller.
        """
        self._append(item, here=True)

    def _append(self, item: Entry | Draft, *, here: bool) -> None:
        if self.queue(item, here=here):
            self.carry_on(here=here)

    def queue(self, item: Entry | Draft, *, here: bool) -> bool:
        """The first half of `append_nowait`, or of `append` if `here`. It waits for nothing.

        Returns:
            Whether the caller has to call `carry_on`, which may wait.

        Raises:
            LogClosed: as `append_nowait`.
        """
        return self._groups.queue.append(item, here=here)

    def carry_on(self, *, here: bool) -> None:
        """The second half of `append_nowait`, or of `append` if `here`."""
        self._groups.writer.carry_on(here=here)

    def tell(self) -> None:
        """Make sure that written groups are applied soon. Any thread."""
        self._groups.applies.tell()

    @property
    def settled(self) -> bool:
        """Whether every entry whose ``on_stored`` was called is applied. Any thread."""
        return self._groups.applies.settled

    def wait_settled(self, timeout_s: float) -> bool:
        """Whether every entry whose ``on_stored`` was called is applied in time.

        Blocks; any thread but the loop's.
        """
        return self._groups.applies.wait_settled(timeout_s)

    def catch_up(self) -> None:
        """Apply and answer written groups now. On the loop."""
        self._groups.applies.catch_up()

    @property
    def diverged(self) -> bool:
        """Whether `apply` refused a group; groups written since are not applied either."""
        return self._groups.applies.diverged is not None

    async def rotate(self, *, force: bool = False) -> None:
        """Seal the open segment and open the next, if it holds an operation or with `force`.

        Raises:
            LogFull, LogWriteFailed: the rotation failed; the log continues.
            LogClosed, LogFailed: the log does not run.
        """
        await self._commit.rotate(force=force)

    async def prune(self, keep_from_segment: int) -> list[int]:
        """Delete the sealed segments below that number; return the deleted numbers, ascending.

        Raises:
            LogFull, LogWriteFailed: the disk refused; the segments before it are deleted.
            LogFailed: the folder could not be synced; the log is dead.
        """
        try:
            with trio.CancelScope(shield=True):
                removed = await self._segments.sealed.prune(keep_from_segment)
        except LogFailed as exc:
            self._commit.fail(exc)
            raise
        return removed

    async def close(self) -> None:
        """Finish what is pending, seal the segment, and close the files. May be called again.

        After a failure, or if the disk refuses the seal, the open segment stays as it is, and the
        next start judges it.

        Raises:
            LogFull, LogWriteFailed, LogFailed: the segment could not be sealed.
        """
        with trio.CancelScope(shield=True):
            await self._commit.finish()
            await self._segments.close(seal=self._groups.failure is None)

    @property
    def open_segment(self) -> int:
        """The number of the open segment, or of the next one if none is open."""
        return self._segments.open_number

    @property
    def next_seq(self) -> int:
        """The next operation's sequence. While no group is being written."""
        return self._segments.next_seq

    @property
    def pending(self) -> int:
        """The number of entries and drafts in no group."""
        return len(self._groups.queue.pending)

    @property
    def last_sync_s(self) -> float:
        return self._segments.last_sync_s

    @property
    def applied_between_ns(self) -> tuple[int, int]:
        """When the group being applied began to be written and was stored, in nanoseconds since
        1970.
        """
        return self._groups.applies.applied_between_ns

    @property
    def writing_s(self) -> float:
        """How long the current group has been written and synced; 0 without one. Any thread.

        It grows while a disk does not answer.
        """
        in_hand = [g for g in tuple(self._groups.queue.groups) if g.began_s and not g.stored_ns]
        return time.monotonic() - in_hand[0].began_s if in_hand else 0.0

    @property
    def certain_bytes(self) -> int:
        """The bytes that can be appended without asking the disk for room. Any thread."""
        return self._segments.reserved_bytes - self._groups.queue.unbooked_bytes

    def statistics(self) -> LogStatistics:
        pending, applies = self._groups.queue.pending, self._groups.applies
        return LogStatistics(
            **self._segments.statistics(),
            pending=len(pending),
            pending_bytes=pending.nbytes,
            records=applies.records,
            groups=applies.groups,
            failed_groups=self._groups.failed_groups,
        )
