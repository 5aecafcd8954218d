"""Rebasing: a proposal on a state that it was not made for. Pure.

A proposal is committed as a whole or not at all, except for parts that the table already has
(tests/persist/manifest/test_writing_cases.py):

    a rewrite or push that is committed (an add of the same file, the same or a later txn)   empty
    a txn with a content that is not the committed one, or not known below the newest   TxnDiffers
    add of a flush, wholly in ``applied``                                             dropped
    add of a flush, partly in ``applied``                                             PartlyCovered
    any other add of a file uploaded before the state's ``horizon``                   UploadExpired
    its removes, if all adds of a flush are dropped                                   dropped
    applied up to what is applied                                                     dropped
    remove of a file that is gone                                                     RewriteVoid
    a keyed partition with other files than the flush was made for              PartitionsChanged
    schema, spec, properties, owner, writer, origin equal to the current ones         dropped
    a horizon that is not later than the state's                                      dropped
    the expiry of an origin that was written since                                    dropped
    a shared state that exists; a checkpoint that is not newer than the state's       dropped
    other schema, spec or properties, made for an outdated definition            ProposalConflict
    properties that differ only in those that can change                              kept
    anything but a horizon if the table version is sealed                           VersionSealed

A proposal holds flushes, or a rewrite, or a push, never a mixture. After a horizon is committed,
garbage collection deletes unlisted files from before it. A later add could list a deleted file, so
it is refused here and repeated with a new file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from persist.manifest.actions import (
    CHANGEABLE,
    Action,
    Add,
    Applied,
    AppliedKey,
    CheckpointAction,
    EpochComplete,
    Horizon,
    OriginAction,
    OriginExpired,
    Owner,
    PartitionKey,
    Properties,
    Remove,
    Schema,
    SharedState,
    Spec,
    Txn,
    Unsealed,
    WriterAction,
    WriterIdentity,
    is_before,
)
from persist.manifest.errors import (
    Fenced,
    NotReplaced,
    OriginMoved,
    PartitionsChanged,
    PartlyCovered,
    ProposalConflict,
    RewriteVoid,
    TxnDiffers,
    UploadExpired,
    VersionSealed,
)
from persist.manifest.state import TableState

Rebase = Callable[[TableState, tuple[Action, ...]], tuple[Action, ...]]


def check_fence(state: TableState, writer: WriterIdentity) -> None:
    """Raise :class:`Fenced` if another process holds the writer's identity."""
    known = state.writers.get(writer.ingester_id)
    if known is None or known.epoch < writer.epoch:
        return
    if known.epoch > writer.epoch or known.incarnation != writer.incarnation:
        raise Fenced(writer.ingester_id, writer.epoch, known.epoch, known.incarnation)


def check_replaced(state: TableState, writer: WriterIdentity) -> None:
    """Raise :class:`NotReplaced` unless a later process holds the writer's identity.

    The counterpart of :func:`check_fence`, for a process that commits what a fenced one left in its
    log. This is safe only under a newer epoch: the owner of the log can no longer commit, so only
    adoptions and replays move ``applied`` of the old epoch.
    """
    known = state.writers.get(writer.ingester_id)
    if known is None or known.epoch <= writer.epoch:
        raise NotReplaced(writer.ingester_id, writer.epoch)


def check_sealed(state: TableState, actions: Sequence[Action]) -> None:
    """Raise :class:`VersionSealed` if another table version takes the table's commits.

    Knowledge of writers was carried over as of the seal, so anything later would be lost. Only
    garbage collection, which changes none of it, may commit.
    """
    if state.sealed is None or any(isinstance(action, Unsealed) for action in actions):
        return
    if not all(isinstance(action, Horizon) for action in actions):
        raise VersionSealed(state.sealed)


def rebase(state: TableState, actions: Sequence[Action]) -> tuple[Action, ...]:
    """The ``actions`` still to be committed on top of ``state``; empty if all are committed.

    Raises:
        RewriteVoid, PartlyCovered, UploadExpired, ProposalConflict: See the module. The caller
            plans again.
    """
    if _committed_before(state, actions):
        return ()
    _check_removes(state, actions)
    _check_definition(state, actions)
    check_owner(state, actions)
    _check_partly_covered(state, actions)
    covered = _covered_persists(state, actions)
    left = tuple(
        action
        for action in actions
        if not (_is_in(state, action) or _is_remove_of(state, action, covered))
    )
    check_uploads(state, left)
    return left


def unmoved(seen: Mapping[str, OriginAction | None], then: Rebase = rebase) -> Rebase:
    """A rule that continues with ``then`` if the origins are as they were ``seen``.

    A proposal replaces the whole of an origin's entry: made from an older version, it would undo
    later changes. The returned rule raises :class:`OriginMoved` if an origin has changed.
    """

    def guarded(state: TableState, actions: Sequence[Action]) -> tuple[Action, ...]:
        for name, origin in seen.items():
            if state.origins.get(name) != origin:
                raise OriginMoved(name, state)
        return then(state, tuple(actions))

    return guarded


def undisturbed(files: Mapping[PartitionKey, Sequence[Add] | None]) -> Rebase:
    """The usual rule, if these partitions still have the given files.

    A keyed flush contains the rows of files that it replaces, and its keys are in no other file; a
    file added meanwhile may have them too. The returned rule raises :class:`PartitionsChanged` if a
    partition has other files.
    """

    def guarded(state: TableState, actions: Sequence[Action]) -> tuple[Action, ...]:
        changed = [key for key, had in files.items() if state.partitions.get(key) != had]
        if changed:
            raise PartitionsChanged(changed, state)
        return rebase(state, actions)

    return guarded


def _committed_before(state: TableState, actions: Sequence[Action]) -> bool:
    """Whether a rewrite or push is committed already; flushes are decided action by action."""
    if any(isinstance(action, Add) and action.kind == "persist" for action in actions):
        return False
    for action in actions:
        # File names are unique for ever, so an existing one came by this very proposal.
        if isinstance(action, Add) and action.path in state.files:
            return True
        if isinstance(action, Txn) and state.txns.get(action.app_id, -1) >= action.version:
            _check_repeats(state, action)
            return True
    return False


def _check_repeats(state: TableState, txn: Txn) -> None:
    """Raise :class:`TxnDiffers` unless a version, which is not above the newest, is committed."""
    sent = next((each for each in txn.contents if each.sequence == txn.version), None)
    if sent is None:
        return
    contents = state.txn_contents.get(txn.app_id, ())
    known = next((each for each in contents if each.sequence == txn.version), None)
    newest = state.txns[txn.app_id]
    if known != sent and not (known is None and txn.version == newest):
        raise TxnDiffers(txn.app_id, newest, sent, known)


def _check_removes(state: TableState, actions: Sequence[Action]) -> None:
    gone = tuple(
        action.path
        for action in actions
        if isinstance(action, Remove) and action.path not in state.files
    )
    if gone:
        raise RewriteVoid(gone, state.version)


def _check_definition(state: TableState, actions: Sequence[Action]) -> None:
    """Refuse definitions that were not made on top of the table's current ones."""
    schema, spec = state.current_schema, state.current_spec
    # With a schema they define a new table, which another process may have created.
    makes = any(isinstance(action, Schema) for action in actions)
    for action in actions:
        if isinstance(action, Schema):
            if schema and action != schema and action.schema_id != schema.schema_id + 1:
                reason = f"schema {action.schema_id}, the table has another {schema.schema_id}"
                raise ProposalConflict(reason, state)
            schema = action
        elif isinstance(action, Spec):
            if spec and action != spec and action.spec_id != spec.spec_id + 1:
                reason = f"spec {action.fields}, the table has {spec.fields} (id {spec.spec_id})"
                raise ProposalConflict(reason, state)
            spec = action
        elif isinstance(action, Properties):
            there, asked = dict(state.properties), action.values
            if not makes:
                there, asked = _lasting(there), _lasting(asked)
            if there and there != asked:
                reason = f"properties {asked}, the table has {there}"
                raise ProposalConflict(reason, state)


def _lasting(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that never change."""
    return {name: value for name, value in properties.items() if name not in CHANGEABLE}


def _covered_to(state: TableState, add: Add) -> int:
    return state.applied_to(*add.applied_key)


def _check_partly_covered(state: TableState, actions: Sequence[Action]) -> None:
    adds = []
    covered: dict[AppliedKey, int] = {}
    for action in actions:
        if isinstance(action, Add) and action.kind == "persist":
            upto = _covered_to(state, action)
            if action.first_seq <= upto < action.last_seq:
                adds.append(action)
                covered[action.applied_key] = upto
    if adds:
        raise PartlyCovered(tuple(adds), covered)


def check_uploads(state: TableState, actions: Sequence[Action]) -> None:
    """Raise :class:`UploadExpired` if a file was uploaded before the state's horizon."""
    horizon = state.horizon
    if horizon is None:
        return
    late = tuple(
        action for action in actions if isinstance(action, Add) and is_before(action.at, horizon)
    )
    if late:
        raise UploadExpired(late, horizon)


def _covered_persists(state: TableState, actions: Sequence[Action]) -> set[PartitionKey]:
    """Partitions whose flushes are in files already; committed alone, their removes would delete
    rows.
    """
    covered: dict[PartitionKey, bool] = {}
    for action in actions:
        if isinstance(action, Applied) or (isinstance(action, Add) and action.kind == "persist"):
            partition = (action.spec_id, action.values)
            covered[partition] = covered.get(partition, True) and _is_in(state, action)
    return {partition for partition, all_in in covered.items() if all_in}


def _is_remove_of(state: TableState, action: Action, partitions: set[PartitionKey]) -> bool:
    return isinstance(action, Remove) and state.files[action.path].partition in partitions


def _is_in(state: TableState, action: Action) -> bool:
    if isinstance(action, Add):
        return action.kind == "persist" and action.last_seq <= _covered_to(state, action)
    if isinstance(action, Applied):
        return action.seq <= state.applied_to(*action.key)
    if isinstance(action, Horizon):
        # Never back: files between the two may be deleted already.
        return state.horizon is not None and not is_before(state.horizon, action.at)
    if isinstance(action, OriginExpired):
        known = state.origins.get(action.name)
        return known is None or known.at != action.at
    if isinstance(action, SharedState):
        return action.id in state.shared_states
    if isinstance(action, CheckpointAction):
        return not action.replaces(state.checkpoints.get(action.partition))
    if isinstance(action, EpochComplete):
        return (action.ingester_id, action.epoch) in state.epochs_complete
    return action in (
        state.current_schema,
        state.current_spec,
        Properties(values=dict(state.properties)),
        state.owner,
        state.writers.get(action.ingester_id) if isinstance(action, WriterAction) else None,
        state.origins.get(action.name) if isinstance(action, OriginAction) else None,
    )


def live_owner(state: TableState) -> Owner | None:
    """The owner that takes a keyed table's writes; None if any daemon may claim them.

    A claim holds while its daemon may have rows of the table that are in no file: until it is
    closed by a clean stop or by the adoption of its log. A later process of the same id is the same
    owner.
    """
    owner = state.owner
    writer = None if owner is None else state.writers.get(owner.ingester_id)
    return None if writer is None or writer.state == "closed" else owner


def check_owner(state: TableState, actions: Sequence[Action]) -> None:
    """Refuse a claim against the claim of another daemon.

    Raises:
        ProposalConflict
    """
    owner = live_owner(state)
    for action in actions:
        if (
            isinstance(action, Owner)
            and owner is not None
            and owner.ingester_id != action.ingester_id
        ):
            raise ProposalConflict(f"{owner.ingester_id} owns the table's writes", state)
