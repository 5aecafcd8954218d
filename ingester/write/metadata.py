"""The ``app_metadata`` of a batch: its sequence, and a checkpoint that travels with it.

Law of this file: pure; every field is checked for presence, type and meaning, an unknown one is
refused by name.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TypeVar

import msgspec

from ingester.errors import InvalidRequest

T = TypeVar("T")

MAX_SEQUENCE = 2**63 - 1
MAX_METADATA_BYTES = 1 << 20
"""The limit for one batch, checkpoint included: it is kept with the batch, in the log too."""


class CheckpointField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An opaque state that travels with a batch; ``state`` is base64."""

    partition: str
    state: str


class BatchMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A batch's ``app_metadata``."""

    sequence: int | None = None
    checkpoint: CheckpointField | None = None

    def checkpoint_bytes(self) -> tuple[str, bytes] | None:
        """The checkpoint as (partition, state); None where the batch has none.

        Raises:
            InvalidRequest: the state is not base64.
        """
        if self.checkpoint is None:
            return None
        try:
            state = base64.b64decode(self.checkpoint.state, validate=True)
        except ValueError as exc:
            raise InvalidRequest(f"app_metadata: checkpoint state is not base64: {exc}") from exc
        return self.checkpoint.partition, state


NO_METADATA = BatchMetadata()
_decode = msgspec.json.Decoder(BatchMetadata).decode


def parse_metadata(raw: bytes, origin: str | None) -> BatchMetadata:
    """Read what a client says of a batch.

    Args:
        origin: the origin of the batch's stream; without one a sequence is refused.

    Raises:
        InvalidRequest: what is wrong with it.
    """
    if not raw:
        return NO_METADATA
    metadata = decode_object("app_metadata", raw, _decode)
    if metadata.sequence is not None:
        if origin is None:
            raise InvalidRequest(
                "app_metadata: 'sequence' needs an 'origin' in the stream's descriptor"
            )
        if not 0 <= metadata.sequence <= MAX_SEQUENCE:
            raise InvalidRequest(f"app_metadata: sequence {metadata.sequence} is out of range")
    return metadata


def decode_object(what: str, raw: bytes, decode: Callable[[bytes], T]) -> T:
    """Read a JSON object by its decoder; ``InvalidRequest`` names ``what`` it was to be."""
    try:
        return decode(raw)
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"{what}: {exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidRequest(f"{what} is not a JSON object: {exc}") from exc


class RisingSequences:
    """Checks that the sequences of one stream rise.

    A sequence that came again in one stream would count as a duplicate, and not be kept.
    """

    def __init__(self) -> None:
        self._last = -1

    def check(self, sequence: int | None) -> None:
        """Raise :class:`InvalidRequest` for the next batch's sequence if it does not rise."""
        if sequence is None:
            return
        last, self._last = self._last, sequence
        if sequence <= last:
            raise InvalidRequest(
                f"app_metadata: sequence {sequence} comes after {last} in one stream, where they"
                " rise; what is sent again needs a new stream"
            )
