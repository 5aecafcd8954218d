"""Checkpoints: the opaque states of sources and followers, and the places that keep them.

A source gives its state along with the batch that reaches it:

    writer.write(batch, Checkpoint("topic-0", b"offset 17"))

    ``checkpoint``     the state of a source partition, checked; what a batch says of it, and which
                       bulky bytes a stream has sent already; what the daemon answers
    ``store``          where states are kept: get, put and delete of bytes by a typed key
    ``daemon_store``   the daemon as such a place

Nobody but its owner looks into a state. Where a state goes with rows, both are on disk or neither
is. This room never makes a state: a source says what it has read, a follower what it has applied.
Start reading at ``checkpoint``.
"""

from .checkpoint import (
    MAX_PARTITION_BYTES,
    MAX_STATE_BYTES,
    Checkpoint,
    ListedCheckpoint,
    StoredCheckpoint,
)
from .daemon_store import DaemonCheckpointStore
from .store import CheckpointStore, PartitionKey

__all__ = [
    "MAX_PARTITION_BYTES",
    "MAX_STATE_BYTES",
    "Checkpoint",
    "CheckpointStore",
    "DaemonCheckpointStore",
    "ListedCheckpoint",
    "PartitionKey",
    "StoredCheckpoint",
]
