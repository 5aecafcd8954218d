"""The version of a table that a push makes in one store: what its manifest says of the push.

    claimed ─▶ first commit    definition, whose it is, and    _push/<push id>/began
                               from when on rows are replayed  _push/<push id>/base, …/base_of
            ─▶ data commit     all files at once, and how      _push/<push id>/data
                               many rows they have

Law of this file: whether the data is there is told by the manifest alone, and each commit is made
once, whoever makes it and however often. The marks are ``Txn`` actions. What they have for a
version is, in this order, the time at which the push began in microseconds, a version of a
manifest, the table version whose manifest that is, and a number of rows. A push that has the id of
one that is forgotten by now is told by its time: nothing of the other one is taken for its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ingester.pushes.record import PushRecord
from ingester.pushes.regions import AnotherStore, RegionFailed
from ingester.pushes.store_region.pushed_files import PushedFile
from ingester.pushes.store_region.store import PATIENCE
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


class Replay(NamedTuple):
    """The rows of a table version that came after this version of its manifest; None: none."""

    table_version: int | None
    since: int | None


def pusher() -> WriterIdentity:
    """Return an identity to commit under that no daemon can have, and that fences nobody."""
    return WriterIdentity(ingester_id="_push", incarnation=uuid.uuid4().hex, epoch=0)


@dataclass(frozen=True, slots=True)
class PushedVersion:
    """The table version of a push in one store."""

    store: ObjectStore
    namespace: str
    table: str
    push_id: str
    number: int
    began: int
    """When the push began, in microseconds."""

    @classmethod
    def claimed(cls, store: ObjectStore, push: PushRecord, region: str) -> PushedVersion:
        """Return the push's version in a region; its number is the push's for ever.

        Raises:
            AnotherStore: the number was claimed in another one, which a configuration had under
                the region's name.
        """
        of = store, push.namespace, push.table
        known = next((each.table_version for each in push.regions if each.name == region), None)
        number = known or claim_version(*of, push.push_id)
        if known:
            claim = claim_of(*of, known)
            if claim is None or claim.push_id != push.push_id:
                raise AnotherStore(
                    f"{store.url} has no version {known} of push {push.push_id}: it is not the"
                    f" store that was region {region} when the push began"
                )
        began = (push.began_at - _EPOCH) // timedelta(microseconds=1)
        return cls(store, push.namespace, push.table, push.push_id, number, began)

    @property
    def manifest(self) -> Manifest:
        """The version's manifest, which may have no commit yet."""
        return Manifest(self.store, self.namespace, self.table, self.number)

    @property
    def root(self) -> str:
        """The folder of the version in the store, below which the paths of its files begin."""
        return version_folder(self.namespace, self.table, self.number)

    def check_not_given_up(self) -> None:
        """Raise :class:`RegionFailed` where the version was given up."""
        gone = read_gone(self.store, self.namespace, self.table, self.number)
        if gone is not None:
            raise RegionFailed(f"version {self.number} was given up: {gone.why}")

    def state(self) -> TableState | None:
        """Return the version's newest state, None before its first commit."""
        try:
            return self.manifest.load()
        except TableNotFound:
            return None

    def made(self) -> TableState:
        """Return the version's newest state.

        Raises:
            RegionFailed: it was not made, or by another push of the same id.
        """
        state = self.state()
        if state is None:
            raise RegionFailed(f"version {self.number} of the push was not made")
        if not self._is_own(state):
            raise RegionFailed(
                f"version {self.number} was made by an earlier push {self.push_id}: take another id"
            )
        return state

    def is_anothers(self) -> bool:
        """Return whether an earlier push of the same id has made it: then it is left alone."""
        state = self.state()
        return state is not None and not self._is_own(state)

    def _is_own(self, state: TableState) -> bool:
        return state.txns.get(self._mark("began")) == self.began

    def create(self, current: TableState, since: int | None) -> None:
        """Make the version, empty, with the definition of the one that counts.

        Args:
            since: The version of that one's manifest after which its rows go along with a swap.
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

    def replay(self, state: TableState) -> Replay:
        """Return which rows of the version before go along with a swap."""
        return Replay(state.txns.get(self._mark("base_of")), state.txns.get(self._mark("base")))

    def rows(self, state: TableState) -> int | None:
        """Return how many rows the push has brought; None while its data is not there."""
        return state.txns.get(self._mark("data"))

    def files(self, state: TableState) -> list[Add]:
        """Return the push's files in a state of the version."""
        return [add for add in state.files.values() if add.kind == "push"]

    def commit_data(self, state: TableState, files: Iterable[tuple[PushedFile, str]]) -> None:
        """List all files of the push at once, unless they are listed.

        Args:
            files: Each with its time by this store's clock.

        Raises:
            ShapeClash: a file was written for a table of another shape.
        """
        definition = TableDefinition.of_state(state)
        adds = [file.listed(definition, at) for file, at in files]
        mark = Txn(app_id=self._mark("data"), version=sum(add.rows for add in adds))

        def rule(state: TableState, proposed: Sequence[Action]) -> tuple[Action, ...]:
            return () if self.rows(state) is not None else rebase(state, proposed)

        commit(self.manifest, state, Proposal([*adds, mark]), pusher(), rule, patience=PATIENCE)

    def _mark(self, name: str) -> str:
        return push_mark(self.push_id, name)
