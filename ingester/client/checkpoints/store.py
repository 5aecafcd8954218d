"""The interface of a place that keeps states: three calls, and no more.

A richer, live object would invite edits that break ingestion. Bytes leave the form of a state, and
what becomes of it in later versions, to its owner.
"""

from typing import NamedTuple, Protocol


class PartitionKey(NamedTuple):
    """The key of a state. Its parts stay apart: no two keys can be written as the same text."""

    namespace: str
    table: str
    table_version: int
    partition: str


class CheckpointStore(Protocol):
    """A place for states. What :meth:`put` has returned from survives the process.

    Of a store with transactions of its own, what is put in one is there with it or not at all.
    """

    def get(self, key: PartitionKey) -> bytes | None:
        """The state that was put last; None where there is none. Empty bytes are a state."""

    def put(self, key: PartitionKey, state: bytes) -> None:
        """Keep ``state``, of at most ``MAX_STATE_BYTES``, in place of the one before."""

    def delete(self, key: PartitionKey) -> None:
        """Forget the state. One that is not there is fine."""
