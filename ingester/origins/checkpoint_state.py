"""A checkpoint: a client's opaque state for one partition of its source.

Bytes that many checkpoints share are one object in the process and stored once. Pure and thread-
safe.
"""

from __future__ import annotations

import base64
import hashlib
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from persist.manifest.actions import CheckpointAction as CheckpointAction
from persist.manifest.actions import SharedState
from persist.manifest.origins import Process

MAX_STATE_BYTES = 1 << 20
"""Size limit of a state, and of its shared bytes."""


@dataclass(frozen=True, eq=False)
class SharedBytes:
    """Bytes shared by the states of several partitions, identified by their content."""

    id: str
    """SHA-256 of the bytes, in hex."""
    state: bytes

    @classmethod
    def of(cls, state: bytes) -> SharedBytes:
        """Return the object for these bytes, created on first use."""
        found_id = hashlib.sha256(state).hexdigest()
        # Two threads may create one each, which only costs memory.
        known = _interned.get(found_id)
        if known is None:
            known = cls(found_id, state)
            _interned[found_id] = known
        return known


_interned: weakref.WeakValueDictionary[str, SharedBytes] = weakref.WeakValueDictionary()


class SourceCheckpoint(NamedTuple):
    """A state for a partition of a client's source; None as state deletes the partition's."""

    partition: str
    state: bytes | None
    shared: SharedBytes | None = None
    at: str | None = None
    """When it arrived, ISO 8601 by the daemon's clock."""

    def filled(self, stamp: CheckpointAction) -> CheckpointAction:
        """Return the action that commits it, from its stamp."""
        if self.state is None:
            return stamp
        state = base64.b64encode(self.state).decode()
        shared = None if self.shared is None else self.shared.id
        return msgspec.structs.replace(stamp, state=state, shared=shared)

    def stamp(
        self, process: Process, seq: int, origin: str | None, sequence: int | None
    ) -> CheckpointAction:
        """Return the action without a state, which tells which of two is newer.

        Args:
            process: the ingester id and epoch under which the log has it.
            seq: the operation that brought it.
            origin: the client's origin name and sequence; None without one.
        """
        return CheckpointAction(
            partition=self.partition,
            state=None,
            ingester_id=process[0],
            epoch=process[1],
            seq=seq,
            origin=None if sequence is None else origin,
            sequence=sequence,
            at=self.at,
        )

    @property
    def nbytes(self) -> int:
        """Size of the state without its shared bytes."""
        return len(self.state or b"")


def shared_actions(checkpoints: Iterable[SourceCheckpoint]) -> list[SharedState]:
    """Return the actions that must precede the checkpoints' own: one per shared bytes."""
    shared = {
        each.shared.id: each.shared.state
        for each in checkpoints
        if each.shared is not None and each.state is not None
    }
    return [
        SharedState(shared_id, base64.b64encode(state).decode())
        for shared_id, state in shared.items()
    ]
