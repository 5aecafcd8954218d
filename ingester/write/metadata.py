"""The ``app_metadata`` of a batch: its sequence, and a checkpoint that belongs to it.

Every field is checked for presence, type and meaning; unknown fields are refused by name. A
checkpoint's state is opaque.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeVar

import msgspec

from ingester.buffer import TableBuffer
from ingester.errors import BadRequest, limit_facts
from ingester.origins.checkpoint_state import MAX_STATE_BYTES, SharedBytes, SourceCheckpoint
from ingester.origins.checkpoints import Checkpoints
from ingester.schema.limits import check_shown
from ingester.shown_text import shown_name
from persist.manifest import SharedState
from persist.manifest.actions import is_before, parse_time

T = TypeVar("T")

MAX_SEQUENCE = 2**63 - 1
STATES_BYTES = 2 * 4 * -(-MAX_STATE_BYTES // 3)
"""The most bytes that the two states of a batch take in its metadata, in base64."""
MAX_PARTITION_BYTES = 256
"""The longest name of a source's partition."""
MAX_TABLE_BYTES = 64 << 20
"""The most bytes of all states of one table: each reader of its manifest holds them in memory."""
MOST_SENT = 16
"""How many shared states of a stream later batches may name instead of sending them."""


class CheckpointField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An opaque state that travels with a batch; ``state`` and ``shared`` are base64."""

    partition: str
    state: str
    shared: str | None = None
    shared_id: str | None = None


class _Sent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sequence: int | None = None
    checkpoint: CheckpointField | None = None
    traceparent: str | None = None


class ReceivedMetadata(NamedTuple):
    """A batch's ``app_metadata``."""

    sequence: int | None = None
    checkpoint: SourceCheckpoint | None = None
    traceparent: str | None = None
    """The span that has made the batch, in the form of W3C Trace Context."""


NO_METADATA = ReceivedMetadata()
_decode = msgspec.json.Decoder(_Sent).decode


def untraced(metadata: ReceivedMetadata) -> tuple[ReceivedMetadata, str | None]:
    """Separate the caller's span from the rest, which is often empty."""
    rest = metadata._replace(traceparent=None)
    return (NO_METADATA if rest == NO_METADATA else rest), metadata.traceparent


class SharedStates:
    """The shared states of one stream's batches. In the thread that reads them.

    ``known`` returns those of the table, by id.
    """

    def __init__(self) -> None:
        self.known: Callable[[], Mapping[str, SharedState]] = dict
        self._sent: dict[str, SharedBytes] = {}

    def sent(self, state: bytes) -> SharedBytes:
        """Note the shared state of a batch."""
        shared = SharedBytes.of(state)
        self._sent.pop(shared.id, None)
        self._sent[shared.id] = shared
        if len(self._sent) > MOST_SENT:
            del self._sent[next(iter(self._sent))]
        return shared

    def find(self, shared_id: str) -> SharedBytes | None:
        """Find the state that a batch names; None if it is unknown."""
        if (found := self._sent.get(shared_id)) is not None:
            return found
        there = self.known().get(shared_id)
        return None if there is None else self.sent(base64.b64decode(there.state))


def parse_checkpoint(
    what: str,
    partition: str,
    state: str | None,
    shared: tuple[str | None, str | None],
    states: SharedStates,
) -> SourceCheckpoint:
    """Read a checkpoint.

    Args:
        what: the part of the request that has it, for errors.
        state: base64; None deletes the partition's.
        shared: bytes in base64, or the id of a known state; both None without one.

    Raises:
        BadRequest: what is wrong with it.
    """
    check_partition(what, partition)
    encoded, shared_id = shared
    if encoded is not None and shared_id is not None:
        raise BadRequest(f"{what}: 'shared' and 'shared_id' exclude each other")
    bulk = None
    if encoded is not None:
        bulk = states.sent(_decoded(what, "shared state", encoded))
    elif shared_id is not None and (bulk := states.find(shared_id)) is None:
        raise BadRequest(
            f"{what}: shared state {shown_name(shared_id)} is not known here; send its bytes as"
            " 'shared' once in each stream"
        )
    decoded = None if state is None else _decoded(what, "checkpoint state", state)
    return SourceCheckpoint(partition, decoded, bulk, _now())


_second = (0, "")
"""The last second and its text: most batches come within the same one."""


def _now() -> str:
    global _second
    at, known = time.time(), _second
    whole = int(at)
    if known[0] != whole:
        known = _second = (whole, datetime.fromtimestamp(whole, UTC).isoformat()[:-6])
    return f"{known[1]}.{int((at - whole) * 1000):03d}+00:00"


def check_partition(what: str, partition: str) -> None:
    """Raise :class:`BadRequest` for a name that no partition of a source may have."""
    if partition.isprintable() and 0 < len(partition) <= MAX_PARTITION_BYTES // 4:
        return  # as nearly all are: no look at each character
    try:
        nbytes = len(partition.encode())
    except UnicodeEncodeError:
        raise BadRequest(f"{what}: partition {shown_name(partition)} is not UTF-8") from None
    if not 0 < nbytes <= MAX_PARTITION_BYTES:
        raise BadRequest(
            f"{what}: a partition's name has 1 to {MAX_PARTITION_BYTES} bytes, this one {nbytes}"
        )
    check_shown(f"{what}: partition", partition)


def fitted(
    table: TableBuffer, checkpoints: Checkpoints, checkpoint: SourceCheckpoint
) -> SourceCheckpoint:
    """Make a state later than the one that the table has: clocks of daemons differ. Any thread.

    Raises:
        BadRequest: the table has no room for it.
    """
    old = table.state.checkpoints.get(checkpoint.partition)
    if checkpoints.is_full_for(table.key, checkpoint):
        most = checkpoints.most_in_table
        raise BadRequest(
            f"table {table.namespace}/{table.name} keeps the states of {most} partitions of"
            f" sources; limits.checkpoints is {most}: delete those that nobody needs (`ingester"
            " checkpoints`)",
            details=limit_facts("limits.checkpoints", most, most + 1),
        )
    kept, grows = checkpoints.room(table.key, checkpoint)
    if grows > 0 and kept + grows > MAX_TABLE_BYTES:
        raise BadRequest(
            f"table {table.namespace}/{table.name} keeps {kept} B"
            f" of checkpoints, and takes {MAX_TABLE_BYTES} at most: delete those that nobody needs"
            " (`ingester checkpoints`), or keep less in each"
        )
    if old is None or old.at is None or checkpoint.at is None:
        return checkpoint
    # Texts of one form sort as the moments that they name: nearly every batch ends here.
    same_form = len(old.at) == len(checkpoint.at) and old.at[-6:] == checkpoint.at[-6:] == "+00:00"
    if same_form and old.at < checkpoint.at:
        return checkpoint
    there = parse_time(old.at)
    if there is None or is_before(old.at, checkpoint.at):
        return checkpoint
    later = there + timedelta(milliseconds=1)
    return checkpoint._replace(at=later.isoformat(timespec="milliseconds"))


def _decoded(what: str, which: str, text: str) -> bytes:
    try:
        state = base64.b64decode(text, validate=True)
    except ValueError as exc:
        raise BadRequest(f"{what}: {which} is not base64: {exc}") from exc
    if len(state) > MAX_STATE_BYTES:
        raise BadRequest(
            f"{what}: {which} has {len(state)} B; at most {MAX_STATE_BYTES} are taken. What many"
            " partitions have in common belongs into 'shared'; bulk belongs into a table"
        )
    return state


def parse_metadata(raw: bytes, origin: str | None, states: SharedStates) -> ReceivedMetadata:
    """Read what a client says of a batch.

    Args:
        origin: the origin of the batch's stream; without one a sequence is refused.

    Raises:
        BadRequest: what is wrong with it.
    """
    if not raw:
        return NO_METADATA
    metadata = decode_object("app_metadata", raw, _decode)
    if metadata.sequence is not None:
        if origin is None:
            raise BadRequest(
                "app_metadata: 'sequence' needs an 'origin' in the stream's descriptor"
            )
        if not 0 <= metadata.sequence <= MAX_SEQUENCE:
            raise BadRequest(f"app_metadata: sequence {metadata.sequence} is out of range")
    if (sent := metadata.checkpoint) is None:
        return ReceivedMetadata(metadata.sequence, None, metadata.traceparent)
    shared = (sent.shared, sent.shared_id)
    checkpoint = parse_checkpoint("app_metadata", sent.partition, sent.state, shared, states)
    return ReceivedMetadata(metadata.sequence, checkpoint, metadata.traceparent)


def decode_object(what: str, raw: bytes, decode: Callable[[bytes], T]) -> T:
    """Read a JSON object by its decoder; ``BadRequest`` names ``what`` it was to be."""
    try:
        return decode(raw)
    except msgspec.ValidationError as exc:
        raise BadRequest(f"{what}: {exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadRequest(f"{what} is not a JSON object: {exc}") from exc


class RisingSequences:
    """Checks that the sequences of one stream rise.

    A sequence that came again in one stream would count as a duplicate, and not be kept.
    """

    def __init__(self) -> None:
        self._last = -1

    def check(self, sequence: int | None) -> None:
        """Raise :class:`BadRequest` for the next batch's sequence if it does not rise."""
        if sequence is None:
            return
        last, self._last = self._last, sequence
        if sequence <= last:
            raise BadRequest(
                f"app_metadata: sequence {sequence} comes after {last} in one stream, where they"
                " rise; what is sent again needs a new stream"
            )
