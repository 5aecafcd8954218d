"""Checkpoints: opaque states of sources and followers, and the stores that keep them.

A source commits its state with the batch that reaches it; the daemon stores both or neither:

    writer.write(batch, Checkpoint("topic-0", b"offset 17"))

Only its owner interprets a state. Bytes that many partitions share are sent once per stream, then
by their SHA-256. A daemon remembers the newest few; a new stream starts without any, because the
daemon may be another one:

    state of p, shared A ──▶ A's bytes
    state of q, shared A ──▶ A's id
        the connection is lost and another stream is opened
    state of q, shared A ──▶ A's bytes

The module is pure: the daemon is called by a function that is passed in.
"""

import base64
import datetime
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from ingester.shown_text import has_hidden, shown_name

from .errors import InvalidRequest

MAX_STATE_BYTES = 1 << 20
"""The limit of a state, and of its shared bytes."""
MAX_PARTITION_BYTES = 256
_AS = "a source partition and its state, such as ('topic-0', b'offset 17')"
_REMEMBERED = 8
"""The number of shared byte strings that a stream refers to by id; a daemon remembers 16."""

Act = Callable[[str, Mapping[str, Any]], list[dict[str, Any]]]
"""``Client.action``: calls an action of the daemon with a body."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A source's state, stored with the batch that reaches it.

    ``partition`` names the part of the source, such as ``topic-0``, in up to 256 bytes. ``shared``
    are large bytes that many partitions have in common (a schema, a compression dictionary); they
    are sent once per stream and stored once. ``state`` and ``shared`` have at most 1 MiB each.
    """

    partition: str
    state: bytes
    shared: bytes | None = None


class StoredCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A source partition's state at the daemon; None if there is none.

    ``state`` is in the log and survives the process. ``durable_state`` is in object storage and
    survives the machine. ``durable``: both are the same.
    """

    partition: str
    table_version: int = 1
    state: bytes | None = None
    shared: bytes | None = None
    durable: bool = True
    durable_state: bytes | None = None
    durable_shared: bytes | None = None


class ListedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in a listing: its sizes, when it was put, and the origin that wrote it."""

    namespace: str
    table: str
    partition: str
    table_version: int = 1
    bytes: int = 0
    shared_id: str | None = None
    shared_bytes: int = 0
    at: datetime.datetime | None = None
    durable: bool = True
    origin: str | None = None


class CheckpointMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The wire form of a checkpoint, with ``shared`` or ``shared_id``. Bytes become base64."""

    partition: str
    state: bytes
    shared: bytes | None = None
    shared_id: str | None = None


def checked(given: Any) -> Checkpoint | None:
    """The checkpoint that a caller passed, validated; None for None.

    Raises:
        InvalidRequest: It is not a partition and its state, or exceeds a limit.
    """
    if given is None:
        return None
    if isinstance(given, Checkpoint):
        given = (given.partition, given.state, given.shared)
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise InvalidRequest(f"checkpoint={given!r}: expected {_AS}")
    shared = given[2] if len(given) == 3 else None
    return Checkpoint(
        partition_name(given[0]),
        _bytes("checkpoint state", given[1]),
        None if shared is None else _bytes("shared state", shared),
    )


def partition_name(value: Any) -> str:
    """The name of a source partition, validated.

    Raises:
        InvalidRequest: It is not text of 1 to 256 bytes, or has a control character.
    """
    if not isinstance(value, str):
        raise InvalidRequest(
            f"checkpoint: the partition must be text, not {value!r}: expected {_AS}"
        )
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"checkpoint: partition {value!r} is not UTF-8") from None
    if not 1 <= size <= MAX_PARTITION_BYTES:
        raise InvalidRequest(
            f"checkpoint: a partition's name has 1 to {MAX_PARTITION_BYTES} bytes, this one {size}"
        )
    if has_hidden(value):
        raise InvalidRequest(f"checkpoint: partition {shown_name(value)} has control characters")
    return value


def _bytes(which: str, value: Any) -> bytes:
    if isinstance(value, bytearray | memoryview):
        value = bytes(value)
    if not isinstance(value, bytes):
        raise InvalidRequest(
            f"checkpoint: the {which} must be bytes, not {type(value).__name__}: expected {_AS}"
        )
    if len(value) > MAX_STATE_BYTES:
        raise InvalidRequest(
            f"checkpoint: {which} has {len(value)} B; at most {MAX_STATE_BYTES} are allowed. Put"
            " what many partitions have in common into 'shared', and bulk data into a table"
        )
    return value


def shared_id(shared: bytes) -> str:
    """The id of shared bytes: their SHA-256, in hex."""
    return hashlib.sha256(shared).hexdigest()


class Carried(NamedTuple):
    """A checkpoint that goes with a batch, and the id of its shared bytes, if any."""

    checkpoint: Checkpoint
    shared_id: str | None


class SentShared:
    """The ids of the newest shared bytes that one stream has sent."""

    def __init__(self) -> None:
        self._sent: list[str] = []

    def message(self, carried: Carried) -> CheckpointMessage:
        """The message for a checkpoint."""
        checkpoint, shared = carried
        if shared is None:
            return CheckpointMessage(checkpoint.partition, checkpoint.state)
        if shared in self._sent:
            return CheckpointMessage(checkpoint.partition, checkpoint.state, shared_id=shared)
        self._sent = [*self._sent, shared][-_REMEMBERED:]
        return CheckpointMessage(checkpoint.partition, checkpoint.state, checkpoint.shared)


class PartitionKey(NamedTuple):
    """The key of a state."""

    namespace: str
    table: str
    table_version: int
    partition: str


class CheckpointStore(Protocol):
    """A store of states. A state survives the process once :meth:`put` has returned.

    In a store with transactions, a state is committed with its transaction.
    """

    def get(self, key: PartitionKey) -> bytes | None:
        """The latest state, or None. Empty bytes are a state."""

    def put(self, key: PartitionKey, state: bytes) -> None:
        """Replace the state; it has at most ``MAX_STATE_BYTES``."""

    def delete(self, key: PartitionKey) -> None:
        """Delete the state, if there is one."""


class DaemonCheckpointStore:
    """The daemon as a :class:`CheckpointStore`: its log, then the manifest of the table.

    A state survives ``kill -9`` of the daemon. After the loss of the daemon's disk, an earlier
    state remains: that of the table's files.
    """

    def __init__(self, act: Act, prefix: str = "", *, of_any_version: bool = False) -> None:
        """Make a store whose partition names begin with ``prefix``.

        Args:
            act: ``client.action``.
            of_any_version: States are independent of the current table version; the prefix must
                distinguish versions.
        """
        self._act = act
        self._prefix = prefix
        self._any_version = of_any_version

    def get(self, key: PartitionKey) -> bytes | None:
        """The state in the daemon's log; None if there is none, or the table has another version.

        Raises:
            ClientError: The daemon refused or is unreachable.
        """
        found = self._call("checkpoint_get", key)
        is_of_it = self._any_version or found.table_version == key.table_version
        return found.state if is_of_it else None

    def put(self, key: PartitionKey, state: bytes) -> None:
        """Replace the state; it is in the log when this returns.

        Raises:
            InvalidRequest: It exceeds a limit, or the table has another version than the key.
            ClientError: The daemon refused or is unreachable.
        """
        text = base64.b64encode(state).decode()
        self._call("checkpoint_put", key, state=text, **self._version(key))

    def delete(self, key: PartitionKey) -> None:
        """Delete the state, if there is one. Raises ClientError."""
        if self.get(key) is not None:
            self._call("checkpoint_delete", key, **self._version(key))

    def _version(self, key: PartitionKey) -> dict[str, int]:
        return {} if self._any_version else {"table_version": key.table_version}

    def _call(self, kind: str, key: PartitionKey, **fields: object) -> StoredCheckpoint:
        partition = partition_name(f"{self._prefix}{key.partition}")
        body = {"namespace": key.namespace, "table": key.table, "partition": partition, **fields}
        [answer] = self._act(kind, body)
        return msgspec.convert(answer, StoredCheckpoint)
