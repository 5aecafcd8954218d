"""One table's part of an adopted log: uploaded and committed for its writers.

    pending ── less what is in files ──▶ upload ──▶ commit, fenced by check_replaced
                 ▲                                     │
                 └──────── the newest version ◀────────┘  a concurrent commit was faster: plan again

Per (ingester id, epoch, spec, partition) operations are committed in log order without gaps, so
``applied`` never covers one that is in no file. Blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from ingester.buffer import BufferedRows, RowsToFlush
from ingester.buffer.rows import MIXED
from ingester.flush.file_writer import FileWriter
from ingester.origins.checkpoint_state import SourceCheckpoint
from ingester.origins.checkpoints import MOST_PENDING, MissingSequences
from ingester.recovery.adoption_rules import (
    ADOPTION,
    OrderUnknown,
    OrphanCheckpoint,
    OrphanKey,
    OrphanPart,
    OrphanSequence,
    Pending,
    check_made,
    check_order,
    checkpoints_of,
    is_brought,
    left_of,
    origins_of,
    rows_of,
    taken_over,
)
from ingester.recovery.orphan_log import OrphanOperation
from persist.manifest import (
    Action,
    Add,
    CommitUnclear,
    Fenced,
    Manifest,
    OriginMoved,
    PartitionsChanged,
    PartlyCovered,
    Proposal,
    Rebase,
    TableState,
    UploadExpired,
    WriterAction,
    WriterIdentity,
    check_replaced,
    commit,
    rebase,
    undisturbed,
    unmoved,
)
from persist.manifest import CheckpointAction as CheckpointAction
from persist.store import StoreRetry, StoreUnavailable, retry
from persist.table import TableDefinition

T = TypeVar("T")

ADOPTION_RETRY = StoreRetry(
    first_s=0.2, cap_s=3.0, unreachable=(StoreUnavailable, CommitUnclear), attempts=9
)
PLANS = 100
"""The most attempts; each follows a concurrent commit of the same rows or files."""


class AdoptedTable(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one table. Rows count once per part of an operation."""

    namespace: str
    table: str
    rows: int = 0
    files: int = 0
    skipped_rows: int = 0
    """Rows that files already had, or that belong to another process by now."""
    taken_over_rows: int = 0
    """Rows among ``skipped_rows`` whose sequences another process took over before they were in
    files: their client has sent them again, or has used their numbers for other rows."""
    refused_rows: int = 0
    """Rows that remain in the log only, because of ``refused``."""
    refused: str | None = None
    checkpoints: int = 0
    """Committed states of sources."""


class Successors(Protocol):
    """The identities that succeed the writers of a log."""

    def successor(self, ingester_id: str) -> WriterIdentity:
        """An identity newer than all writers of the log."""

    def last_ended(self, ingester_id: str) -> int:
        """An epoch of the log, or a later one, up to which no process runs any more."""


class TableAdoption:
    """Takes a table's operations in log order and commits them."""

    def __init__(
        self,
        manifest: Manifest,
        file_writer: Callable[[WriterIdentity], FileWriter],
        successors: Successors,
    ) -> None:
        """Load the table.

        Raises:
            TableNotFound, StoreUnavailable
        """
        self._manifest = manifest
        self._file_writer = file_writer
        self._successors = successors
        self._state = patiently(manifest.load)
        self._keyed = TableDefinition.of_state(self._state).keyed
        self._writers: dict[str, WriterIdentity] = {}
        """The newest writer of each ingester id, of those with operations in the log."""
        self._pending: dict[OrphanKey, list[OrphanPart]] = {}
        self._checkpoints: dict[str, list[OrphanCheckpoint]] = {}
        self._missing = MissingSequences()
        self.report = AdoptedTable(namespace=manifest.namespace, table=manifest.table)

    def take(self, operation: OrphanOperation) -> int:
        """Keep an operation's rows for the next :meth:`flush`; return their bytes."""
        header = operation.logged.header
        newest = self._writers.setdefault(operation.writer.ingester_id, operation.writer)
        if newest.epoch < operation.writer.epoch:
            self._writers[newest.ingester_id] = operation.writer
        whole = self._is_whole(operation)
        if operation.checkpoint is not None and whole:
            self._keep_checkpoint(operation, operation.checkpoint)
        for part in operation.logged.parts:
            key = OrphanKey(operation.writer, header.spec_id, part.values)
            old = OrphanPart(
                operation.seq, part.batch, header.origin, header.origin_sequence, part.row_counts
            )
            self._pending.setdefault(key, []).append(old)
        return sum(part.nbytes for part in operation.logged.parts)

    def flush(self) -> None:
        """Commit the kept operations, except for those in files.

        Raises:
            StoreUnavailable, CommitUnclear: the store is unreachable; adopt again.
        """
        pending, self._pending = self._pending, {}
        for share in self._shares(pending):
            try:
                self._adopt(share)
            except OrderUnknown as exc:
                rows = self.report.refused_rows + rows_of(left_of(self._state, share).values())
                self._note(refused=str(exc), refused_rows=rows)

    def commit_checkpoints(self, *, whole: bool) -> None:
        """Commit the newest states of sources, once all rows are in files.

        Args:
            whole: whether the rest of the log is in files, too. Otherwise states with a sequence
                are left out: their origin may have refused rows.

        Raises:
            StoreUnavailable, CommitUnclear: the store is unreachable; adopt again.
        """
        every = chain.from_iterable(self._checkpoints.values())
        found = [each for each in every if whole or each.origin_sequence is None]
        if self.report.refused is not None or not found:
            return
        newest = max((each.writer for each in found), key=lambda writer: writer.epoch)
        for _ in range(PLANS):
            actions, seen = checkpoints_of(self._state, found)
            if not actions:
                return
            self._replace(newest)
            proposal = Proposal(actions)
            call = partial(
                commit,
                self._manifest,
                self._state,
                proposal,
                newest,
                unmoved(seen),
                fence=check_replaced,
            )
            try:
                self._state = patiently(call)
            except OriginMoved:
                self._state = patiently(partial(self._manifest.refresh, self._state))
                continue
            self._note(checkpoints=sum(isinstance(each, CheckpointAction) for each in actions))
            return
        raise CommitUnclear(self._state.version + 1, "none", f"{PLANS} plans in a row were void")

    def _is_whole(self, operation: OrphanOperation) -> bool:
        """Note an operation; return whether its origin's part of the log is complete up to it."""
        header = operation.logged.header
        name, sequence = header.origin, header.origin_sequence
        if name is None or sequence is None:
            return True
        found = OrphanSequence(operation.writer, operation.seq, name, sequence)
        partitions = [(header.spec_id, part.values) for part in header.parts]
        there = is_brought(self._state, found, partitions)
        if not there:
            for partition, kept in self._checkpoints.items():
                self._checkpoints[partition] = [
                    each
                    for each in kept
                    if each.origin != name or (each.origin_sequence or -1) < sequence
                ]
        key = (header.namespace, header.table)
        return self._missing.note(key, name, sequence, there=there)

    def _keep_checkpoint(self, operation: OrphanOperation, checkpoint: SourceCheckpoint) -> None:
        """Keep a state and the few before it: the newest may depend on rows of another process."""
        header = operation.logged.header
        found = OrphanCheckpoint(
            operation.writer, operation.seq, header.origin, header.origin_sequence, checkpoint
        )
        kept = self._checkpoints.setdefault(checkpoint.partition, [])
        kept.append(found)
        if len(kept) > MOST_PENDING:
            del kept[0]

    def _shares(self, pending: Pending) -> list[Pending]:
        """Split into shares of one version: an ingester's; in a keyed table a partition's epoch.

        In a keyed table a file replaces others, so the next one depends on its commit.
        """
        if self._keyed:
            return [{key: parts} for key, parts in pending.items()]
        by_ingester: dict[str, dict[OrphanKey, list[OrphanPart]]] = {}
        for key, parts in pending.items():
            by_ingester.setdefault(key.writer.ingester_id, {})[key] = parts
        return list(by_ingester.values())

    def _adopt(self, share: Pending) -> None:
        newest = max((key.writer for key in share), key=lambda writer: writer.epoch)
        for _ in range(PLANS):
            left = left_of(self._state, share)
            if not left:
                self._count({}, share, 0)
                return
            check_made(self._state, left)
            self._replace(newest)
            files, actions = self._upload(left)
            origins, seen = origins_of(self._state, left)
            actions += origins
            rebase_on = unmoved(seen, self._rebase_on(self._state, left))
            call = partial(
                commit,
                self._manifest,
                self._state,
                Proposal(actions),
                newest,
                rebase_on,
                fence=check_replaced,
            )
            try:
                self._state = patiently(call)
            except (OriginMoved, PartitionsChanged, PartlyCovered, UploadExpired):
                self._state = patiently(partial(self._manifest.refresh, self._state))
                continue
            # Missing ones were dropped: a concurrent commit was faster.
            made = {
                key: left[key]
                for key, adds in files.items()
                if all(add.path in self._state.files for add in adds)
                and not left_of(self._state, {key: left[key]})
            }
            self._count(made, share, sum(len(files[key]) for key in made))
            return
        raise CommitUnclear(self._state.version + 1, "none", f"{PLANS} plans in a row were void")

    def _replace(self, old: WriterIdentity) -> None:
        """Put a newer epoch than the log's into the table's manifest.

        Its later epochs, too, may have the table open and are over: their rows are adopted after
        the old one's.
        """
        last = self._successors.last_ended(old.ingester_id)
        known = self._state.writers.get(old.ingester_id)
        if known is not None and known.epoch > last:
            return
        successor = self._successors.successor(old.ingester_id)
        # As closed: the daemon with this epoch says ``open`` before its first write. Nobody else
        # may own a keyed table before the end: the newer row of a key must win.
        holds = self._keyed and successor.incarnation.startswith(ADOPTION)
        state: Literal["open", "closed"] = "open" if holds else "closed"
        fence = WriterAction(old.ingester_id, successor.incarnation, successor.epoch, state)
        proposal = Proposal([fence])
        try:
            older = if_older(old.ingester_id, last)
            call = partial(commit, self._manifest, self._state, proposal, successor, older)
            self._state = patiently(call)
        except Fenced:  # by a still newer one, which suffices
            self._state = patiently(partial(self._manifest.refresh, self._state))

    def close(self) -> None:
        """Release a keyed table, which the adoption has held until the end.

        Raises:
            StoreUnavailable, CommitUnclear: the store is unreachable; adopt again.
        """
        for old in self._writers.values() if self._keyed else ():
            self._replace(old)  # it owns the table even if all rows were in files
            held = self._state.writers[old.ingester_id]
            if held.state == "open" and held.incarnation.startswith(ADOPTION):
                identity = WriterIdentity(held.ingester_id, held.incarnation, held.epoch)
                proposal = Proposal([msgspec.structs.replace(held, state="closed")])
                still = if_still(held)
                call = partial(commit, self._manifest, self._state, proposal, identity, still)
                with suppress(Fenced):  # by a daemon of this id, which releases it itself
                    self._state = patiently(call)

    def _upload(self, left: Pending) -> tuple[dict[OrphanKey, tuple[Add, ...]], list[Action]]:
        """Put the rows of each key into files; return these and the actions that commit them."""
        files: dict[OrphanKey, tuple[Add, ...]] = {}
        actions: list[Action] = []
        for key, parts in left.items():
            flushed = self._rows_to_flush(key, parts)
            call = partial(self._file_writer(key.writer).upload, flushed, self._state)
            upload = patiently(call)
            files[key] = upload.files.adds
            actions += upload.actions("replaced by adopted rows")
        return files, actions

    def _rows_to_flush(self, key: OrphanKey, parts: list[OrphanPart]) -> RowsToFlush:
        rows = BufferedRows()
        for part in parts:
            nbytes = int(part.batch.nbytes)
            rows.append(
                part.batch,
                seq=part.seq,
                nbytes=nbytes,
                schema_number=MIXED,
                row_counts=part.row_counts,
            )
        table = (self._manifest.namespace, self._manifest.table)
        partition = (key.spec_id, key.values)
        first_seq, last_seq = parts[0].seq, parts[-1].last_seq
        return RowsToFlush(table, partition, key.writer.epoch, first_seq, last_seq, rows)

    def _rebase_on(self, base: TableState, left: Pending) -> Rebase:
        """The usual rule. In a keyed table also: no change of the partitions, and no newer epoch.

        Raises:
            OrderUnknown: now, or when the returned rule is applied to a later state.
        """
        if not self._keyed:
            return rebase
        check_order(base, left)

        partitions = {(key.spec_id, key.values) for key in left}
        undisturbed_rebase = undisturbed({each: base.partitions.get(each) for each in partitions})

        def keyed(state: TableState, actions: tuple[Action, ...]) -> tuple[Action, ...]:
            check_order(state, left)
            return undisturbed_rebase(state, actions)

        return keyed

    def _count(self, made: Pending, share: Pending, files: int) -> None:
        rows, taken = rows_of(made.values()), rows_of(taken_over(self._state, share))
        self._note(
            rows=self.report.rows + rows,
            files=self.report.files + files,
            skipped_rows=self.report.skipped_rows + rows_of(share.values()) - rows,
            taken_over_rows=self.report.taken_over_rows + taken,
        )

    def _note(self, **changed: Any) -> None:
        self.report = msgspec.structs.replace(self.report, **changed)


def patiently(call: Callable[[], T]) -> T:
    """Call, and retry for some seconds while the store is unreachable.

    Raises:
        StoreUnavailable, CommitUnclear: it stayed unreachable.
    """
    return retry(call, ADOPTION_RETRY)


def if_still(held: WriterAction) -> Rebase:
    """The usual rule, or no actions if the manifest's entry of the writer has changed."""

    def guarded(state: TableState, actions: Sequence[Action]) -> tuple[Action, ...]:
        there = state.writers.get(held.ingester_id) == held
        return rebase(state, actions) if there else ()

    return guarded


def if_older(ingester_id: str, epoch: int) -> Rebase:
    """The usual rule, or no actions if the manifest has a newer epoch than this one.

    That may be the successor itself with the table open, whose entry must stay.
    """

    def guarded(state: TableState, actions: Sequence[Action]) -> tuple[Action, ...]:
        known = state.writers.get(ingester_id)
        return () if known is not None and known.epoch > epoch else rebase(state, actions)

    return guarded
