"""Errors of reads and writes with Spark, by who must act.

The caller must install or ask for something else: ``PySparkMissing``, ``RequestRefused``,
``ReaderUnsuitable``, ``StreamUnsuitable``, ``WriteRefused``.
The caller may try again later: ``TailUnavailable``; with a newer version: ``TailStale``,
``FilesDeleted``.

Errors of the table itself come from ``persist.manifest`` and ``persist.store``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class PySparkMissing(ImportError):
    """PySpark is missing or too old; the message says how to install it."""


class RequestRefused(ValueError):
    """An option, column or filter is invalid or does not exist."""


class ReaderUnsuitable(ValueError):
    """The requested reader cannot read this table in this session."""


class StreamUnsuitable(ValueError):
    """The table cannot be streamed, or not from this offset."""


class WriteRefused(ValueError):
    """The rows cannot be written to this table."""


LOAD_AGAIN = (
    "clean-up deletes the files of versions that are older than manifest.retain. Load the table"
    " again to read its newest version (read_table, spark.read…load() or CREATE OR REPLACE TEMP"
    " VIEW; REFRESH TABLE is not enough)"
)


class FilesDeleted(RuntimeError):
    """Clean-up has deleted files of the version: load the table again."""

    def __init__(self, path: str) -> None:
        super().__init__(f"file {path} does not exist: {LOAD_AGAIN}")
        self.path = path

    def __reduce__(self) -> tuple[type[FilesDeleted], tuple[str]]:
        return type(self), (self.path,)


class TailUnavailable(RuntimeError):
    """A daemon did not return its buffered rows. ``code`` is the daemon's error code, or None."""

    def __init__(self, endpoint: str, message: str, code: str | None = None) -> None:
        super().__init__(f"{endpoint}: {message}")
        self.endpoint = endpoint
        self.code = code

    @property
    def is_unreachable(self) -> bool:
        """Whether the daemon is unreachable or shutting down."""
        return self.code in (None, "stopping", "fenced", "unavailable")


class RowsMissing(UserWarning):
    """Buffered rows of unreachable daemons are missing, which the caller allowed.

    Attributes:
        endpoints: Those daemons.
    """

    def __init__(self, endpoints: Sequence[str], why: str) -> None:
        super().__init__(f"rows that only these daemons hold are missing: {why}")
        self.endpoints = list(endpoints)


class TailStale(TailUnavailable):
    """The version is too old for the daemon: load a newer one and ask again."""


def require_pyspark() -> None:
    """Raise :class:`PySparkMissing` unless PySpark 4 can be imported."""
    try:
        import pyspark
    except ImportError as exc:
        raise PySparkMissing(
            "PySpark 4 is required to read tables with Spark: pip install '.[spark]'"
            " in the folder of the sources"
        ) from exc
    if int(pyspark.__version__.partition(".")[0]) < 4:
        raise PySparkMissing(
            f"PySpark {pyspark.__version__} is too old, need 4: pip install"
            " '.[spark]' in the folder of the sources"
        )


def plainly(call: Callable[P, R]) -> Callable[P, R]:
    """The call, with the traceback removed from errors that this package raises.

    Spark shows its users the whole traceback of an exception in a Python data source, and the
    helpful sentence is its last line. Other exceptions keep their traceback.
    """

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except Exception as exc:
            if not is_refusal(exc):
                raise
            refusal = exc
        raise refusal.with_traceback(None) from None

    return called


def plainly_each(call: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    """As :func:`plainly`, for a generator."""

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        try:
            yield from call(*args, **kwargs)
            return
        except Exception as exc:
            if not is_refusal(exc):
                raise
            refusal = exc
        raise refusal.with_traceback(None) from None

    return called


def is_refusal(exc: Exception) -> bool:
    """True for exceptions that these packages define: their messages are written for users."""
    return type(exc).__module__.partition(".")[0] in ("ingester", "persist")
