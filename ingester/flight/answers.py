"""What DoPut sends back for each batch."""

from __future__ import annotations

import msgspec


class PutAnswer(msgspec.Struct, frozen=True):
    """The metadata of one PutResult; ``sequence`` and ``epoch`` are the ingester's own."""

    accepted: bool
    sequence: int
    epoch: int
    duplicate: bool = False
    memory_sequence: int | None = None
    durable_sequence: int | None = None
    first: bool = False


class SyncAnswer(PutAnswer, frozen=True):
    """The answer to a replication message; the last three where it is not taken for now."""

    code: str | msgspec.UnsetType = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET
    retry_after_s: float | msgspec.UnsetType = msgspec.UNSET


encode_answer = msgspec.json.Encoder().encode
