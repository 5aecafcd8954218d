"""The generation of a table that a push creates in one store, by its manifest.

    claimed ─▶ first commit    definition, owner, and since     _push/<push id>/began
                               when rows are replayed           _push/<push id>/base, …/base_of
            ─▶ data commit     all files at once, and           _push/<push id>/data
                               their number of rows

The manifest alone tells whether the data is complete. Each commit is made once, however often it is
attempted (tests/pushes/test_killed_regions). The marks are ``Txn`` actions; their versions are, in
this order, the start of the push in microseconds, a manifest version, the generation of that
manifest, and a number of rows. A push that reuses the id of a deleted one is told apart by its
start.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ingester.pushes.record import PushRecord
from ingester.pushes.regions.shapes import PushedFile
from ingester.pushes.regions.store import PATIENCE
from ingester.pushes.tasks import AnotherStore, RegionFailed
from persist.manifest import (
    Action,
    Add,
    Manifest,
    Properties,
    Proposal,
    Schema,
    Spec,
    TableNotFound,
    TableState,
    Txn,
    WriterIdentity,
    claim_of,
    claim_version,
    commit,
    push_mark,
    rebase,
    version_folder,
)
from persist.manifest.table_versions import read_gone
from persist.store import ObjectStore
from persist.table import TableDefinition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ReplayedRows(NamedTuple):
    """The rows of a generation after this version of its manifest; None: no rows."""

    table_version: int | None
    since: int | None


def pusher() -> WriterIdentity:
    """Return a writer identity that no daemon has and that fences none."""
    return WriterIdentity(ingester_id="_push", incarnation=uuid.uuid4().hex, epoch=0)


@dataclass(frozen=True, slots=True)
class PushedGeneration:
    """The generation of a push in one store."""

    store: ObjectStore
    namespace: str
    table: str
    push_id: str
    number: int
    began: int
    """The start of the push, in microseconds."""

    @classmethod
    def claimed(cls, store: ObjectStore, push: PushRecord, region: str) -> PushedGeneration:
        """Return the push's generation in a region, claiming a number at the first call.

        Raises:
            AnotherStore: the number was claimed in another store, which was configured under the
                region's name before.
        """
        of = store, push.namespace, push.table
        known = next((each.table_version for each in push.regions if each.name == region), None)
        number = known or claim_version(*of, push.push_id)
        if known:
            claim = claim_of(*of, known)
            if claim is None or claim.push_id != push.push_id:
                raise AnotherStore(
                    f"{store.url} has no generation {known} of push {push.push_id}: it is not"
                    f" the store that region {region} had when the push began"
                )
        began = (push.began_at - _EPOCH) // timedelta(microseconds=1)
        return cls(store, push.namespace, push.table, push.push_id, number, began)

    @property
    def manifest(self) -> Manifest:
        """The generation's manifest, which may have no commit yet."""
        return Manifest(self.store, self.namespace, self.table, self.number)

    @property
    def root(self) -> str:
        """The folder of the generation in the store."""
        return version_folder(self.namespace, self.table, self.number)

    def check_not_given_up(self) -> None:
        """Raise :class:`RegionFailed` if the generation was given up."""
        gone = read_gone(self.store, self.namespace, self.table, self.number)
        if gone is not None:
            raise RegionFailed(f"generation {self.number} was given up: {gone.why}")

    def state(self) -> TableState | None:
        """Return the generation's newest state; None before its first commit."""
        try:
            return self.manifest.load()
        except TableNotFound:
            return None

    def made(self) -> TableState:
        """Return the generation's newest state.

        Raises:
            RegionFailed: it was not created, or by an earlier push with the same id.
        """
        state = self.state()
        if state is None:
            raise RegionFailed(f"generation {self.number} of the push was not created")
        if not self._is_own(state):
            raise RegionFailed(
                f"generation {self.number} belongs to an earlier push {self.push_id}:"
                " use another id"
            )
        return state

    def is_anothers(self) -> bool:
        """Return whether the generation belongs to an earlier push with the same id."""
        state = self.state()
        return state is not None and not self._is_own(state)

    def _is_own(self, state: TableState) -> bool:
        return state.txns.get(self._mark("began")) == self.began

    def create(self, current: TableState, since: int | None) -> None:
        """Create the generation, empty, with the definition of the current one.

        Args:
            since: the current generation's manifest version after which rows are replayed.
        """
        actions: list[Action] = [
            one for one in current.actions() if isinstance(one, Schema | Spec | Properties)
        ]
        actions.append(Txn(app_id=self._mark("began"), version=self.began))
        if since is not None:
            actions.append(Txn(app_id=self._mark("base"), version=since))
            actions.append(Txn(app_id=self._mark("base_of"), version=current.table_version))

        def rule(state: TableState, proposed: Sequence[Action]) -> tuple[Action, ...]:
            return () if state.version else tuple(proposed)

        commit(self.manifest, None, Proposal(actions), pusher(), rule, patience=PATIENCE)

    def replay(self, state: TableState) -> ReplayedRows:
        """Return which rows of the previous generation a swap replays."""
        return ReplayedRows(
            state.txns.get(self._mark("base_of")), state.txns.get(self._mark("base"))
        )

    def rows(self, state: TableState) -> int | None:
        """Return the number of rows of the push; None before its data is committed."""
        return state.txns.get(self._mark("data"))

    def files(self, state: TableState) -> list[Add]:
        """Return the push's files in a state of the generation."""
        return [add for add in state.files.values() if add.kind == "push"]

    def commit_data(self, state: TableState, files: Iterable[tuple[PushedFile, str]]) -> None:
        """Commit all files of the push at once, unless they are committed.

        Args:
            files: each with its time by this store.

        Raises:
            ShapeClash: a file was written for another shape.
        """
        definition = TableDefinition.of_state(state)
        adds = [file.listed(definition, at) for file, at in files]
        mark = Txn(app_id=self._mark("data"), version=sum(add.rows for add in adds))

        def rule(state: TableState, proposed: Sequence[Action]) -> tuple[Action, ...]:
            return () if self.rows(state) is not None else rebase(state, proposed)

        commit(self.manifest, state, Proposal([*adds, mark]), pusher(), rule, patience=PATIENCE)

    def _mark(self, name: str) -> str:
        return push_mark(self.push_id, name)
