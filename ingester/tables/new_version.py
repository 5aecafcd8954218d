"""Committing a whole table in files: as a new table, or replacing an existing one.

    no table yet      columns, key, files, checkpoint, owner ─▶ the first commit of table version 1
    a table           columns, key, files, checkpoint ─▶ first commit of the claimed version ─▶
    switch

One commit contains everything and is made once, however often it is tried (tests/copies). For an
existing table the caller holds its write latch and nothing of the table is buffered. Event loop
only; store calls run in threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from ingester.buffer import TableBuffer
from ingester.errors import BadRequest, StoreUnreachable
from ingester.tables.commits import STORE_RETRY_S, Commits
from ingester.tables.ddl import TableSteps
from persist.manifest import (
    Action,
    Add,
    CheckpointAction,
    CommitUnclear,
    Fenced,
    Manifest,
    Proposal,
    ProposalConflict,
    SwitchedMeanwhile,
    SwitchRefused,
    TableState,
    TableVersionNotKept,
    UploadExpired,
    VersionSealed,
    WriterIdentity,
    check_uploads,
    commit,
)
from persist.store import StoreError, StoreUnavailable
from persist.switching import load_current, switch_version
from persist.table import TableDefinition, TableKey

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class WholeTable:
    """A table's rows, in files of a version that is not visible yet.

    Attributes:
        number: The table version that the files are in.
        claim: The name under which the number was claimed.
        adds: The files.
        checkpoint: The source's state that belongs to the rows.
    """

    key: TableKey
    number: int
    claim: str
    definition: TableDefinition
    adds: Sequence[Add]
    checkpoint: CheckpointAction
    proposal: Proposal | None = None
    """The same object for every attempt: a second one would be another commit."""

    def proposed(self, *more: Action) -> Proposal:
        """Return the version's first commit; ``more`` are actions for a table that is created by
        it.
        """
        if self.proposal is None:
            adds = [
                msgspec.structs.replace(
                    add, schema_id=self.definition.schema_id, spec_id=self.definition.spec_id
                )
                for add in self.adds
            ]
            actions = (*self.definition.actions(), *more, *adds, self.checkpoint)
            self.proposal = Proposal(actions)
        return self.proposal


class NewVersions:
    """Commits whole tables. Event loop only."""

    def __init__(self, commits: Commits, steps: TableSteps, writer: WriterIdentity) -> None:
        self._commits = commits
        self._steps = steps
        self._writer = writer

    async def create(self, whole: WholeTable) -> TableBuffer:
        """Create the table with all of its rows.

        Raises:
            BadRequest: another writer created it meanwhile.
            OverQuota: the namespace has reached its quota of tables.
            StoreUnreachable: call again; it may have been created.
            Stopping, Fenced
        """
        commits, key = self._commits, whole.key
        async with commits.held(key):
            proposal = whole.proposed(*self._steps.first_actions(key, len(whole.definition.schema)))
            manifest = Manifest(commits.store, *key, whole.number)
            async with self._steps.quota.making(key):
                state = await self._in_thread(partial(self._committed, manifest, proposal))
            return self._steps.keep_new(key, state)

    async def prepare(self, table: TableBuffer, whole: WholeTable) -> None:
        """Commit the version that will replace the table; it is not visible yet.

        Raises:
            BadRequest: garbage collection took its files after days, or it was abandoned.
            StoreUnreachable: call again.
        """
        manifest = Manifest(self._commits.store, *whole.key, whole.number)
        if whole.proposal is None:
            # Another copy may have replaced the table since this one began.
            whole.definition = whole.definition.redefined(table.definition)
        async with self._commits.held(whole.key):
            await self._in_thread(partial(self._committed, manifest, whole.proposed()))

    async def take_over(self, table: TableBuffer, whole: WholeTable) -> TableState:
        """Switch the table to a prepared version and install it.

        Raises:
            BadRequest: no longer possible; the table is unchanged, or as another writer left
                it.
            StoreUnreachable: call again until it returns or raises another error: it may be done.
            Fenced
        """
        previous = table.state.table_version
        async with self._commits.held(table.key):
            try:
                state = await self._in_thread(partial(self._switched, whole, previous))
            except BadRequest:
                await self._commits.follow_switch(table)
                raise
            self._commits.show(table, state)
        log.info(
            "table replaced",
            table=table.key,
            table_version=state.table_version,
            rows=state.rows,
        )
        return state

    def _committed(self, manifest: Manifest, proposal: Proposal) -> TableState:
        def rule(state: TableState, actions: tuple[Action, ...]) -> tuple[Action, ...]:
            if state.version:
                raise ProposalConflict("it exists already", state)
            check_uploads(state, actions)
            return actions

        try:
            return commit(manifest, None, proposal, self._writer, rule)
        except (ProposalConflict, UploadExpired, VersionSealed) as exc:
            raise BadRequest(
                f"table {manifest.namespace}/{manifest.table} was created by another writer"
                " meanwhile: start the copy again"
            ) from exc

    def _switched(self, whole: WholeTable, previous: int) -> TableState:
        store = self._commits.store
        switch = partial(switch_version, store, *whole.key, whole.number, reshape=self._writer)
        try:
            switch(push_id=whole.claim, previous=previous)
        except (SwitchRefused, TableVersionNotKept, SwitchedMeanwhile, VersionSealed) as exc:
            current = load_current(store, *whole.key)  # completes a switch under way
            if current.table_version != whole.number:
                raise BadRequest(f"copy: {exc}; start the copy again") from exc
            return current
        return load_current(store, *whole.key)

    async def _in_thread(self, call: partial[TableState]) -> TableState:
        try:
            return await self._commits.read(call)
        except Fenced as exc:
            self._commits.fenced(exc)
            raise
        except (StoreError, StoreUnavailable, CommitUnclear) as exc:
            raise StoreUnreachable(
                f"the object store cannot be reached: {exc}", retry_after_s=STORE_RETRY_S
            ) from exc
