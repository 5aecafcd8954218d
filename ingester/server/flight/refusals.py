"""Errors as Flight clients see them.

Law of this file: every error leaves through :func:`flight_error`, and with it its JSON in the
trailer :data:`TRAILER`. The first three statuses are Arrow's own errors, the others Flight errors
with the JSON in ``extra_info``, too; nothing that we did not write for a caller (a traceback, a
path of the source, an unknown exception's text) gets out.

pyarrow turns what a handler raises into a status in C++: Flight errors have six statuses, none of
the first three among them, and every other exception gets ". Detail: Python exception: " and what
``traceback.format_exception`` makes of it put behind its message. No exception can prevent that;
ours make it their ``code`` alone, where it would be the class and the message again.

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
    StoreAway,
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
    """Gives its message to whoever asks first, which is the status, and none to the traceback."""

    _said = False

    def __str__(self) -> str:
        if self._said:
            return ""
        self._said = True
        return str(self.args[0])


def _named(code: str, theirs: type[Exception]) -> type[Exception]:
    """Make a class of such errors that a traceback shows as ``code``."""
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
"""A longer message is cut before anything is looked for in it: a client may make it megabytes."""
HEAD_BYTES, TAIL_BYTES = 500, 250
"""The bytes that are kept of a long message. gRPC's clients drop an answer of more than 8 KiB of
trailers, status and all, and a message stands in them up to four times, escaped."""


def flight_error(error: BaseException) -> Exception:
    """The exception that pyarrow turns into the right gRPC status; see :func:`error_json`."""
    known = known_error(error)
    kind = kind_of(known)
    message = shortened(known.message)
    if kind.status in _ARROW:
        refusal: Exception = _ARROW[kind.status](message)
        return refusal
    failure: Exception = _FLIGHT[kind.status](message, error_json(known))
    return failure


def error_json(error: IngesterError) -> bytes:
    """Encode the error for clients: ``code``, ``message``, and what else helps."""
    message = shortened(error.message)
    extra: dict[str, Any] = {"code": kind_of(error).code, "message": message, **error.details}
    if error.retry_after_s is not None:
        extra["retry_after_s"] = error.retry_after_s
    return msgspec.json.encode(extra)


def shortened(message: str) -> str:
    """Bring a message into one line that gRPC can carry: head and tail where it is long."""
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
    """Turn whatever is raised inside into what a client may see.

    Args:
        context: the call's; pyarrow's ``ServerCallContext``.
        refused: is told the ``code`` of what a caller is refused for.
        gone: is told that nobody was left to be answered.
        limited: is told the setting of ``[limits]`` that a caller is refused for.
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
    """Part an error from the frames that it went through.

    Whoever keeps it, as a stream keeps what it was refused for, is itself kept by these frames: the
    call's reader, with the message that it read last, would wait for the collector.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


@contextmanager
def says_answered(batches: Callable[[], int]) -> Iterator[None]:
    """Let an error say how many batches were answered before it; inside :func:`refusals`.

    pyarrow's client throws away answers that it has not read when it finds an error while it sends.
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

    They keep the ``extra_info`` that they have everywhere else.
    """
    try:
        yield
    except fl.FlightError as exc:
        context.add_trailer("grpc-status-details-bin", exc.extra_info)
        raise _named(msgspec.json.decode(exc.extra_info)["code"], Exception)(str(exc)) from None


def known_error(error: BaseException, trace_id: str | None = None) -> IngesterError:
    """Return the error, or one that a caller may see instead; an unknown one is logged.

    Args:
        trace_id: the trace that the log's line names.
    """
    if isinstance(error, IngesterError):
        return error
    if isinstance(error, StoreError):
        return StoreAway(f"the object store cannot be reached: {error}", retry_after_s=2.0)
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
