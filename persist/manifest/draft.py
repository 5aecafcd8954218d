"""Applies actions to a state. Pure.

The cost is that of the actions, not of the table, except for ``epoch_complete`` (walks
``applied``), removals (walk their partition) and checkpoints (walk all of them if shared states
exist). An inconsistent action raises ``ActionRefused`` and leaves the given state unchanged.
Actions are applied before they are committed: a committed inconsistency would make the table
unreadable (tests/persist/manifest/test_draft.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from immutables import Map
from msgspec import structs

from persist.manifest.actions import (
    Action,
    Add,
    Applied,
    CheckpointAction,
    EpochComplete,
    Horizon,
    Imported,
    OriginAction,
    OriginExpired,
    Owner,
    PartitionKey,
    Properties,
    Remove,
    Schema,
    Sealed,
    SharedState,
    Spec,
    Txn,
    Unsealed,
    WriterAction,
)
from persist.manifest.errors import ActionRefused
from persist.manifest.state import FileRuns, Lineage, TableState

_NO_FILES = FileRuns()

MOST_DELETED = 1000
"""The number of deleted checkpoints that a table remembers: an older checkpoint in the log of
another daemon would otherwise come back.
"""


MOST_TXN_CONTENTS = 100
"""The number of versions of a foreign writer whose contents a table remembers."""


def apply(state: TableState, actions: Iterable[Action]) -> TableState:
    """The state after ``actions``, with the version and lineage of ``state``.

    Raises:
        ActionRefused: An action is inconsistent; the message names it.
    """
    draft = StateDraft(state)
    draft.apply(actions)
    return draft.finish()


class StateDraft:
    """A state being built: mutable, used by one thread and thrown away.

    One draft takes the actions of many versions, which is cheaper than a state for each.
    """

    def __init__(self, state: TableState) -> None:
        self._state = state
        self._rows = state.rows
        self._bytes = state.bytes
        self._files = state.files.mutate()
        self._applied = state.applied.mutate()
        # Files added by this draft, by path and by partition; a dict is faster than a Map.
        self._new: dict[str, Add] = {}
        self._added: dict[PartitionKey, dict[str, Add]] = {}
        # Pairs of schema and spec that are known; they never become unknown.
        self._known: set[tuple[int, int]] = set()
        self._removed: dict[PartitionKey, set[str]] = {}
        # Other fields are small and change seldom: field name to new value.
        self._changed: dict[str, Any] = {}

    def apply(self, actions: Iterable[Action]) -> None:
        """Apply ``actions`` in order, or raise :class:`ActionRefused`; then drop the draft."""
        for action in actions:
            _HANDLERS[type(action)](self, action)

    def finish(
        self, version: int | None = None, uid: str = "", lineage: Lineage = ()
    ) -> TableState:
        """The state, as of ``version`` if given; the draft is used up."""
        changed = dict(self._changed)
        self._files.update(self._new)
        if "shared_states" in changed or "checkpoints" in changed:
            changed["shared_states"] = self._referred_to()
        if version is not None:
            changed |= {"version": version, "uid": uid, "lineage": lineage}
        return replace(
            self._state,
            files=self._files.finish(),
            partitions=self._finished_partitions(),
            applied=self._applied.finish(),
            rows=self._rows,
            bytes=self._bytes,
            **changed,
        )

    def _finished_partitions(self) -> Map[PartitionKey, FileRuns]:
        partitions = self._state.partitions
        edit = partitions.mutate()
        for key in self._added.keys() | self._removed.keys():
            files = partitions.get(key, _NO_FILES)
            if removed := self._removed.get(key):
                files = files.without(removed)
            files = files.and_then(self._added.get(key, {}).values())
            if files:
                edit[key] = files
            else:
                edit.pop(key, None)
        return edit.finish()

    def _get(self, name: str) -> Any:
        return self._changed[name] if name in self._changed else getattr(self._state, name)

    # Called once per file when a table is opened.
    def _add(self, add: Add) -> None:
        if (add.schema_id, add.spec_id) not in self._known:
            self._check_known(add)
        path, key = add.path, (add.spec_id, add.values)
        if path in self._new or path in self._files:
            raise ActionRefused(f"add of {path}, which is in the table already")
        self._new[path] = add
        added = self._added.get(key)
        if added is None:
            added = self._added[key] = {}
        added[path] = add
        self._rows += add.rows
        self._bytes += add.bytes

    def _check_known(self, add: Add) -> None:
        if add.schema_id not in self._get("schemas"):
            raise ActionRefused(f"add of {add.path} with unknown schema {add.schema_id}")
        if add.spec_id not in self._get("specs"):
            raise ActionRefused(f"add of {add.path} with unknown spec {add.spec_id}")
        self._known.add((add.schema_id, add.spec_id))

    def _remove(self, remove: Remove) -> None:
        # A file added by this draft is not in the partition's tuple yet; any other one is.
        if (add := self._new.pop(remove.path, None)) is not None:
            del self._added[add.partition][add.path]
        elif (add := self._files.pop(remove.path, None)) is not None:
            self._removed.setdefault(add.partition, set()).add(add.path)
        else:
            raise ActionRefused(f"remove of {remove.path}, which is not in the table")
        self._rows -= add.rows
        self._bytes -= add.bytes

    def _schema(self, schema: Schema) -> None:
        current = self._get("current_schema")
        if schema == current:
            return
        if current is not None and schema.schema_id != current.schema_id + 1:
            raise ActionRefused(f"schema {schema.schema_id} after schema {current.schema_id}")
        self._changed["schemas"] = self._get("schemas").set(schema.schema_id, schema)
        self._changed["current_schema"] = schema

    def _spec(self, spec: Spec) -> None:
        current = self._get("current_spec")
        if spec == current:
            return
        if current is not None and spec.spec_id != current.spec_id + 1:
            raise ActionRefused(f"spec {spec.spec_id} after spec {current.spec_id}")
        self._changed["specs"] = self._get("specs").set(spec.spec_id, spec)
        self._changed["current_spec"] = spec

    def _properties(self, properties: Properties) -> None:
        self._changed["properties"] = properties.values

    def _writer(self, writer: WriterAction) -> None:
        known = self._get("writers").get(writer.ingester_id)
        if known is not None and known.epoch > writer.epoch:
            raise ActionRefused(
                f"writer {writer.ingester_id} with epoch {writer.epoch} after epoch {known.epoch}"
            )
        self._changed["writers"] = self._get("writers").set(writer.ingester_id, writer)

    def _owner(self, owner: Owner) -> None:
        self._changed["owner"] = owner

    def _apply_seq(self, applied: Applied) -> None:
        if (applied.ingester_id, applied.epoch) in self._get("epochs_complete"):
            raise ActionRefused(
                f"applied {applied.key} up to {applied.seq}, but that epoch is complete"
            )
        known = self._applied.get(applied.key)
        if known is not None and known > applied.seq:
            raise ActionRefused(f"applied {applied.key} goes back from {known} to {applied.seq}")
        self._applied[applied.key] = applied.seq

    def _epoch_complete(self, done: EpochComplete) -> None:
        epoch = (done.ingester_id, done.epoch)
        self._changed["epochs_complete"] = self._get("epochs_complete") | {epoch}
        applied = self._applied.finish()
        self._applied = applied.mutate()
        for key in applied:
            if key[:2] == epoch:
                del self._applied[key]

    def _origin(self, origin: OriginAction) -> None:
        self._changed["origins"] = self._get("origins").set(origin.name, origin)

    def _origin_expired(self, expired: OriginExpired) -> None:
        known = self._get("origins")
        if expired.name in known:
            self._changed["origins"] = known.delete(expired.name)
        checkpoints: Map[str, CheckpointAction] = self._get("checkpoints")
        for partition, checkpoint in checkpoints.items():
            if checkpoint.origin == expired.name and checkpoint.sequence is not None:
                # A new origin of this name numbers from the start: old sequences do not compare.
                kept = structs.replace(checkpoint, sequence=None)
                self._changed["checkpoints"] = self._get("checkpoints").set(partition, kept)

    def _shared_state(self, shared: SharedState) -> None:
        self._changed["shared_states"] = self._get("shared_states").set(shared.id, shared)

    def _checkpoint(self, checkpoint: CheckpointAction) -> None:
        if checkpoint.shared is not None and checkpoint.shared not in self._get("shared_states"):
            raise ActionRefused(
                f"checkpoint {checkpoint.partition!r} refers to shared state {checkpoint.shared},"
                " which does not exist"
            )
        known: Map[str, CheckpointAction] = self._get("checkpoints")
        known = known.set(checkpoint.partition, checkpoint)
        if checkpoint.state is None:
            deleted = [each for each in known.values() if each.state is None]
            if len(deleted) > MOST_DELETED:
                oldest = min(deleted, key=lambda each: (each.at or "", each.partition))
                known = known.delete(oldest.partition)
        self._changed["checkpoints"] = known

    def _referred_to(self) -> Map[str, SharedState]:
        """The shared states that a checkpoint refers to."""
        known: Map[str, SharedState] = self._get("shared_states")
        if not known:
            return known
        referred = {checkpoint.shared for checkpoint in self._get("checkpoints").values()}
        edit = known.mutate()
        for shared_id in known:
            if shared_id not in referred:
                del edit[shared_id]
        return edit.finish()

    def _horizon(self, horizon: Horizon) -> None:
        self._changed["horizon"] = horizon.at

    def _txn(self, txn: Txn) -> None:
        known = self._get("txns").get(txn.app_id)
        if known is not None and known >= txn.version:
            raise ActionRefused(f"txn {txn.app_id} goes back from {known} to {txn.version}")
        self._changed["txns"] = self._get("txns").set(txn.app_id, txn.version)
        if txn.contents:
            contents = self._get("txn_contents")
            known = {each.sequence: each for each in contents.get(txn.app_id, ())}
            known.update((each.sequence, each) for each in txn.contents)
            kept = tuple(known[version] for version in sorted(known)[-MOST_TXN_CONTENTS:])
            self._changed["txn_contents"] = contents.set(txn.app_id, kept)

    def _seal(self, sealed: Sealed) -> None:
        known = self._get("sealed")
        if known is not None:
            raise ActionRefused(f"sealed for {sealed.next}, but it is for {known.next} already")
        self._changed["sealed"] = sealed

    def _unseal(self, unsealed: Unsealed) -> None:
        known = self._get("sealed")
        if known is None or known.switch >= unsealed.switch:
            raise ActionRefused(f"unsealed by switch {unsealed.switch}, which no seal is below")
        self._changed["sealed"] = None

    def _import(self, imported: Imported) -> None:
        self._changed["imports"] = self._get("imports").set(imported.table_version, imported)


_HANDLERS: dict[type, Callable[[StateDraft, Any], None]] = {
    Add: StateDraft._add,
    Remove: StateDraft._remove,
    Schema: StateDraft._schema,
    Spec: StateDraft._spec,
    Properties: StateDraft._properties,
    WriterAction: StateDraft._writer,
    Owner: StateDraft._owner,
    Applied: StateDraft._apply_seq,
    EpochComplete: StateDraft._epoch_complete,
    OriginAction: StateDraft._origin,
    OriginExpired: StateDraft._origin_expired,
    SharedState: StateDraft._shared_state,
    CheckpointAction: StateDraft._checkpoint,
    Horizon: StateDraft._horizon,
    Txn: StateDraft._txn,
    Imported: StateDraft._import,
    Sealed: StateDraft._seal,
    Unsealed: StateDraft._unseal,
}
