"""The states of copies that are kept at the daemon, among those of the table's sources.

Law of this file: names tell followers apart, and the versions of a table: so a state is found, and
kept, whichever version the table is at.
"""

from __future__ import annotations

from ingester.client.checkpoints import CheckpointStore, DaemonCheckpointStore
from ingester.client.connection import Connection
from ingester.client.errors import InvalidRequest
from ingester.followers.sink import StateKey

STATES = "follower/"
"""The beginning of a state's name at the daemon, where sources keep theirs, too."""
LATER_STATES = "follower-v{}/"
"""The same for a table version after the first. A switch takes all states along, those of the
version that is left, too."""


class DaemonStates:
    """A :class:`CheckpointStore` for one follower; raises InvalidRequest where it has no name."""

    def __init__(self, connection: Connection, name: str) -> None:
        if not name:
            raise InvalidRequest(
                "a follower whose states are kept at the daemon needs a name, as name='reports':"
                " it tells its states from those of others"
            )
        self._connection = connection

    def get(self, key: StateKey) -> bytes | None:
        """The state; None where there is none."""
        return self._of(key).get(key)

    def put(self, key: StateKey, state: bytes) -> None:
        """Keep a state."""
        self._of(key).put(key, state)

    def delete(self, key: StateKey) -> None:
        """Forget a state."""
        self._of(key).delete(key)

    def versions(self, key: StateKey, upto: int) -> list[int]:
        """The versions, up to one, of which there is a state under the key's name: one call."""
        table = {"namespace": key.namespace, "table": key.table}
        there = {each["partition"] for each in self._connection.act("checkpoints", table)}
        names = {version: _prefix(version) + key.partition for version in range(1, upto + 1)}
        return [version for version, name in names.items() if name in there]

    def _of(self, key: StateKey) -> CheckpointStore:
        prefix = _prefix(key.table_version)
        return DaemonCheckpointStore(self._connection.act, prefix, of_any_version=True)


def _prefix(version: int) -> str:
    return STATES if version == 1 else LATER_STATES.format(version)
