"""States of a follower, kept at the daemon whose table it follows: its log, then its manifest."""

from typing import Protocol

from ..errors import InvalidRequest
from .checkpoint import StoredCheckpoint
from .store import PartitionKey

_TABLE_VERSION = 1
"""The one version that a table has at a daemon."""


class CheckpointCalls(Protocol):
    """The three calls of a :class:`ingester.client.Client`."""

    def checkpoint(self, namespace: str, table: str, partition: str) -> StoredCheckpoint:
        """The state of a source partition."""

    def put_checkpoint(
        self, namespace: str, table: str, partition: str, state: bytes
    ) -> StoredCheckpoint:
        """The state, put without rows."""

    def delete_checkpoint(self, namespace: str, table: str, partition: str) -> StoredCheckpoint:
        """What is left: a partition without a state."""


class DaemonCheckpointStore:
    """A :class:`CheckpointStore`. A state that was put survives ``kill -9`` of the daemon.

    After the loss of the daemon's disk the state is an earlier one, that of the table's files.
    """

    def __init__(self, client: CheckpointCalls) -> None:
        """Take the client, which stays the caller's to close."""
        self._client = client

    def get(self, key: PartitionKey) -> bytes | None:
        """The state in the daemon's log; None where there is none. Raises ClientError."""
        if key.table_version != _TABLE_VERSION:
            return None
        return self.stored(key).state

    def stored(self, key: PartitionKey) -> StoredCheckpoint:
        """The state in the log and that in object storage. Raises ClientError."""
        return self._client.checkpoint(key.namespace, key.table, key.partition)

    def put(self, key: PartitionKey, state: bytes) -> None:
        """Keep the state; it is in the log when this returns.

        Raises:
            InvalidRequest: beyond the limits, or of a version that the table does not have.
            ClientError: the daemon refused, or is away.
        """
        if key.table_version != _TABLE_VERSION:
            raise InvalidRequest(
                f"checkpoint of version {key.table_version} of {key.namespace}/{key.table}: the"
                f" daemon's table has version {_TABLE_VERSION}"
            )
        self._client.put_checkpoint(key.namespace, key.table, key.partition, state)

    def delete(self, key: PartitionKey) -> None:
        """Forget the state; one that is not there is fine. Raises ClientError."""
        if key.table_version == _TABLE_VERSION:
            self._client.delete_checkpoint(key.namespace, key.table, key.partition)
