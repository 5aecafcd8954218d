"""A source's state: checked before it is sent, and put into a batch's metadata.

Law of this file: pure, with no thread, socket or clock. What the daemon would refuse is refused
here, in its words.

Bytes that many partitions share go out once in a stream, and by their SHA-256 after that. A daemon
remembers the newest few of a stream, so a stream of more has them sent again. A stream that is
opened anew knows of nothing that was sent: the daemon may be another one by then.

    state of p, shared A ──▶ A's bytes
    state of q, shared A ──▶ A's id
        the connection is lost, and another stream is opened
    state of q, shared A ──▶ A's bytes
"""

import datetime
import hashlib
from typing import Any, NamedTuple

import msgspec

from ingester.shown_text import has_hidden, shown_name

from ..errors import InvalidRequest

MAX_STATE_BYTES = 1 << 20
"""The limit of a state, and of the bytes that it shares with others."""
MAX_PARTITION_BYTES = 256
_AS = "a source partition and its state, as ('topic-0', b'offset 17')"
_REMEMBERED = 8
"""The shared bytes of a stream that are sent by their id again; a daemon remembers 16."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A source's state, stored with the batch that reaches it.

    ``partition`` names the part of the source, as ``topic-0``, in up to 256 bytes. ``shared`` are
    bulky bytes that many partitions have in common (a schema, a dictionary for decompression):
    they are sent once in a stream and stored once. ``state`` and ``shared`` have 1 MiB at most.
    """

    partition: str
    state: bytes
    shared: bytes | None = None


class StoredCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A source partition's state at the daemon; None where there is none.

    ``state`` is in the log: it survives the daemon's process. ``durable_state`` is in object
    storage: it survives the machine. ``durable`` says that they are the same.
    """

    partition: str
    table_version: int = 1
    state: bytes | None = None
    shared: bytes | None = None
    durable: bool = True
    durable_state: bytes | None = None
    durable_shared: bytes | None = None


class ListedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in a listing: its sizes, the time of its putting, and who has written it."""

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
    """A checkpoint as it is sent; msgspec writes bytes as base64. Never both of the shared."""

    partition: str
    state: bytes
    shared: bytes | None = None
    shared_id: str | None = None


def checked(given: Any) -> Checkpoint | None:
    """A checkpoint that the daemon takes, from what a caller passes; None where that is None.

    Raises:
        InvalidRequest: not a partition and its state, or beyond the limits.
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
    """The name of a source partition, checked.

    Raises:
        InvalidRequest: not 1 to 256 bytes of text, or with a control character.
    """
    if not isinstance(value, str):
        raise InvalidRequest(f"checkpoint: the partition is text, not {value!r}: expected {_AS}")
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
            f"checkpoint: the {which} is bytes, not {type(value).__name__}: expected {_AS}"
        )
    if len(value) > MAX_STATE_BYTES:
        raise InvalidRequest(
            f"checkpoint: {which} has {len(value)} B; at most {MAX_STATE_BYTES} are taken. What"
            " many partitions have in common belongs into 'shared'; bulk belongs into a table"
        )
    return value


def shared_id(shared: bytes) -> str:
    """The name of shared bytes: their SHA-256, in hex."""
    return hashlib.sha256(shared).hexdigest()


class Carried(NamedTuple):
    """A checkpoint on its way with a batch, and the id of its shared bytes, if it has some."""

    checkpoint: Checkpoint
    shared_id: str | None


class SentShared:
    """The shared bytes that one stream has sent, the newest few, by their ids."""

    def __init__(self) -> None:
        self._sent: list[str] = []

    def message(self, carried: Carried) -> CheckpointMessage:
        """The form in which a checkpoint is sent next."""
        checkpoint, shared = carried
        if shared is None:
            return CheckpointMessage(checkpoint.partition, checkpoint.state)
        if shared in self._sent:
            return CheckpointMessage(checkpoint.partition, checkpoint.state, shared_id=shared)
        self._sent = [*self._sent, shared][-_REMEMBERED:]
        return CheckpointMessage(checkpoint.partition, checkpoint.state, checkpoint.shared)
