"""The daemon's log: one line per event on standard error, in the past tense, with fields.

Every warning and error has the name of an entry of ``deploy/RUNBOOK.md`` in ``runbook``; warnings
of libraries have ``library-warning``. The last ``RECENT`` of them are kept for ``/api/status``. A
traceback has at most ``TRACEBACK_FRAMES`` frames, the innermost ones, whatever
``sys.tracebacklimit`` says (the daemon sets it to 0, because pyarrow sends tracebacks to clients
otherwise). Secrets are masked, control characters are escaped, and an event is always one line. A
line that cannot be written is dropped: a closed terminal does not stop the daemon.

    log = structlog.get_logger()
    log.info("partition persisted", partition="time_day=2026-11-21", rows=10_000, queued_s=0.02)
    log.warning("store was away", url=url, retry_after_s=3.0, runbook="store-away")
"""

import logging
import sys
import traceback
from collections import deque
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, Literal, TextIO, cast

import msgspec
import structlog

from ingester.observability.log_levels import ALL, Level, LogLevels
from ingester.secret_texts import masked
from ingester.shown_text import escaped, escaped_json, escaped_lines

RECENT = 20
TRACEBACK_FRAMES = 30
# Long enough for any message of ours, short enough for a page.
MESSAGE_CHARS = 500

Format = Literal["auto", "json", "console"]
EventDict = MutableMapping[str, Any]

_PROBLEM_LEVELS = frozenset({"warning", "error", "critical"})
_LIBRARY_RUNBOOK = {"opentelemetry": "spans-lost"}
"""The runbook entries of libraries' warnings, where it is not ``library-warning``."""
# Fields that a problem shows in its own places, or not at all.
_NOT_IN_MESSAGE = frozenset({"at", "event", "level", "runbook", "exception", "stack"})


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A warning or error of the log, without its traceback."""

    at: str
    event: str
    message: str
    level: str = "error"
    runbook: str | None = None
    """The entry of ``deploy/RUNBOOK.md`` that says what to do."""


class RecentProblems:
    """The last warnings and errors; written by any thread."""

    def __init__(self) -> None:
        # Appending to a bounded deque and copying it are atomic under CPython's lock.
        self._problems: deque[Problem] = deque(maxlen=RECENT)
        self.count = 0
        """The number of all since the start; two that come at one moment may count as one."""

    def newest_first(self) -> list[Problem]:
        """Return at most ``RECENT`` problems."""
        return list(self._problems)[::-1]

    def __call__(self, _logger: object, _method: str, event: EventDict) -> EventDict:
        """Keep the event if it is a warning or worse; a structlog processor."""
        if event.get("level") in _PROBLEM_LEVELS:
            self.count += 1
            self._problems.append(
                Problem(
                    at=str(event.get("at", "")),
                    event=str(event.get("event", "")),
                    message=_message(event),
                    level=str(event["level"]),
                    runbook=event.get("runbook"),
                )
            )
        return event


def configure_logs(
    level: Level | LogLevels = "info", style: Format = "auto", *, stream: TextIO | None = None
) -> RecentProblems:
    """Configure structlog and the standard library's logging for this process.

    Args:
        level: the least severe level that is written, or levels that may change at run time.
        style: ``auto`` is ``console`` on a terminal and ``json`` elsewhere.
        stream: where lines go; default: standard error.

    Returns:
        The last errors for ``/api/status``. The newest call wins.
    """
    out = stream if stream is not None else sys.stderr
    recent, lines = RecentProblems(), _NamedLoggers(out)
    levels = level if isinstance(level, LogLevels) else LogLevels(level)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            name_runbook,
            render_exception,
            mask_credentials,
            recent,
            *_renderers(style, out),
        ],
        # It is only ever called, so that a function that picks the class will do.
        wrapper_class=cast(Any, levels.bound_logger),
        logger_factory=lines.named,
        cache_logger_on_first_use=False,
    )
    logging.captureWarnings(True)
    root = logging.getLogger()
    root.handlers = [_ToStructlog()]
    root.setLevel(logging.WARNING)
    return recent


def _renderers(style: Format, out: TextIO) -> list[Any]:
    terminal = out.isatty()
    if style == "json" or (style == "auto" and not terminal):
        return [put_first, _render_json]
    # The traceback is text already; the renderer only has to print it.
    return [
        escape_fields,
        structlog.dev.ConsoleRenderer(colors=terminal, timestamp_key="at", sort_keys=False),
    ]


_json = structlog.processors.JSONRenderer(default=str, ensure_ascii=False)


def _render_json(logger: object, method: str, event: EventDict) -> str:
    return escaped_json(str(_json(logger, method, event)))


def escape_fields(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape hidden characters in all fields, tracebacks line by line; a processor."""
    shown: EventDict = {}
    for key, value in event.items():
        if not isinstance(value, bool | int | float | None):
            text = value if isinstance(value, str) else repr(value)
            value = escaped_lines(text) if key == "exception" else escaped(text)
        shown[escaped(key)] = value
    return shown


def store_away(event: str, **fields: object) -> Callable[[Exception, float], None]:
    """Return a callback for ``retry`` that logs an unreachable store and the time of the next
    try."""
    log = structlog.get_logger()

    def tell(error: Exception, wait_s: float) -> None:
        told = {**fields, "error": str(error), "wait_s": round(wait_s, 3)}
        log.warning(event, **told, runbook="store-away")

    return tell


def put_first(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Return the event with time, level and event before its fields; a processor."""
    return {key: event.pop(key) for key in ("at", "level", "event")} | dict(event)


def name_runbook(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Give a warning or error without a runbook entry ``unlisted``; a processor."""
    if event.get("level") in _PROBLEM_LEVELS:
        event.setdefault("runbook", "unlisted")
    return event


def render_exception(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Turn ``exc_info`` into ``error`` (one line) and ``exception`` (a short traceback)."""
    exc_info = event.pop("exc_info", None)
    exc: BaseException | None
    if isinstance(exc_info, BaseException):
        exc = exc_info
    elif isinstance(exc_info, tuple):
        exc = exc_info[1]
    else:
        exc = sys.exception() if exc_info else None
    if exc is not None:
        event.setdefault("error", f"{type(exc).__name__}: {exc}")
        # A negative limit keeps the innermost frames, and overrides sys.tracebacklimit.
        lines = traceback.format_exception(exc, limit=-TRACEBACK_FRAMES)
        event["exception"] = "".join(lines).rstrip()
    return event


def mask_credentials(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Mask secrets in all fields, by :mod:`ingester.secret_texts`; a processor."""
    for key, value in event.items():
        if isinstance(value, BaseException):
            value = str(value)
        if isinstance(value, str):
            event[key] = masked(value)
        elif isinstance(value, list | tuple | dict | set | frozenset):
            # As it is, where nothing in it is a secret.
            text = str(value)
            if (without := masked(text)) != text:
                event[key] = without
    return event


def _message(event: EventDict) -> str:
    """Return the fields on one line, the error first and without its name."""
    fields = [
        f"{key}={value}"
        for key, value in event.items()
        if key not in _NOT_IN_MESSAGE and key != "error"
    ]
    error = [str(event["error"])] if "error" in event else []
    text = escaped(" ".join(", ".join(error + fields).split()))
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 1] + "…"


class _LineLogger(structlog.WriteLogger):
    """Writes whole lines. Any thread. ``name`` is the logger's, for its level."""

    def __init__(self, out: TextIO, name: str) -> None:
        super().__init__(out)
        self.name = name

    def msg(self, message: str) -> None:
        # Standard error may be closed (a terminal or pipe): continue without a log.
        with suppress(OSError, ValueError):
            super().msg(message)

    debug = info = warning = warn = error = critical = fatal = failure = err = exception = log = msg


class _NamedLoggers:
    """The loggers by name, each created once."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._named: dict[str, _LineLogger] = {}

    def named(self, name: str = ALL, *_: object) -> _LineLogger:
        """Return the logger of a name, the same object each time. Any thread."""
        found = self._named.get(name)
        if found is None:
            found = self._named.setdefault(name, _LineLogger(self._out, name))
        return found


class _ToStructlog(logging.Handler):
    """Passes records of libraries (hypercorn, botocore, Python's warnings) to the log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log ``record`` with its logger's name."""
        library = record.name.partition(".")[0]
        runbook = _LIBRARY_RUNBOOK.get(library, "library-warning")
        try:
            structlog.get_logger(record.name).log(
                min(max(record.levelno // 10 * 10, logging.DEBUG), logging.ERROR),
                " ".join(record.getMessage().split()),
                logger=record.name,
                exc_info=record.exc_info or None,
                **({"runbook": runbook} if record.levelno >= logging.WARNING else {}),
            )
        except Exception:
            self.handleError(record)
