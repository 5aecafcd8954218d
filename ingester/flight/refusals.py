"""Errors as Flight clients see them.

Law of this file: every error leaves through :func:`flight_error`. The first three statuses are
Arrow's own errors, the others Flight errors with ``extra_info``; nothing that we did not write for
a caller (a traceback, a path of the source, an unknown exception's text) gets out.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import structlog

from ingester.errors import FencedOff, IngesterError, InternalFailure, StoreAway, kind_of
from persist.manifest import Fenced, ManifestDamaged
from persist.store import StoreError

log = structlog.get_logger(__name__)

_FLIGHT: dict[str, type[fl.FlightError]] = {
    "UNAVAILABLE": fl.FlightUnavailableError,
    "DEADLINE_EXCEEDED": fl.FlightTimedOutError,
    "UNAUTHENTICATED": fl.FlightUnauthenticatedError,
    "PERMISSION_DENIED": fl.FlightUnauthorizedError,
    "INTERNAL": fl.FlightInternalError,
}
_ARROW: dict[str, type[Exception]] = {
    "INVALID_ARGUMENT": pa.ArrowInvalid,
    "NOT_FOUND": pa.ArrowKeyError,
    "UNIMPLEMENTED": pa.ArrowNotImplementedError,
}


HEAD_BYTES, TAIL_BYTES = 500, 250
"""Of a message. gRPC's clients drop an answer of more than 8 KiB of trailers, status and all, and a
message stands in them up to four times, escaped."""


def flight_error(error: BaseException) -> Exception:
    """The exception that pyarrow turns into the right gRPC status."""
    known = error if isinstance(error, IngesterError) else _wrapped(error)
    kind = kind_of(known)
    message = shortened(known.message)
    if kind.status in _ARROW:
        refusal: Exception = _ARROW[kind.status](message)
        return refusal
    extra: dict[str, Any] = {"code": kind.code, "message": message, **known.details}
    if known.retry_after_s is not None:
        extra["retry_after_s"] = known.retry_after_s
    failure: Exception = _FLIGHT[kind.status](message, msgspec.json.encode(extra))
    return failure


def shortened(message: str) -> str:
    """The message in one line that gRPC can carry: its head and its tail where it is long."""
    printable = "".join(c if c.isprintable() else " " for c in message)
    data = printable.encode(errors="replace")
    if len(data) <= HEAD_BYTES + TAIL_BYTES:
        return data.decode()
    head, tail = data[:HEAD_BYTES], data[-TAIL_BYTES:]
    return f"{head.decode(errors='ignore')} … {tail.decode(errors='ignore')}"


@contextmanager
def refusals() -> Iterator[None]:
    """Turn whatever is raised inside into what a client may see."""
    try:
        yield
    except fl.FlightError:
        raise
    except GeneratorExit:
        raise
    except BaseException as exc:
        raise flight_error(exc) from None


def _wrapped(error: BaseException) -> IngesterError:
    if isinstance(error, StoreError):
        return StoreAway(f"the object store cannot be reached: {error}", retry_after_s=2.0)
    if isinstance(error, Fenced):
        return FencedOff("a later process runs under this ingester's id; this one is stopping")
    if isinstance(error, ManifestDamaged):
        return InternalFailure(f"the table's manifest is damaged: {error}")
    failure_id = uuid.uuid4().hex[:12]
    log.error("request failed", failure_id=failure_id, exc_info=error, runbook="internal-error")
    return InternalFailure(f"internal error {failure_id}; the daemon's log has the details")
