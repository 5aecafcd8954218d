"""The answers that DoPut sends, one for each batch."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from ingester.errors import ClientGone


class PutAnswer(msgspec.Struct, frozen=True):
    """The metadata of one PutResult. ``sequence`` and ``epoch`` are the daemon's own."""

    accepted: bool
    sequence: int
    epoch: int
    duplicate: bool = False
    memory_sequence: int | None = None
    durable_sequence: int | None = None
    first: bool = False
    traces: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether batches of the stream may name their span; in the first answer only."""


class SyncPutAnswer(PutAnswer, frozen=True):
    """The answer to a replication message; the fields from ``code`` on explain a refusal."""

    code: str | msgspec.UnsetType = msgspec.UNSET
    message: str | msgspec.UnsetType = msgspec.UNSET
    retry_after_s: float | msgspec.UnsetType = msgspec.UNSET
    owner: str | msgspec.UnsetType = msgspec.UNSET
    endpoint: str | msgspec.UnsetType = msgspec.UNSET


class CopyAnswer(msgspec.Struct, frozen=True):
    """The answer to a batch of a copy, with the rows that the copy has so far."""

    rows: int
    accepted: bool = True


encode_answer = msgspec.json.Encoder().encode


def send_answer(writer: Any, answer: bytes) -> None:
    """Send one PutResult.

    Raises:
        ClientGone: the client has ended the call, or the connection is gone.
    """
    try:
        writer.write(pa.py_buffer(answer))
    except (pa.ArrowException, OSError) as exc:
        raise ClientGone(str(exc)) from exc
