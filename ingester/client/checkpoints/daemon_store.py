"""The daemon as a store of states: its log, then the manifest of the table that they are of."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from .checkpoint import StoredCheckpoint, partition_name
from .store import PartitionKey

Act = Callable[[str, Mapping[str, Any]], list[dict[str, Any]]]
"""An action of the daemon and its body, as ``Client.action`` makes it."""


class DaemonCheckpointStore:
    """A :class:`CheckpointStore`. A state that was put survives ``kill -9`` of the daemon.

    After the loss of the daemon's disk the state is an earlier one, that of the table's files.
    """

    def __init__(self, act: Act, prefix: str = "", *, of_any_version: bool = False) -> None:
        """Take ``client.action``, and what partitions' names begin with, to tell whose they are.

        Args:
            of_any_version: Whether states are kept, and found, whichever version the table is at:
                then the prefix has to tell the versions apart.
        """
        self._act = act
        self._prefix = prefix
        self._any_version = of_any_version

    def get(self, key: PartitionKey) -> bytes | None:
        """The state in the daemon's log; None where there is none. Raises ClientError.

        None, too, where the table is at another version: a state of that one is not asked for.
        """
        found = self._call("checkpoint_get", key)
        is_of_it = self._any_version or found.table_version == key.table_version
        return found.state if is_of_it else None

    def put(self, key: PartitionKey, state: bytes) -> None:
        """Keep the state; it is in the log when this returns.

        Raises:
            InvalidRequest: beyond the limits, or the table is at another version than the key's.
            ClientError: the daemon refused, or is away.
        """
        text = base64.b64encode(state).decode()
        self._call("checkpoint_put", key, state=text, **self._version(key))

    def delete(self, key: PartitionKey) -> None:
        """Forget the state; one that is not there is fine. Raises ClientError."""
        if self.get(key) is not None:
            self._call("checkpoint_delete", key, **self._version(key))

    def _version(self, key: PartitionKey) -> dict[str, int]:
        return {} if self._any_version else {"table_version": key.table_version}

    def _call(self, kind: str, key: PartitionKey, **fields: object) -> StoredCheckpoint:
        partition = partition_name(f"{self._prefix}{key.partition}")
        body = {"namespace": key.namespace, "table": key.table, "partition": partition, **fields}
        [answer] = self._act(kind, body)
        return msgspec.convert(answer, StoredCheckpoint)
