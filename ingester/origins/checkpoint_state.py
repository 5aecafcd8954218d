"""A checkpoint on its way: a client's opaque state for one partition of its source.

Law of this file: pure; nobody looks into a state. Bytes that many checkpoints share are one object
in the process, whoever sent them, and are kept once. Any thread.
"""

from __future__ import annotations

import base64
import hashlib
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from persist.manifest.actions import Checkpoint as CheckpointAction
from persist.manifest.actions import SharedState
from persist.manifest.origins import Process

MAX_STATE_BYTES = 1 << 20
"""The limit of a state, and of the bytes that it shares with others."""


@dataclass(frozen=True, eq=False)
class SharedBytes:
    """Bytes that states of several partitions share, by content."""

    id: str
    """The SHA-256 of the bytes, in hex."""
    state: bytes

    @classmethod
    def of(cls, state: bytes) -> SharedBytes:
        """Find the object for these bytes, or make it."""
        found_id = hashlib.sha256(state).hexdigest()
        # Two threads that make one at the same time make two, which costs no more than memory.
        known = _interned.get(found_id)
        if known is None:
            known = cls(found_id, state)
            _interned[found_id] = known
        return known


_interned: weakref.WeakValueDictionary[str, SharedBytes] = weakref.WeakValueDictionary()


class Checkpoint(NamedTuple):
    """A state for a partition of a client's source; without a state the partition's is deleted."""

    partition: str
    state: bytes | None
    shared: SharedBytes | None = None
    at: str | None = None
    """The time when it came, ISO 8601 by the daemon's clock."""

    def filled(self, stamp: CheckpointAction) -> CheckpointAction:
        """Make the action that commits it, of its stamp."""
        if self.state is None:
            return stamp
        state = base64.b64encode(self.state).decode()
        shared = None if self.shared is None else self.shared.id
        return msgspec.structs.replace(stamp, state=state, shared=shared)

    def stamp(
        self, process: Process, seq: int, origin: str | None, sequence: int | None
    ) -> CheckpointAction:
        """Make the action without a state: it tells which of two is the newer one.

        Args:
            process: the ingester id and the epoch under which the log has it.
            seq: the operation that brought it.
            origin: the client's name, with its ``sequence`` of the operation; None without one.
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
        """The bytes of the state, without those that it shares."""
        return len(self.state or b"")


def shared_actions(checkpoints: Iterable[Checkpoint]) -> list[SharedState]:
    """Make the actions that have to come before those of the checkpoints: one for each bytes."""
    shared = {
        each.shared.id: each.shared.state
        for each in checkpoints
        if each.shared is not None and each.state is not None
    }
    return [
        SharedState(shared_id, base64.b64encode(state).decode())
        for shared_id, state in shared.items()
    ]
