"""Errors as Flight clients see them.

Every error leaves through :func:`flight_error`, with its JSON in the trailer :data:`TRAILER`.
Arrow's own errors carry the first three statuses; Flight errors the others, with the JSON in
``extra_info`` too. Tracebacks, source paths and texts of unknown exceptions do not leave the
process (tests/server/flight/test_refusals).

pyarrow converts a handler's exception to a status in C++. Flight errors have six statuses, none of
Arrow's three among them. To any other exception's message it appends ". Detail: Python exception: "
and the text of ``traceback.format_exception``, which no exception can prevent; ours reduce that
text to their ``code``.

Source: pyarrow's ``_flight.pyx`` (``_flight_error_to_status``), ``arrow/python/common.cc``
(``ConvertPyError``, ``PythonErrorDetail``), ``arrow/flight/transport.cc``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import structlog

from ingester.errors import (
    ClientGone,
    FencedOff,
    IngesterError,
    InternalFailure,
    StoreUnreachable,
    kind_of,
    limit_of,
)
from ingester.secret_texts import masked
from ingester.shown_text import escaped
from persist.manifest import Fenced, ManifestDamaged
from persist.store import StoreError

if TYPE_CHECKING:
    from ingester.observability.tracing.calls import CallTrace

log = structlog.get_logger(__name__)

_FLIGHT: dict[str, type[fl.FlightError]] = {
    "UNAVAILABLE": fl.FlightUnavailableError,
    "DEADLINE_EXCEEDED": fl.FlightTimedOutError,
    "UNAUTHENTICATED": fl.FlightUnauthenticatedError,
    "PERMISSION_DENIED": fl.FlightUnauthorizedError,
    "INTERNAL": fl.FlightInternalError,
}


class _SaidOnce(Exception):
    """Returns its message once, for the status, and an empty text for the traceback."""

    _said = False

    def __str__(self) -> str:
        if self._said:
            return ""
        self._said = True
        return str(self.args[0])


def _named(code: str, theirs: type[Exception]) -> type[Exception]:
    """Make an error class that a traceback shows as ``code``."""
    names = {"__module__": "builtins", "__qualname__": code, "__doc__": f"``{code}``"}
    return type(code, (_SaidOnce, theirs), names)


_ARROW: dict[str, type[Exception]] = {
    "INVALID_ARGUMENT": _named("invalid", pa.ArrowInvalid),
    "NOT_FOUND": _named("not_found", pa.ArrowKeyError),
    "UNIMPLEMENTED": _named("unimplemented", pa.ArrowNotImplementedError),
}

TRAILER = "ingester-error-bin"
"""The JSON of every refusal. In ``grpc-status-details-bin``, where Arrow puts ``extra_info``, it
would make a Flight error of Arrow's own errors in C++ and Python."""

_ENDS_OF_LINES = str.maketrans("\r\n\t", "   ")
LOOKED_AT_CHARS = 8192
"""A longer message is cut before it is searched: a client's input may make it megabytes."""
HEAD_BYTES, TAIL_BYTES = 500, 250
"""Bytes kept of a long message. gRPC clients drop answers with more than 8 KiB of trailers, status
included, and the trailers have the message up to four times, escaped."""


def flight_error(error: BaseException) -> Exception:
    """Return the exception that pyarrow converts to the right gRPC status."""
    known = known_error(error)
    kind = kind_of(known)
    message = shortened(known.message)
    if kind.status in _ARROW:
        refusal: Exception = _ARROW[kind.status](message)
        return refusal
    failure: Exception = _FLIGHT[kind.status](message, error_json(known))
    return failure


def error_json(error: IngesterError) -> bytes:
    """Encode the error for clients: ``code``, ``message`` and details."""
    message = shortened(error.message)
    extra: dict[str, Any] = {"code": kind_of(error).code, "message": message, **error.details}
    if error.retry_after_s is not None:
        extra["retry_after_s"] = error.retry_after_s
    return msgspec.json.encode(extra)


def shortened(message: str) -> str:
    """Return the message as one line that gRPC can carry; of a long one, head and tail."""
    if len(message) > LOOKED_AT_CHARS:
        half = LOOKED_AT_CHARS // 2
        message = f"{message[:half]} … {message[-half:]}"
    data = escaped(masked(message).translate(_ENDS_OF_LINES)).encode()
    if len(data) <= HEAD_BYTES + TAIL_BYTES:
        return data.decode()
    head, tail = data[:HEAD_BYTES], data[-TAIL_BYTES:]
    return f"{head.decode(errors='ignore')} … {tail.decode(errors='ignore')}"


@contextmanager
def refusals(
    context: Any,
    refused: Callable[[str], object] = lambda code: None,
    gone: Callable[[], object] = lambda: None,
    limited: Callable[[str], object] = lambda limit: None,
    trace: CallTrace | None = None,
) -> Iterator[None]:
    """Convert exceptions raised inside to errors that a client may see.

    Args:
        context: the call's; pyarrow's ``ServerCallContext``.
        refused: receives the ``code`` of a refusal.
        gone: called when the client has disconnected.
        limited: receives the setting of ``[limits]`` or ``[query]`` that has refused a request.
        trace: the call's trace, which the error names.
    """
    try:
        yield
    except (fl.FlightError, GeneratorExit):
        raise
    except ClientGone:
        gone()
        raise fl.FlightCancelledError("the client has gone") from None
    except BaseException as exc:
        if isinstance(exc, IngesterError) and (limit := limit_of(exc)) is not None:
            limited(limit)
        trace_id = None if trace is None else trace.trace_id
        raise _with_trailer(context, exc, trace_id, refused) from None


def _with_trailer(
    context: Any, error: BaseException, trace_id: str | None, refused: Callable[[str], object]
) -> Exception:
    # In a frame of its own: a name for an error that goes through this frame would make a cycle of
    # the two, and what the frames before it hold, a batch, would wait for the collector.
    known = known_error(error, trace_id)
    if trace_id is not None:
        known = _with_details(known, {"trace_id": trace_id, **known.details})
    refused(kind_of(known).code)
    log.debug("request refused", code=kind_of(known).code, message=known.message)
    context.add_trailer(TRAILER, error_json(known))
    told = flight_error(known)
    _leave_frames(error)
    return told


def _leave_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error.

    A stream that keeps its refusal would be kept by the refusal's frames: the call's reader, with
    its last message, would wait for the garbage collector.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


@contextmanager
def says_answered(batches: Callable[[], int]) -> Iterator[None]:
    """Add the number of answered batches to an error; inside :func:`refusals`.

    pyarrow's client drops unread answers when it finds an error while sending.
    """
    try:
        yield
    except (ClientGone, fl.FlightError):
        raise
    except Exception as exc:
        raise _with_answered(exc, batches()) from exc


def _with_answered(error: Exception, batches: int) -> IngesterError:
    known = known_error(error)
    return _with_details(known, {**known.details, "answered": batches})


def _with_details(known: IngesterError, details: dict[str, object]) -> IngesterError:
    return type(known)(known.message, retry_after_s=known.retry_after_s, details=details)


@contextmanager
def no_flight_errors(context: Any) -> Iterator[None]:
    """Replace Flight errors in GetSchema, which pyarrow makes UNKNOWN; around :func:`refusals`.

    They keep their ``extra_info``.
    """
    try:
        yield
    except fl.FlightError as exc:
        context.add_trailer("grpc-status-details-bin", exc.extra_info)
        raise _named(msgspec.json.decode(exc.extra_info)["code"], Exception)(str(exc)) from None


def known_error(error: BaseException, trace_id: str | None = None) -> IngesterError:
    """Return the error that a caller may see; an unknown one is logged.

    Args:
        trace_id: the trace named in the log line.
    """
    if isinstance(error, IngesterError):
        return error
    if isinstance(error, StoreError):
        return StoreUnreachable(f"the object store cannot be reached: {error}", retry_after_s=2.0)
    if isinstance(error, Fenced):
        return FencedOff("a later process runs under this ingester's id; this one is stopping")
    if isinstance(error, ManifestDamaged):
        return InternalFailure(f"the table's manifest is damaged: {error}")
    failure_id = uuid.uuid4().hex[:12]
    named = {} if trace_id is None else {"trace_id": trace_id}
    log.error(
        "request failed", failure_id=failure_id, exc_info=error, runbook="internal-error", **named
    )
    return InternalFailure(f"internal error {failure_id}; the daemon's log has the details")
