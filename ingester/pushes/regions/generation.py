"""The generation of a table that a push creates in one store: created, filled, live, and back.

    claimed ─▶ first commit    definition, owner, and since     _push/<push id>/began
                               when rows are replayed           _push/<push id>/base, …/base_of
            ─▶ data commit     all files at once, and           _push/<push id>/data
                               their number of rows

The manifest alone tells whether the data is complete. Each commit is made once, however often it is
attempted (tests/pushes/test_killed_regions). The marks are ``Txn`` actions; their versions are, in
this order, the start of the push in microseconds, a manifest version, the generation of that
manifest, and a number of rows. A push that reuses the id of a deleted one is told apart by its
start.

    swap      make the push's generation current, by one switch that carries the push's id
    go_back   make the previous generation current again
    forbid    no later switch to the push's generation takes effect

Each happens once, however often it is asked for, and despite concurrent switches by others. A
generation that was rolled back never becomes current again (tests/pushes/test_region_faults).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeVar

from ingester.pushes.record import PushRecord
from ingester.pushes.regions.shapes import PushedFile
from ingester.pushes.regions.store import PATIENCE
from ingester.pushes.tasks import AnotherStore, RegionFailed, RegionUnreachable
from persist.manifest import (
    Action,
    Add,
    Manifest,
    Properties,
    Proposal,
    Schema,
    Spec,
    Switch,
    SwitchedMeanwhile,
    SwitchRefused,
    TableNotFound,
    TableState,
    TableVersionNotKept,
    Txn,
    VersionSealed,
    WriterIdentity,
    claim_of,
    claim_version,
    commit,
    current_version,
    last_switch,
    push_mark,
    rebase,
    switches,
    version_folder,
)
from persist.manifest.table_versions import read_gone
from persist.store import ObjectStore
from persist.switching import finish_switch, forbid_switch, load_current, roll_back, switch_version
from persist.table import TableDefinition

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRIES = 20
T = TypeVar("T")


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
    def of(self) -> tuple[ObjectStore, str, str]:
        """The store, the namespace and the table."""
        return self.store, self.namespace, self.table

    @property
    def manifest(self) -> Manifest:
        """The generation's manifest, which may have no commit yet."""
        return Manifest(*self.of, self.number)

    @property
    def root(self) -> str:
        """The folder of the generation in the store."""
        return version_folder(self.namespace, self.table, self.number)

    def check_not_given_up(self) -> None:
        """Raise :class:`RegionFailed` if the generation was given up."""
        gone = read_gone(*self.of, self.number)
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


# ------------------------------------------------------------------------------ switch and rollback


def generation_before(version: PushedGeneration) -> int:
    """Return the current generation, or the one before if the push's is current."""
    current = current_version(*version.of)
    if current != version.number:
        return current
    done = _switches(version)
    return next(each.previous for each in reversed(done) if each.table_version == current)


def swap(version: PushedGeneration) -> int:
    """Make the push's generation current; return the previous one.

    Raises:
        RegionFailed: it was given up or rolled back, its data is missing, it does not follow the
            current generation, or a push that began later is live.
    """
    if _was_rolled_back(version):
        raise RegionFailed(f"generation {version.number} was current, and rolled back")
    for each in _switches(version):
        if each.push_id == version.push_id and each.why == "swap":
            return each.previous
    version.check_not_given_up()
    state = version.made()
    if version.rows(state) is None:
        raise RegionFailed(f"the data of generation {version.number} is missing")
    # Rows are replayed by their position in the manifest of one particular generation.
    replay = version.replay(state)

    def switch() -> Switch:
        current = check_latest(version)
        try:
            return switch_version(
                *version.of,
                version.number,
                push_id=version.push_id,
                since=replay.since,
                previous=replay.table_version or current,
            )
        except SwitchRefused:
            number, last = last_switch(*version.of)
            if last.table_version == current:
                raise
            # Another push was faster; it may have begun later, so look again.
            raise SwitchedMeanwhile(version.namespace, version.table, number) from None

    try:
        return _settled(version, switch).previous
    except (SwitchRefused, TableVersionNotKept) as exc:
        raise RegionFailed(str(exc)) from exc


def check_latest(version: PushedGeneration) -> int:
    """Return the current generation, unless it belongs to a push that began later.

    The start of a push is the same in all regions, so that in each the later of two pushes wins,
    whichever was faster. Ids decide between equal times.

    Raises:
        RegionFailed: a push that began later is live.
    """
    current = current_version(*version.of)
    claim = claim_of(*version.of, current)
    if current == version.number or claim is None or claim.push_id == version.push_id:
        return current
    with suppress(TableNotFound):
        state = Manifest(*version.of, current).load()
        began = state.txns.get(push_mark(claim.push_id, "began"))
        if began is not None and (began, claim.push_id) > (version.began, version.push_id):
            raise RegionFailed(
                f"generation {current} of push {claim.push_id} is live, which began later:"
                f" push {version.push_id} is outdated and does not replace it"
            )
    return current


def replaced(version: PushedGeneration) -> str:
    """Return why the generation cannot be rolled back, if another one has replaced it; or ""."""
    current = current_version(*version.of)
    if current == version.number or _was_rolled_back(version) or not was_current(version):
        return ""
    return f"generation {version.number} {_replaced(version)}"


def go_back(version: PushedGeneration) -> bool:
    """Make the previous generation current again; return whether that is done.

    Raises:
        RegionFailed: the rollback is impossible, as the message says, or a later generation is
            current and has to be rolled back first.
    """
    with suppress(TableNotFound):
        load_current(*version.of)  # completes a rollback that was started
    if current_version(*version.of) != version.number and _was_rolled_back(version):
        return True
    if forbid(version):
        try:
            _settled(
                version, lambda: roll_back(*version.of, version.number, push_id=version.push_id)
            )
        except (SwitchRefused, TableVersionNotKept) as exc:
            raise RegionFailed(str(exc)) from exc
    back = _was_rolled_back(version)
    if not back and was_current(version):
        raise RegionFailed(f"generation {version.number} {_replaced(version)}")
    return back


def forbid(version: PushedGeneration) -> bool:
    """Return whether the generation is current; if not, it can no longer become so.

    One that was current is kept: a later push may have to return to it.
    """
    if current_version(*version.of) != version.number and was_current(version):
        return False
    return forbid_switch(*version.of, version.number, f"push {version.push_id} was given up")


def _switches(version: PushedGeneration) -> list[Switch]:
    return [each.switch for each in switches(*version.of)]


def _replaced(version: PushedGeneration) -> str:
    """The reason why a generation is no longer current."""
    after = [each for each in _switches(version) if each.previous == version.number]
    if not after:
        return "is no longer current"
    by = f" of push {after[-1].push_id}" if after[-1].push_id else ""
    return f"was replaced by generation {after[-1].table_version}{by}: roll that one back first"


def was_current(version: PushedGeneration) -> bool:
    """Return whether the generation became current by its push's own swap."""
    done = _switches(version)
    return any((each.push_id, each.why) == (version.push_id, "swap") for each in done)


def _was_rolled_back(version: PushedGeneration) -> bool:
    """Whether the generation was current, and rolled back."""
    done = _switches(version)
    return any((each.previous, each.why) == (version.number, "rollback") for each in done)


def _settled(version: PushedGeneration, call: Callable[[], T]) -> T:
    """Retry while other switches are active, completing them first."""
    for _ in range(_TRIES):
        try:
            return call()
        except VersionSealed:
            finish_switch(*version.of)
        except SwitchedMeanwhile:
            continue
    raise RegionUnreachable("too many concurrent switches of the table")
