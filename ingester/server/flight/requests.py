"""Descriptors and action bodies, checked before they are used.

Pure. Every field is checked for presence, type and meaning; unknown fields are refused by name.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pyarrow.flight as fl

from ingester.config.levels import parse_level
from ingester.errors import BadRequest
from ingester.replication.messages import MessageColumn
from ingester.schema.limits import check_shown
from ingester.shown_text import shown_name, shown_names
from ingester.write.metadata import MAX_SEQUENCE, decode_object

T = TypeVar("T")

MAX_DESCRIPTOR_BYTES = 1 << 20
MAX_BODY_BYTES = 4 << 20
"""The largest body of an action, which may hold a schema in base64."""
MAX_CRITERIA_BYTES = 1 << 16
_MAX_ORIGIN_BYTES = 255
_MAX_TRANSACTION_BYTES = 128
MAX_DIGEST = 2**64


class WriteCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The command of a DoPut descriptor, or of its path; ``type`` is write or delete.

    ``numbers``: what the sequences of the origin number, batches or rows. ``ack``: the level of
    acknowledgements; null means the table's.
    """

    type: str
    namespace: str
    table: str
    origin: str | None = None
    numbers: str = "batches"
    ack: str | None = None


class ContentRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client says that its transaction contains; the digest is of the client's choice."""

    rows: int
    digest: int


class SyncCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The command of a replication message; see :mod:`ingester.replication`."""

    type: str
    namespace: str
    table: str
    origin: str
    begin: bool = False
    sequence: int | None = None
    last: bool = True
    transaction: str | None = None
    epoch: int | None = None
    content: ContentRequest | None = None
    ack: str | None = None
    columns: list[MessageColumn] = []


class CopyCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The command of a stream of a copy; see :mod:`ingester.copies`."""

    type: str
    namespace: str
    table: str
    copy: str
    primary_key: list[str]


class TableBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``describe_table``."""

    namespace: str
    table: str


class CreateTableBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``create_table``; ``schema`` is an Arrow IPC schema in base64.

    ``publish``: the formats that the table is published in; null leaves it to the settings.
    ``max_age_s``: the table's own ``persist.max_age``, if that is shorter. ``ack``: the level at
    which writes are acknowledged; null leaves it to the settings.
    """

    namespace: str
    table: str
    schema: str
    primary_key: list[str] = []
    partition_by: list[str] | None = None
    sort_by: list[str] = []
    timestamp_unit: str = "us"
    transformers: list[str] | None = None
    publish: list[str] | None = None
    max_age_s: float | None = None
    ack: str | None = None


class PersistBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``persist``: no table means all of the namespace, no namespace everything."""

    namespace: str | None = None
    table: str | None = None
    timeout_s: float = 60.0


class DrainBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``drain``; ``wait_s`` is how long to wait until the daemon is drained."""

    undo: bool = False
    wait_s: float = 0.0


class OriginsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``origins``: no name means all origins; a table needs a name."""

    origin: str | None = None
    namespace: str | None = None
    table: str | None = None


class CheckpointBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``checkpoint_get`` and ``checkpoint_delete``.

    The call is refused if the table is at another ``table_version``.
    """

    namespace: str
    table: str
    partition: str
    table_version: int | None = None


class CheckpointPutBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``checkpoint_put``; ``state`` and ``shared`` are base64."""

    namespace: str
    table: str
    partition: str
    state: str
    shared: str | None = None
    shared_id: str | None = None
    table_version: int | None = None


class CheckpointsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``checkpoints``: no table means all of the namespace, no namespace everything."""

    namespace: str | None = None
    table: str | None = None


class SourceState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a copy's source; ``state`` is base64."""

    partition: str
    state: str


class CopyFinishBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``copy_finish``; ``rows`` are those of the whole copy."""

    namespace: str
    table: str
    copy: str
    rows: int
    checkpoint: SourceState


class CopyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``copy_abort``."""

    namespace: str
    table: str
    copy: str


class FollowersBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``followers``."""

    namespace: str
    table: str


class FollowersPrepareBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``followers_prepare``: the version that a push makes."""

    namespace: str
    table: str
    table_version: int
    push_id: str


class LogLevelBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``log_level``: no level only asks, and ``default`` takes back what was set."""

    level: str | None = None
    logger: str = ""
    for_s: float | None = None


class EmptyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``status``, which takes nothing."""


def check_bytes(what: str, nbytes: int, most: int) -> None:
    """Raise :class:`BadRequest` for a part of a request that is too large."""
    if nbytes > most:
        raise BadRequest(f"{what} has {nbytes} B; at most {most} are taken")


def parse_body(what: str, body: bytes, into: type[T]) -> T:
    """Read a JSON object, an empty body counting as ``{}``, or raise :class:`BadRequest`."""
    return decode_object(what, body or b"{}", msgspec.json.Decoder(into).decode)


def parse_table_path(descriptor: fl.FlightDescriptor) -> tuple[str, str]:
    """Read namespace and table of a path descriptor."""
    parts = descriptor.path or ()
    check_bytes("descriptor path", sum(map(len, parts)), MAX_DESCRIPTOR_BYTES)
    path = [part.decode(errors="replace") for part in parts[:8]]
    if len(parts) != 2:
        more = f" and {len(parts) - 8} more" if len(parts) > 8 else ""
        raise BadRequest(f"descriptor path [{shown_names(path)}]{more} is not [namespace, table]")
    return path[0], path[1]


def parse_put(descriptor: fl.FlightDescriptor) -> WriteCommand | SyncCommand | CopyCommand:
    """Read the descriptor of a DoPut stream.

    Raises:
        BadRequest: malformed.
    """
    if descriptor.descriptor_type == fl.DescriptorType.PATH:
        namespace, table = parse_table_path(descriptor)
        return WriteCommand("write", namespace, table)
    if descriptor.descriptor_type != fl.DescriptorType.CMD:
        raise BadRequest("descriptor: neither a path [namespace, table] nor a JSON command")
    check_bytes("descriptor", len(descriptor.command), MAX_DESCRIPTOR_BYTES)
    kind = parse_body("descriptor", descriptor.command, _Typed).type
    if kind == "sync":
        return _parsed_sync(descriptor.command)
    if kind == "copy":
        copied = parse_body("descriptor", descriptor.command, CopyCommand)
        check_copy_name("descriptor", copied.copy)
        return copied
    if kind not in ("write", "delete"):
        raise BadRequest(
            f"descriptor: type {shown_name(kind)} is not one of write, delete, sync, copy"
        )
    command = parse_body("descriptor", descriptor.command, WriteCommand)
    if command.origin is not None:
        _check_origin(command.origin)
    if command.numbers not in ("batches", "rows"):
        raise BadRequest(
            f"descriptor: numbers {shown_name(command.numbers)} is not one of batches, rows"
        )
    parse_level("descriptor", command.ack)
    return command


def _parsed_sync(body: bytes) -> SyncCommand:
    command = parse_body("descriptor", body, SyncCommand)
    _check_origin(command.origin)
    if command.sequence is not None and not 0 <= command.sequence <= MAX_SEQUENCE:
        raise BadRequest(f"descriptor: sequence {command.sequence} is out of range")
    content = command.content
    if content is not None and not (
        0 <= content.rows <= MAX_SEQUENCE and 0 <= content.digest < MAX_DIGEST
    ):
        raise BadRequest(
            "descriptor: content: rows and digest must be whole numbers, the digest below 2^64"
        )
    parse_level("descriptor", command.ack)
    name = command.transaction
    if name is not None and not 0 < len(name.encode()) <= _MAX_TRANSACTION_BYTES:
        raise BadRequest(f"descriptor: transaction must have 1 to {_MAX_TRANSACTION_BYTES} bytes")
    if name is not None:
        check_shown("descriptor: transaction", name)
    return command


def check_copy_name(what: str, name: str) -> None:
    """Raise :class:`BadRequest` for a name that no copy may have."""
    if not (0 < len(name.encode(errors="replace")) <= _MAX_TRANSACTION_BYTES):
        raise BadRequest(f"{what}: copy must have 1 to {_MAX_TRANSACTION_BYTES} bytes")
    check_shown(f"{what}: copy", name)


def _check_origin(origin: str) -> None:
    if not 0 < len(origin.encode()) <= _MAX_ORIGIN_BYTES:
        raise BadRequest(f"descriptor: origin must have 1 to {_MAX_ORIGIN_BYTES} bytes")
    check_shown("descriptor: origin", origin)


class _Typed(msgspec.Struct):
    type: str
