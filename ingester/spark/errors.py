"""Errors of reads and writes with Spark, by who must act.

The caller must install or ask for something else: ``PySparkMissing``, ``RequestRefused``,
``ReaderUnsuitable``, ``StreamUnsuitable``, ``WriteRefused``.
The caller may try again later: ``TailUnavailable``; with a newer version: ``TailStale``.

Errors of the table itself come from ``persist.manifest`` and ``persist.store``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class PySparkMissing(ImportError):
    """PySpark cannot be imported; the message says how to install it."""


class RequestRefused(ValueError):
    """An option, a column or a filter that cannot be understood, or that is not there."""


class ReaderUnsuitable(ValueError):
    """The reader that was asked for cannot read this table in this session."""


class StreamUnsuitable(ValueError):
    """The table, or what is kept of it, cannot be streamed from here."""


class WriteRefused(ValueError):
    """The rows, or the table, are not such that they can be written there."""


class TailUnavailable(RuntimeError):
    """A daemon did not give its buffered rows. ``code`` is the daemon's own, where it sent one."""

    def __init__(self, endpoint: str, message: str, code: str | None = None) -> None:
        super().__init__(f"{endpoint}: {message}")
        self.endpoint = endpoint
        self.code = code

    @property
    def is_unreachable(self) -> bool:
        """Whether the daemon is gone, or about to go."""
        return self.code in (None, "stopping", "fenced", "unavailable")


class RowsMissing(UserWarning):
    """Rows that only some daemons have are missing, as those are away and that was allowed.

    ``endpoints`` are theirs.
    """

    def __init__(self, endpoints: Sequence[str], why: str) -> None:
        super().__init__(f"rows that only these daemons hold are missing: {why}")
        self.endpoints = list(endpoints)


class TailStale(TailUnavailable):
    """The daemon has no tail for so old a version any more: load a newer one and ask again."""


def require_pyspark() -> None:
    """Return if PySpark 4 can be imported, else raise :class:`PySparkMissing`."""
    try:
        import pyspark
    except ImportError as exc:
        raise PySparkMissing(
            "reading tables with Spark needs PySpark 4: pip install 'ingester[spark]'"
        ) from exc
    if int(pyspark.__version__.partition(".")[0]) < 4:
        raise PySparkMissing(
            f"PySpark {pyspark.__version__} is too old, 4 is needed: pip install 'ingester[spark]'"
        )


def plainly(call: Callable[P, R]) -> Callable[P, R]:
    """The same call, whose refusals come without the way that they took through this package.

    Spark shows its users the whole traceback of what a Python data source raises, and the sentence
    that helps is its last line. What is not an error of ours keeps its traceback.
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
    """The same for a generator, whose refusals come while it is gone through: :func:`plainly`."""

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
    """True of errors that say in words what is wrong: all that our packages define."""
    return type(exc).__module__.partition(".")[0] in ("ingester", "persist")
