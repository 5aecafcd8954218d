"""States that are kept at the daemon, by its three calls for checkpoints.

Law of this file: a state that was put is in the daemon's log when ``put`` returns. Its partition's
name says that it is of a follower, and of which: sources of the same table keep theirs beside it.
"""

from __future__ import annotations

import base64
import binascii

from ingester.client.connection import Connection
from ingester.client.errors import InvalidRequest
from ingester.client.follower.errors import StateDamaged
from ingester.client.follower.sink import StateKey
from ingester.client.wire import given

PREFIX = "follower/"


class DaemonStates:
    """The states of followers at one daemon. Any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, key: StateKey) -> bytes | None:
        """See :class:`ingester.client.follower.sink.CheckpointStore`."""
        (answer,) = self._connection.act("checkpoint_get", _body(key))
        state = answer.get("state")
        if state is None:
            return None
        try:
            return base64.b64decode(str(state), validate=True)
        except binascii.Error as exc:
            raise StateDamaged(f"the daemon's answer is no base64: {exc}") from exc

    def put(self, key: StateKey, state: bytes) -> None:
        """See :class:`ingester.client.follower.sink.CheckpointStore`."""
        text = base64.b64encode(state).decode()
        self._connection.act("checkpoint_put", {**_body(key), "state": text})

    def delete(self, key: StateKey) -> None:
        """See :class:`ingester.client.follower.sink.CheckpointStore`."""
        self._connection.act("checkpoint_delete", _body(key))


def _body(key: StateKey) -> dict[str, object]:
    if not key.partition:
        raise InvalidRequest(
            "a follower whose state is kept at the daemon needs a name, as name='reports':"
            " it tells its state from those of others"
        )
    return given(
        {
            "namespace": key.namespace,
            "table": key.table,
            "partition": f"{PREFIX}{key.partition}",
        }
    )
