"""The daemon as a store of states: its log, then the manifest of the table that they are of."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..errors import InvalidRequest
from .checkpoint import StoredCheckpoint, partition_name
from .store import PartitionKey

Act = Callable[[str, Mapping[str, Any]], list[dict[str, Any]]]
"""An action of the daemon and its body, as ``Client.action`` makes it."""
_TABLE_VERSION = 1
"""The one version that a table has at a daemon."""


class DaemonCheckpointStore:
    """A :class:`CheckpointStore`. A state that was put survives ``kill -9`` of the daemon.

    After the loss of the daemon's disk the state is an earlier one, that of the table's files.
    """

    def __init__(self, act: Act, prefix: str = "") -> None:
        """Take ``client.action``, and what partitions' names begin with, to tell whose they are."""
        self._act = act
        self._prefix = prefix

    def get(self, key: PartitionKey) -> bytes | None:
        """The state in the daemon's log; None where there is none. Raises ClientError."""
        if key.table_version != _TABLE_VERSION:
            return None
        return self._call("checkpoint_get", key).state

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
        self._call("checkpoint_put", key, state=base64.b64encode(state).decode())

    def delete(self, key: PartitionKey) -> None:
        """Forget the state; one that is not there is fine. Raises ClientError."""
        if key.table_version == _TABLE_VERSION:
            self._call("checkpoint_delete", key)

    def _call(self, kind: str, key: PartitionKey, **fields: str) -> StoredCheckpoint:
        partition = partition_name(f"{self._prefix}{key.partition}")
        body = {"namespace": key.namespace, "table": key.table, "partition": partition, **fields}
        [answer] = self._act(kind, body)
        return msgspec.convert(answer, StoredCheckpoint)
