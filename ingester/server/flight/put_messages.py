"""Reads the messages of a DoPut stream from pyarrow's reader, and sends the answers.

Whatever a client sends becomes a value or a refusal; errors that end the call itself come out as
Flight raised them. A batch is decoded and decompressed inside pyarrow before anything here sees its
size: until then only the process's memory limit bounds it (docs/sizing.md).
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from ingester.errors import BadRequest, ClientGone, MemoryFull, limit_facts
from ingester.schema.limits import ShapeLimits, check_schema
from ingester.write.admission import RETRY_S
from ingester.write.metadata import (
    NO_METADATA,
    STATES_BYTES,
    ReceivedMetadata,
    SharedStates,
    parse_metadata,
)

encode_answer = msgspec.json.Encoder().encode
_ASKED, _TOO_LARGE = re.compile(r"of size (\d+)"), "capacity too large"
"""How pyarrow's errors name the bytes that cannot be allocated."""


@dataclass(frozen=True, slots=True)
class PutLimits:
    """``flight.max_batch_bytes``, ``flight.max_unanswered`` and the limits of shapes."""

    max_batch_bytes: int
    max_unanswered: int
    shapes: ShapeLimits


@contextmanager
def frames_cleared() -> Iterator[None]:
    """Clear the frames of an error that leaves the block, so that it keeps no batch."""
    try:
        yield
    except BaseException as exc:
        error: BaseException | None = exc
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
        raise


def _any_number(schema: pa.Schema) -> None:
    """Accept any number of columns."""


def schema_of(
    reader: Any, limits: ShapeLimits, check_wide: Callable[[pa.Schema], None] = _any_number
) -> pa.Schema:
    """Return the client's schema. ``BadRequest`` if it is missing or its shape is refused.

    Args:
        check_wide: checks a schema with more columns than ``limits.columns`` before other limits.
    """
    try:
        schema = reader.schema
    except (pa.ArrowException, OSError) as exc:
        raise BadRequest(f"the stream has no schema that Arrow can read: {exc}") from exc
    if len(schema) > limits.columns:
        check_wide(schema)
    check_schema("the stream's schema", schema, limits)
    return schema


def next_chunk(reader: Any, max_batch_bytes: int) -> Any:
    """Return the next message, None at the end. ``BadRequest`` if it does not decode.

    That includes a batch that cannot be allocated because it claims more than ``max_batch_bytes``:
    no retry would help. ``MemoryFull`` if there is no memory for a smaller one.
    """
    try:
        return reader.read_chunk()
    except StopIteration:
        return None
    except fl.FlightError:
        raise
    except (pa.ArrowException, OSError, MemoryError) as exc:
        if isinstance(exc, MemoryError) and not _claims_more(exc, max_batch_bytes):
            raise MemoryFull(
                f"memory: no room to decode a batch of the stream: {exc}", retry_after_s=RETRY_S
            ) from exc
        raise BadRequest(f"a batch of the stream does not decode: {exc}") from exc


def _claims_more(error: MemoryError, max_batch_bytes: int) -> bool:
    asked = _ASKED.search(str(error))
    return _TOO_LARGE in str(error) if asked is None else int(asked[1]) > max_batch_bytes


def batch_of(chunk: Any) -> pa.RecordBatch:
    """Return the message's batch. ``BadRequest`` if it has none."""
    if chunk.data is None:
        raise BadRequest("a message of the stream has no record batch")
    return chunk.data


def bytes_of(chunk: Any) -> int:
    """Return the bytes of the message as it arrived, decompressed."""
    nbytes = 0 if chunk.app_metadata is None else int(chunk.app_metadata.size)
    return nbytes if chunk.data is None else nbytes + int(chunk.data.get_total_buffer_size())


def metadata_of(
    chunk: Any, origin: str | None, states: SharedStates, limits: ShapeLimits
) -> ReceivedMetadata:
    """Return the batch's metadata. ``BadRequest`` if it is malformed or too large."""
    raw = chunk.app_metadata
    if raw is None:
        return NO_METADATA
    most = limits.metadata_bytes
    if raw.size > most + STATES_BYTES:
        raise BadRequest(
            f"app_metadata has {raw.size} B; at most {most + STATES_BYTES} are taken:"
            f" limits.metadata_bytes, which is {most}, and the two states of a checkpoint",
            details=limit_facts("limits.metadata_bytes", most, raw.size),
        )
    return parse_metadata(raw.to_pybytes(), origin, states)


def send_answer(writer: Any, answer: bytes) -> None:
    """Send one PutResult.

    Raises:
        ClientGone: the client has ended the call, or the connection is gone.
    """
    try:
        writer.write(pa.py_buffer(answer))
    except (pa.ArrowException, OSError) as exc:
        raise ClientGone(str(exc)) from exc
